//! Certificates of prestop-gate: issue, check, renew and serve them. No Kubernetes types, no I/O, no clock.
//!
//! ```text
//!              Identity (PEM texts, as somebody stored them)
//!                 │ verify(names, now)
//!                 ▼
//!  plan(found, held, policy, now) ──► write: an Identity to store, and why
//!                 │
//!                 └──► serve: Verified ──► Resolver ──► the next TLS handshake
//! ```
//!
//! * [`authority`]: a certificate authority, and the leaves that it issues.
//! * [`identity`]: an authority and its leaf as they are stored, and whether a client would accept them.
//! * [`renewal`]: what to do about a stored identity at a given time.
//! * [`resolver`]: which leaf a TLS client gets; swapped while connections come in.

pub mod authority;
pub mod identity;
pub mod key_pair;
pub mod renewal;
pub mod resolver;
pub mod validity;

#[cfg(test)]
mod fixture;

pub use authority::Authority;
pub use identity::{Identity, Verified};
pub use key_pair::KeyPairPem;
pub use renewal::{Cause, Lives, Plan, Policy, plan};
pub use resolver::Resolver;
pub use validity::Validity;

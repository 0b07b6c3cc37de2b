//! prestop-gate's server side: the admission webhook, and the confirmer that waiters ask.
//!
//! ```text
//!  API server ── AdmissionReview ──► admission ──► inject (pure: pod + configuration in, JSON Patch out)
//!                                        ▲
//!             injection_config ──────────┘  flags + authority + ClusterIP
//!  waiter ────── hello, hold ──────► confirmer ──► endpoints, attachment, budget, decide (pure)
//!                                        ▲
//!             aws (feature) ─────────────┤  target groups
//!             watches, classify ─────────┘  EndpointSlices, pods, nodes
//!  secrets ──► certs resolver ──► server (TLS)     secrets ──► ca_bundle     admin: health, metrics
//! ```
//! [`run`] wires all of it and is the only module that knows all others.

pub mod admin;
pub mod admission;
pub mod args;
#[cfg(feature = "aws")]
pub mod aws;
pub mod ca_bundle;
pub mod confirmer;
mod duration;
mod error_chain;
pub mod inject;
pub mod injection_config;
pub mod metrics;
pub mod readiness;
pub mod run;
pub mod secrets;
pub mod server;

#[cfg(test)]
mod fake_api;

//! The waiter: what runs inside a gated pod.
//!
//! One binary in three roles, which meet in the shared volume at [`contract::MOUNT_PATH`]:
//!
//! ```text
//!  sidecar container                                       main container (mount is read-only)
//!  ┌───────────────────────────────┐   sock               ┌──────────────────────────────┐
//!  │ waiter run                    │◄──HELLO, DONE────────┤ waiter hook … -- ORIGINAL    │ preStop
//!  │   socket ─► hub ─► step ──────┼──WELCOME, GO────────►│   hook ─► wait ─► original   │
//!  │              │ ▲              │   go (a file)        └──────────────────────────────┘
//!  │              ▼ │              ├──────────────────────────────▲ only when sock is dead
//!  │            asking             │
//!  └──────────────┼────────────────┘   waiter ready        postStart of the sidecar: until sock listens
//!                 ▼ POST /v1/hold (TLS, long-poll)
//!             confirmer
//! ```
//!
//! [`step`] decides when the sidecar lets its hooks go, [`wait`] decides when one hook goes: both are pure, with the
//! time passed in. All else carries bytes to and from them. Each question also tells the confirmer what connections came
//! in since the hold began ([`contract::Traffic`]), which decides nothing here.

pub mod args;
pub mod contract;
pub mod go_file;
pub mod hook;
pub mod lines;
pub mod paths;
pub mod ready;
pub mod run;
pub mod step;
pub mod wait;

mod dial;
mod log;

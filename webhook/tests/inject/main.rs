//! Injection, judged by what the patched pod looks like. Names carry the field failure that a test is for: E… are
//! reports against other injectors, S… stories of lost requests.
#![allow(clippy::unwrap_used, clippy::panic)]

mod containers;
mod inbound;
mod invariants;
mod max_wait;
mod pod_level;
mod reinvocation;
mod skips;
mod support;

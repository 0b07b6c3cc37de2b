//! The waiter: what runs inside a gated pod.

pub mod contract;

//! The `prestop-gate` binary.

fn main() {}

//! The `waiter` binary.

fn main() {}

//! Test service.

fn main() {}

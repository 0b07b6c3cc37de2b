//! The waiter on the wire: its real binary in every role, real unix sockets, and a confirmer over real TLS.

#![allow(
    clippy::unwrap_used,
    reason = "the switch for tests doesn't cover their helpers"
)]
#![allow(clippy::print_stdout, reason = "a failed test shows the waiter's log")]
#![allow(
    clippy::disallowed_methods,
    reason = "processes are watched from outside, by the clock on the wall"
)]

mod confirmer;
mod faults;
mod hold;
mod hostile;
mod lifecycle;
mod lost;
mod original;
mod pod;
mod traffic;

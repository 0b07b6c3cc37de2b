//! What the watchers of a run tell its [`ledger`](super::ledger).

use std::net::IpAddr;

use serde::Deserialize;

use super::schedule::Step;

/// Something that was seen. Times are wall-clock Unix milliseconds of one machine.
#[derive(Debug)]
pub enum Seen {
    /// The pod has an address.
    Address {
        /// The pod.
        pod: String,
        /// Its address.
        ip: IpAddr,
    },
    /// The pod has a deletion timestamp, for the first time.
    Terminating {
        /// The pod.
        pod: String,
        /// When the watch brought it.
        at: u64,
    },
    /// A line of the app's log.
    Said {
        /// The pod.
        pod: String,
        /// The line.
        event: AppEvent,
    },
    /// The pod's object is gone.
    Gone {
        /// The pod.
        pod: String,
    },
    /// A target group's API accepted a deregistration.
    Deregistered {
        /// Which of the pod's target groups.
        group: usize,
        /// The target's address.
        ip: IpAddr,
        /// When.
        at: u64,
    },
    /// A source of a target group's load balancer changed.
    Source {
        /// Group, and source in it.
        source: (usize, usize),
        /// What changed.
        step: Step,
        /// When it was in force.
        at: u64,
    },
}

/// A line of the app's log. Only what a load balancer sent is counted in it, but for the last field.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct AppEvent {
    /// `started`, `sigterm` or `exit`.
    pub event: String,
    /// When.
    pub unix_ms: u64,
    /// When the last request came.
    pub last_request_unix_ms: Option<u64>,
    /// When the newest connection that brought one was accepted.
    pub last_connection_unix_ms: Option<u64>,
    /// When the newest connection of a client in the cluster was accepted.
    pub last_cluster_connection_unix_ms: Option<u64>,
}

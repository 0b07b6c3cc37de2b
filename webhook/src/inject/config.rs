//! What injection needs to know beside the pod: a snapshot, swapped whole by whoever watches its sources.

use std::time::Duration;

/// Default of `prestop-gate.dev/max-wait`: three times the longest lag measured between an ALB's `draining` and its
/// last request (17 s), with room for a slow controller.
pub const DEFAULT_MAX_WAIT: Duration = Duration::from_mins(1);
/// Default of `prestop-gate.dev/fallback-wait`: what people write into a preStop sleep.
pub const DEFAULT_FALLBACK_WAIT: Duration = Duration::from_secs(15);
/// Default of the cap on every wait that a pod may ask for.
pub const DEFAULT_MAX_WAIT_CAP: Duration = Duration::from_mins(30);

/// Everything injection puts into a pod that the pod itself doesn't say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InjectConfig {
    /// Image of the waiter, with tag or digest.
    pub waiter_image: String,
    /// Comma list of `host:port` where waiters reach the confirmer, the `ClusterIP` first.
    pub confirmer: String,
    /// TLS server name that waiters ask the confirmer for, see [`sidecar::contract::server_name`].
    pub server_name: String,
    /// The confirmer's CA certificates, PEM.
    pub ca_pem: String,
    /// Longest hold of a pod that doesn't say.
    pub default_max_wait: Duration,
    /// Hold when nothing can be confirmed, of a pod that doesn't say.
    pub default_fallback_wait: Duration,
    /// Longest wait that a pod may ask for; more is refused.
    pub max_wait_cap: Duration,
    /// Version of this webhook, for the status annotation.
    pub version: String,
}

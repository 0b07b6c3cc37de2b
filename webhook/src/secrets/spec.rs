//! Which Secrets there are, and what is in each.

use sidecar::contract;

/// One Secret and what is in it.
#[derive(Debug, Clone, Copy)]
pub struct Spec {
    /// The Secret's name, in our own namespace.
    pub secret: &'static str,
    /// Common name of its authority.
    pub common_name: &'static str,
    /// DNS names of its leaf; gets the authority's key identifier.
    pub names: fn(&str) -> Vec<String>,
}

/// The admission webhook's, for the API servers.
pub const WEBHOOK: Spec = Spec {
    secret: "prestop-gate-webhook-tls",
    common_name: "prestop-gate webhook",
    names: |_| service_names(contract::WEBHOOK_SERVICE),
};

/// The confirmer's, for the waiters.
pub const CONFIRMER: Spec = Spec {
    secret: "prestop-gate-confirmer-tls",
    common_name: "prestop-gate confirmer",
    names: |key_id| {
        let mut names = service_names(contract::CONFIRMER_SERVICE);
        names.push(contract::server_name(key_id));
        names
    },
};

/// Under which names a Service is called. The short one comes first: it becomes the common name, which ends at 64
/// characters.
fn service_names(service: &str) -> Vec<String> {
    let namespace = contract::NAMESPACE;
    vec![
        format!("{service}.{namespace}.svc"),
        format!("{service}.{namespace}.svc.cluster.local"),
    ]
}

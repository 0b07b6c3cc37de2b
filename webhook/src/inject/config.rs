//! What injection needs to know beside the pod: a snapshot, swapped whole by whoever watches its sources.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Default of `prestop-gate.dev/max-wait`: three times the longest lag measured between an ALB's `draining` and its
/// last request (17 s), with room for a slow controller.
pub const DEFAULT_MAX_WAIT: Duration = Duration::from_mins(1);
/// The same for pods behind an NLB: its data plane lags by up to 180 s in the field's reports, connections that come
/// last extend that by 30 s, and the rest is room for a slow controller.
pub const DEFAULT_MAX_WAIT_NLB: Duration = Duration::from_mins(4);
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
    /// Longest hold of a pod that doesn't say and that nothing slow sends to.
    pub default_max_wait: Duration,
    /// The same where something slow does; never less than [`Self::default_max_wait`].
    pub default_max_wait_nlb: Duration,
    /// What slow load balancers send to.
    pub slow: Arc<SlowSelectors>,
    /// Hold when nothing can be confirmed, of a pod that doesn't say.
    pub default_fallback_wait: Duration,
    /// Longest wait that a pod may ask for; more is refused.
    pub max_wait_cap: Duration,
    /// Version of this webhook, for the status annotation.
    pub version: String,
}

/// Pods that something slow sends to: an NLB, or a controller that can't be asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlowSelector {
    /// Namespace of the Service.
    pub namespace: String,
    /// Its selector.
    pub selector: BTreeMap<String, String>,
    /// What sends by it, as a sentence without a full stop.
    pub because: String,
}

/// All selectors of Services that something slow sends by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlowSelectors {
    by_namespace: BTreeMap<String, Vec<SlowSelector>>,
    /// What is said of a pod that none of them selects.
    otherwise: String,
}

impl Default for SlowSelectors {
    fn default() -> Self {
        Self {
            by_namespace: BTreeMap::new(),
            otherwise: "no NLB known for it".to_owned(),
        }
    }
}

impl SlowSelectors {
    /// Orders them, so that the same ones are equal however they were found. Those without a key are left out: such a
    /// Service selects nothing.
    pub fn new(selectors: impl IntoIterator<Item = SlowSelector>) -> Self {
        let mut all = Self::default();
        for slow in selectors.into_iter().filter(|s| !s.selector.is_empty()) {
            let namespace = all.by_namespace.entry(slow.namespace.clone());
            namespace.or_default().push(slow);
        }
        for selectors in all.by_namespace.values_mut() {
            selectors.sort_unstable_by(|a, b| a.because.cmp(&b.because));
        }
        all
    }

    /// The same where some may be missing, because `why`.
    #[must_use]
    pub fn incomplete(self, why: &str) -> Self {
        Self {
            otherwise: format!("{}, but {why}", self.otherwise),
            ..self
        }
    }
}

impl InjectConfig {
    /// Longest hold of a pod that doesn't say, and why; `label` gives the pod's labels.
    pub(super) fn auto_max_wait<'l>(
        &self,
        namespace: &str,
        label: impl Fn(&str) -> Option<&'l str>,
    ) -> (Duration, &str) {
        let selectors = self.slow.by_namespace.get(namespace);
        let mut selectors = selectors.into_iter().flatten();
        let slow = selectors.find(|slow| {
            let mut pairs = slow.selector.iter();
            pairs.all(|(key, value)| label(key) == Some(value))
        });
        match slow {
            Some(slow) => (
                self.default_max_wait_nlb.max(self.default_max_wait),
                &slow.because,
            ),
            None => (self.default_max_wait, &self.slow.otherwise),
        }
    }
}

//! Why pods were released: read from the Events that the confirmer writes on them.

use std::collections::BTreeMap;
use std::net::IpAddr;

use anyhow::Result;
use k8s_openapi::api::core::v1::{Event, Pod};
use kube::api::ListParams;
use kube::{Api, Client, ResourceExt};
use sidecar::contract::{NAMESPACE, ReleaseReason};

/// The Event that tells it.
const RELEASED: &str = "Released";
/// What stands for the reason of a gated pod on which no such Event was found.
pub const NO_EVENT: &str = "none seen";

/// Why a pod was released.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Released {
    /// The reason, one of the closed list.
    pub reason: String,
    /// The Event's text.
    pub note: String,
    /// The replica that released it, its pod's name.
    pub replica: Option<String>,
}

impl Released {
    /// Whether it was the longest hold's end, and the text doesn't say what was still awaited.
    pub fn is_unexplained(&self) -> bool {
        self.reason == ReleaseReason::MaxWait.as_str() && !self.note.contains('(')
    }
}

/// The release of each pod of `namespace`, by pod.
pub async fn read(client: &Client, namespace: &str) -> Result<BTreeMap<String, Released>> {
    let events = Api::<Event>::namespaced(client.clone(), namespace);
    let params = ListParams::default().fields(&format!("reason={RELEASED}"));
    Ok(by_pod(events.list(&params).await?.items))
}

/// The addresses of prestop-gate's replicas that are there, by pod.
pub async fn replicas(client: &Client) -> Result<BTreeMap<String, IpAddr>> {
    let pods = Api::<Pod>::namespaced(client.clone(), NAMESPACE);
    let pods = pods.list(&ListParams::default()).await?.items.into_iter();
    let addressed = pods.filter_map(|pod| {
        let ip = pod.status.as_ref()?.pod_ip.as_ref()?.parse().ok()?;
        Some((pod.name_any(), ip))
    });
    Ok(addressed.collect())
}

/// The last one of each pod, should several replicas have written one.
fn by_pod(mut events: Vec<Event>) -> BTreeMap<String, Released> {
    events.sort_by_key(|event| event.event_time.as_ref().map(|time| time.0));
    let released = events.into_iter().filter_map(|event| {
        let pod = event.involved_object.name?;
        let (reason, note) = (event.action?, event.message.unwrap_or_default());
        let replica = event.reporting_instance.filter(|name| !name.is_empty());
        let released = Released {
            reason,
            note,
            replica,
        };
        Some((pod, released))
    });
    released.collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn mk_event(pod: &str, reason: &str, note: &str, second: u8) -> Event {
        serde_json::from_value(json!({
            "metadata": {"name": format!("{pod}.{second}")},
            "involvedObject": {"kind": "Pod", "name": pod},
            "action": reason,
            "message": note,
            "reportingInstance": format!("gate-{second}"),
            "eventTime": format!("2026-01-01T00:00:{second:02}.000000Z"),
        }))
        .unwrap()
    }

    #[test]
    fn last_release_of_a_pod_counts() {
        let events = vec![
            mk_event("a", "confirmed", "Released after 31.0 s: confirmed.", 9),
            mk_event("a", "max-wait", "Released after 60.0 s: max-wait.", 5),
            mk_event("b", "max-wait", "Released after 60.0 s: max-wait (web).", 7),
        ];
        let released = by_pod(events);
        assert_eq!(released["a"].reason, "confirmed");
        assert_eq!(released["a"].replica.as_deref(), Some("gate-9"));
        assert!(!released["b"].is_unexplained());
    }

    #[test]
    fn only_the_longest_hold_needs_an_explanation() {
        let unexplained = |reason: &str, note: &str| {
            let event = mk_event("a", reason, note, 1);
            by_pod(vec![event])["a"].is_unexplained()
        };
        assert!(unexplained(
            "max-wait",
            "Released after 60.0 s: max-wait. The longest hold is over."
        ));
        assert!(!unexplained(
            "max-wait",
            "Released after 60.0 s: max-wait (tg: healthy). The longest"
        ));
        assert!(!unexplained(
            "confirmed",
            "Released after 20.0 s: confirmed."
        ));
    }
}

//! The part of a pod that injection reads, borrowed from the review's raw JSON.
//!
//! Fields that aren't here are never looked at, so a newer API server's are neither lost nor misread.
//! `null` counts as absent everywhere.

use std::borrow::Cow;
use std::fmt;
use std::ops::Deref;

use serde::de::{IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;
use sidecar::contract::annotation;

use super::quantity::Quantity;

/// Cluster autoscaler's list of local volumes that may be lost with their node.
pub(super) const SAFE_TO_EVICT_VOLUMES: &str =
    "cluster-autoscaler.kubernetes.io/safe-to-evict-local-volumes";
/// What the kubelet puts on a mirror pod.
const MIRROR: &str = "kubernetes.io/config.mirror";

/// A string that borrows where JSON escapes allow it, also inside lists and options.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
pub(super) struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

impl Deref for Text<'_> {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

#[derive(Debug, Deserialize)]
pub(super) struct PodView<'a> {
    #[serde(borrow)]
    pub(super) metadata: Metadata<'a>,
    #[serde(borrow)]
    pub(super) spec: Spec<'a>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Metadata<'a> {
    #[serde(borrow)]
    pub(super) name: Option<Text<'a>>,
    pub(super) generate_name: Option<Text<'a>>,
    pub(super) annotations: Option<Annotations<'a>>,
    pub(super) labels: Option<Labels<'a>>,
}

/// All labels, in the order of the document.
#[derive(Debug, Default)]
pub(super) struct Labels<'a>(Vec<(Text<'a>, Option<Text<'a>>)>);

impl Labels<'_> {
    pub(super) fn get(&self, key: &str) -> Option<&str> {
        let (_, value) = self.0.iter().find(|(k, _)| &**k == key)?;
        value.as_deref()
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Labels<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Keep<'a>(Labels<'a>);

        impl<'de: 'a, 'a> Visitor<'de> for Keep<'a> {
            type Value = Labels<'a>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map of labels")
            }

            fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<Self::Value, A::Error> {
                while let Some(pair) = map.next_entry()? {
                    self.0.0.push(pair);
                }
                Ok(self.0)
            }
        }

        deserializer.deserialize_map(Keep(Labels::default()))
    }
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Spec<'a> {
    #[serde(borrow)]
    pub(super) containers: Option<Vec<Container<'a>>>,
    pub(super) init_containers: Option<Vec<Container<'a>>>,
    pub(super) volumes: Option<Vec<Volume<'a>>>,
    pub(super) termination_grace_period_seconds: Option<i64>,
    pub(super) security_context: Option<SecurityContext>,
    pub(super) resources: Option<Resources>,
    pub(super) host_network: Option<bool>,
    pub(super) os: Option<Os<'a>>,
    pub(super) node_selector: Option<NodeSelector<'a>>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Volume<'a> {
    #[serde(borrow)]
    pub(super) name: Text<'a>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Os<'a> {
    #[serde(borrow)]
    pub(super) name: Option<Text<'a>>,
}

#[derive(Debug, Deserialize)]
pub(super) struct NodeSelector<'a> {
    #[serde(borrow, rename = "kubernetes.io/os")]
    pub(super) os: Option<Text<'a>>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Container<'a> {
    #[serde(borrow)]
    pub(super) name: Text<'a>,
    /// Read only where the container is ours.
    pub(super) args: Option<&'a RawValue>,
    pub(super) lifecycle: Option<Lifecycle<'a>>,
    pub(super) volume_mounts: Option<Vec<VolumeMount<'a>>>,
    pub(super) volume_devices: Option<Vec<VolumeDevice<'a>>>,
    pub(super) liveness_probe: Option<Probe>,
    pub(super) startup_probe: Option<Probe>,
    pub(super) readiness_probe: Option<ReadinessProbe<'a>>,
    pub(super) ports: Option<Vec<ContainerPort<'a>>>,
    pub(super) security_context: Option<SecurityContext>,
    pub(super) resources: Option<Resources>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Lifecycle<'a> {
    #[serde(borrow)]
    pub(super) pre_stop: Option<&'a RawValue>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct VolumeMount<'a> {
    #[serde(borrow)]
    pub(super) name: Text<'a>,
    pub(super) mount_path: Text<'a>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct VolumeDevice<'a> {
    #[serde(borrow)]
    pub(super) device_path: Text<'a>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Probe {
    pub(super) termination_grace_period_seconds: Option<i64>,
}

/// The one kind of probe that goes on while a pod terminates.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ReadinessProbe<'a> {
    #[serde(borrow)]
    pub(super) http_get: Option<Connect<'a>>,
    pub(super) tcp_socket: Option<Connect<'a>>,
    pub(super) grpc: Option<Connect<'a>>,
    pub(super) period_seconds: Option<i64>,
}

/// Where a probe connects to.
#[derive(Debug, Deserialize)]
pub(super) struct Connect<'a> {
    #[serde(borrow)]
    pub(super) host: Option<Text<'a>>,
    pub(super) port: Option<Port<'a>>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(super) enum Port<'a> {
    Number(i64),
    Name(#[serde(borrow)] Text<'a>),
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ContainerPort<'a> {
    #[serde(borrow)]
    pub(super) name: Option<Text<'a>>,
    pub(super) container_port: Option<i64>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct SecurityContext {
    pub(super) run_as_user: Option<i64>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Resources {
    pub(super) requests: Option<Quantities>,
    pub(super) limits: Option<Quantities>,
}

#[derive(Debug, Default, Clone, Copy, Deserialize)]
pub(super) struct Quantities {
    pub(super) cpu: Option<Quantity>,
    pub(super) memory: Option<Quantity>,
    #[serde(rename = "ephemeral-storage")]
    pub(super) ephemeral_storage: Option<Quantity>,
}

/// The annotations that matter here; all others are only counted.
#[derive(Debug, Default)]
pub(super) struct Annotations<'a> {
    /// Those of ours, key and value, in the order of the document.
    pub(super) ours: Vec<(Text<'a>, Text<'a>)>,
    /// [`SAFE_TO_EVICT_VOLUMES`].
    pub(super) safe_to_evict_volumes: Option<Text<'a>>,
    /// Whether the kubelet made this pod of a static one.
    pub(super) mirror: bool,
    /// Bytes of all keys and values, which the API server limits.
    pub(super) bytes: usize,
}

impl Annotations<'_> {
    /// The value of one of our keys.
    pub(super) fn get(&self, key: &str) -> Option<&str> {
        self.ours
            .iter()
            .find(|(k, _)| &**k == key)
            .map(|(_, value)| &**value)
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Annotations<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Keep<'a>(Annotations<'a>);

        impl<'de: 'a, 'a> Visitor<'de> for Keep<'a> {
            type Value = Annotations<'a>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map of annotations")
            }

            fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<Self::Value, A::Error> {
                while let Some((key, value)) = map.next_entry::<Text<'a>, Text<'a>>()? {
                    self.0.bytes += key.len() + value.len();
                    match &*key {
                        SAFE_TO_EVICT_VOLUMES => self.0.safe_to_evict_volumes = Some(value),
                        MIRROR => self.0.mirror = true,
                        key_text if key_text.starts_with(annotation::PREFIX) => {
                            self.0.ours.push((key, value));
                        }
                        _ => {}
                    }
                }
                Ok(self.0)
            }
        }

        deserializer.deserialize_map(Keep(Annotations::default()))
    }
}

/// A preStop handler, as far as we understand all of it.
///
/// An unknown field anywhere makes it unreadable: to rewrite such a handler would drop what we don't know.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Handler<'a> {
    #[serde(borrow)]
    pub(super) exec: Option<Exec<'a>>,
    pub(super) http_get: Option<IgnoredAny>,
    pub(super) tcp_socket: Option<IgnoredAny>,
    pub(super) sleep: Option<Sleep>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Exec<'a> {
    #[serde(borrow)]
    pub(super) command: Option<Vec<Text<'a>>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Sleep {
    pub(super) seconds: i64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_without_escapes_are_borrowed_also_inside_lists() {
        let list: Vec<Text<'_>> = serde_json::from_str(r#"["plain", "a\"b"]"#).unwrap();
        assert!(matches!(list[0].0, Cow::Borrowed("plain")));
        assert!(matches!(list[1].0, Cow::Owned(_)));
    }
}

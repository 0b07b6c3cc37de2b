//! A `TargetGroupBinding` as far as the controller reads it. Pure.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::ResourceExt;
use kube::api::DynamicObject;
use serde::Deserialize;
use serde_json::Value;

use crate::aws::crds::Group;

/// The annotation that says what the binding's target group was last brought in line with.
pub(super) const CHECKPOINT: &str = "elbv2.k8s.aws/checkpoint";
/// When that was, in seconds since 1970.
pub(super) const CHECKPOINT_TIMESTAMP: &str = "elbv2.k8s.aws/checkpoint-timestamp";

/// Which binding.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key {
    pub(super) group: Group,
    pub(super) namespace: String,
    pub(super) name: String,
}

impl Key {
    pub(super) fn of(group: Group, object: &DynamicObject) -> Self {
        Self {
            group,
            namespace: object.namespace().unwrap_or_default(),
            name: object.name_any(),
        }
    }
}

/// The fields of its spec that matter for ip targets.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Spec {
    #[serde(rename = "targetGroupARN")]
    pub(super) target_group_arn: Option<String>,
    pub(super) target_group_name: Option<String>,
    #[serde(default)]
    pub(super) multi_cluster_target_group: bool,
    pub(super) target_type: Option<String>,
    pub(super) service_ref: ServiceRef,
    pub(super) iam_role_arn_to_assume: Option<String>,
    pub(super) assume_role_external_id: Option<String>,
}

/// A port of a Service.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(super) struct ServiceRef {
    pub(super) name: String,
    pub(super) port: IntOrString,
}

/// A binding.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Binding {
    pub(super) generation: Option<i64>,
    pub(super) annotations: BTreeMap<String, String>,
    pub(super) spec: Spec,
    /// As it was written, for the checkpoint.
    pub(super) raw_spec: Value,
}

impl Binding {
    /// Reads a binding; none if it isn't of ip type or can't be read.
    pub(super) fn read(object: &DynamicObject) -> Option<Self> {
        let raw_spec = object.data.get("spec")?.clone();
        let spec: Spec = serde_json::from_value(raw_spec.clone()).ok()?;
        // The real one's webhook fills in what the target group is; here they all are.
        let is_ip = spec.target_type.as_deref().is_none_or(|kind| kind == "ip");
        is_ip.then(|| Self {
            generation: object.metadata.generation,
            annotations: object.annotations().clone(),
            spec,
            raw_spec,
        })
    }

    pub(super) fn checkpoint(&self) -> Option<&str> {
        self.annotations.get(CHECKPOINT).map(String::as_str)
    }
}

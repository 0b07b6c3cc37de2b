//! `TargetGroupBinding`, the custom resource that ties a Service to a target group, in both API groups
//! that serve it. Only the fields that the tests set or read are spelled out.

use std::time::Duration;

use anyhow::{Context, Result};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams};
use kube::runtime::conditions::is_crd_established;
use kube::runtime::wait::await_condition;
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};

/// Longest wait for the API server to serve a new kind.
const PATIENCE: Duration = Duration::from_secs(30);

/// Who serves the kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Group {
    /// The AWS Load Balancer Controller's: `elbv2.k8s.aws/v1beta1`.
    LoadBalancerController,
    /// EKS Auto Mode's: `eks.amazonaws.com/v1`.
    EksAutoMode,
}

impl Group {
    /// Both.
    pub const ALL: [Self; 2] = [Self::LoadBalancerController, Self::EksAutoMode];

    fn name(self) -> &'static str {
        match self {
            Self::LoadBalancerController => "elbv2.k8s.aws",
            Self::EksAutoMode => "eks.amazonaws.com",
        }
    }

    fn version(self) -> &'static str {
        match self {
            Self::LoadBalancerController => "v1beta1",
            Self::EksAutoMode => "v1",
        }
    }

    /// What kube needs to know to work with untyped objects.
    pub fn resource(self) -> ApiResource {
        let kind = GroupVersionKind::gvk(self.name(), self.version(), "TargetGroupBinding");
        ApiResource::from_gvk_with_plural(&kind, "targetgroupbindings")
    }
}

/// The definition of the kind in `group`.
///
/// # Errors
/// When it doesn't fit the API's own type.
pub fn of(group: Group) -> Result<CustomResourceDefinition> {
    let text = || json!({"type": "string"});
    let required = match group {
        Group::LoadBalancerController => json!(["serviceRef"]),
        // Nobody fills it in there.
        Group::EksAutoMode => json!(["serviceRef", "targetType"]),
    };
    let spec = json!({
        "type": "object",
        "required": required,
        "properties": {
            "targetGroupARN": text(),
            "targetGroupName": text(),
            "multiClusterTargetGroup": {"type": "boolean"},
            "targetType": {"type": "string", "enum": ["instance", "ip"]},
            "targetGroupProtocol": {
                "type": "string",
                "enum": ["HTTP", "HTTPS", "TCP", "TLS", "UDP", "TCP_UDP", "QUIC", "TCP_QUIC"],
            },
            "serviceRef": {
                "type": "object",
                "required": ["name", "port"],
                "properties": {
                    "name": text(),
                    "port": {"x-kubernetes-int-or-string": true, "anyOf": [{"type": "integer"}, {"type": "string"}]},
                },
            },
            "networking": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
            "nodeSelector": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
            "ipAddressType": {"type": "string", "enum": ["ipv4", "ipv6"]},
            "vpcID": text(),
            "iamRoleArnToAssume": text(),
            "assumeRoleExternalId": text(),
        },
    });
    let status = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let version = json!({
        "name": group.version(),
        "served": true,
        "storage": true,
        "subresources": {"status": {}},
        "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": spec, "status": status}}},
    });
    let definition = json!({
        "metadata": {"name": format!("targetgroupbindings.{}", group.name())},
        "spec": {
            "group": group.name(),
            "scope": "Namespaced",
            "names": {
                "kind": "TargetGroupBinding",
                "listKind": "TargetGroupBindingList",
                "plural": "targetgroupbindings",
                "singular": "targetgroupbinding",
            },
            "versions": [version],
        },
    });
    serde_json::from_value(definition)
        .context("failed to make the definition of TargetGroupBinding")
}

/// Makes the kinds of `groups` known to the cluster, and waits until they are served. Doing it again is harmless.
///
/// # Errors
/// When the API server refuses, or takes longer than 30 s.
pub async fn install(client: &Client, groups: &[Group]) -> Result<()> {
    let definitions = Api::<CustomResourceDefinition>::all(client.clone());
    for group in groups {
        let definition = of(*group)?;
        let name = definition.name_any();
        let params = PatchParams::apply("tests").force();
        let applied = definitions
            .patch(&name, &params, &Patch::Apply(&definition))
            .await;
        applied.with_context(|| format!("failed to apply {name}"))?;
        let established = await_condition(definitions.clone(), &name, is_crd_established());
        let established = tokio::time::timeout(PATIENCE, established).await;
        established
            .with_context(|| format!("failed to see {name} served within {PATIENCE:?}"))?
            .with_context(|| format!("failed to watch {name}"))?;
    }
    Ok(())
}

/// A binding of ip type of `service`'s `port`, a number or a name, to the target group `arn`. Tests change
/// `data["spec"]` for anything else.
pub fn binding(
    group: Group,
    name: &str,
    service: &str,
    port: impl Into<Value>,
    arn: &str,
) -> DynamicObject {
    let port = port.into();
    let spec = json!({
        "spec": {
            "targetGroupARN": arn,
            "targetType": "ip",
            "serviceRef": {"name": service, "port": port},
        },
    });
    DynamicObject::new(name, &group.resource()).data(spec)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn definitions_differ_in_group_and_in_what_auto_mode_requires() {
        let pick = |group| serde_json::to_value(of(group).unwrap()).unwrap();
        let path = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/required";
        let controller = pick(Group::LoadBalancerController);
        assert_eq!(
            controller["metadata"]["name"],
            "targetgroupbindings.elbv2.k8s.aws"
        );
        assert_eq!(controller.pointer(path).unwrap(), &json!(["serviceRef"]));
        let auto = pick(Group::EksAutoMode);
        assert_eq!(
            auto["metadata"]["name"],
            "targetgroupbindings.eks.amazonaws.com"
        );
        assert_eq!(
            auto.pointer(path).unwrap(),
            &json!(["serviceRef", "targetType"])
        );
        assert_eq!(
            Group::EksAutoMode.resource().api_version,
            "eks.amazonaws.com/v1"
        );
    }
}

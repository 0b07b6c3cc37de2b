//! What keeps a deregistration from being confirmed, and what its owner can change. Pure.

use super::endpoints::Sender;
use super::target_group::TargetGroup;

/// Why something can't be confirmed; each is said once per hold, in an Event on the pod.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Trouble {
    /// The Service publishes terminating pods as ready.
    PublishNotReady(Sender),
    /// Nobody else is ready: kube-proxy and load balancers go on sending, by design.
    NoOtherEndpoint {
        /// The Service.
        service: Sender,
        /// Bindings whose security-group rules the controller manages, and revokes first.
        managed_rules: Vec<String>,
    },
    /// A permission is missing.
    Denied {
        /// The group.
        group: TargetGroup,
        /// What AWS said.
        text: String,
    },
    /// No credentials, or none that work.
    Credentials {
        /// The group.
        group: TargetGroup,
        /// What failed.
        text: String,
    },
    /// The binding registers nodes rather than pods.
    NodeTargets {
        /// Namespace and name of the binding.
        binding: String,
    },
    /// We may not read the bindings.
    BindingsForbidden(String),
}

impl Trouble {
    /// A word for it, to tell Events of one reason apart.
    pub fn word(&self) -> &'static str {
        match self {
            Self::PublishNotReady(_) => "publish-not-ready",
            Self::NoOtherEndpoint { .. } => "no-other-endpoint",
            Self::Denied { .. } => "access-denied",
            Self::Credentials { .. } => "no-credentials",
            Self::NodeTargets { .. } => "node-targets",
            Self::BindingsForbidden(_) => "bindings-forbidden",
        }
    }

    /// Whom it is about: what AWS says of it may differ each time.
    pub fn subject(&self) -> String {
        match self {
            Self::PublishNotReady(service) | Self::NoOtherEndpoint { service, .. } => {
                service.to_string()
            }
            Self::Denied { group, .. } | Self::Credentials { group, .. } => group.to_string(),
            Self::NodeTargets { binding } => binding.clone(),
            Self::BindingsForbidden(_) => String::new(),
        }
    }

    /// What it is and what to change.
    pub fn text(&self) -> String {
        match self {
            Self::PublishNotReady(service) => format!(
                "{service} has publishNotReadyAddresses: it keeps a terminating pod ready until it is gone, so no load balancer lets go of it before. \
                 Set it to false, or use another Service behind the load balancer"
            ),
            Self::NoOtherEndpoint {
                service,
                managed_rules,
            } => {
                let mut text = format!(
                    "{service} has no other ready endpoint: kube-proxy and load balancers go on sending to this one. \
                     Run at least two replicas, and let a rollout surge (maxUnavailable: 0)"
                );
                if !managed_rules.is_empty() {
                    text = format!(
                        "{text}. The AWS Load Balancer Controller revokes the security-group rules of {} before it deregisters the last pod: \
                         run it with --disable-restricted-sg-rules, or manage the rules yourself",
                        managed_rules.join(", ")
                    );
                }
                text
            }
            Self::Denied { group, text } => format!(
                "Target group {group} may not be asked: {text}. Allow prestop-gate's role elasticloadbalancing:DescribeTargetHealth and \
                 elasticloadbalancing:DescribeTargetGroups, and sts:AssumeRole for groups of other accounts"
            ),
            Self::Credentials { group, text } => format!(
                "Target group {group} can't be asked: {text}. Give prestop-gate's ServiceAccount a role (IRSA or EKS Pod Identity)"
            ),
            Self::NodeTargets { binding } => format!(
                "TargetGroupBinding {binding} registers nodes (targetType instance), so no target group tells when this pod is let go of. \
                 Use targetType ip"
            ),
            Self::BindingsForbidden(text) => {
                format!(
                    "It isn't known which target groups the pod is in: {text}. Apply prestop-gate's RBAC again"
                )
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::confirmer::target_group::GroupId;

    #[test]
    fn each_names_what_it_is_about_and_what_to_change() {
        let service = Sender {
            namespace: "shop".to_owned(),
            name: "web".to_owned(),
        };
        let group = TargetGroup {
            id: GroupId::Name("tg-web".to_owned()),
            role: None,
        };
        let text = "no".to_owned();
        for (trouble, subject, advice) in [
            (
                Trouble::PublishNotReady(service.clone()),
                "Service shop/web",
                "false",
            ),
            (
                Trouble::NoOtherEndpoint {
                    service: service.clone(),
                    managed_rules: Vec::new(),
                },
                "Service shop/web",
                "two replicas",
            ),
            (
                Trouble::NoOtherEndpoint {
                    service,
                    managed_rules: vec!["shop/binding".to_owned()],
                },
                "shop/binding",
                "--disable-restricted-sg-rules",
            ),
            (
                Trouble::Denied {
                    group: group.clone(),
                    text: text.clone(),
                },
                "tg-web",
                "elasticloadbalancing:DescribeTargetHealth",
            ),
            (
                Trouble::Credentials {
                    group,
                    text: text.clone(),
                },
                "tg-web",
                "IRSA",
            ),
            (
                Trouble::NodeTargets {
                    binding: "shop/binding".to_owned(),
                },
                "shop/binding",
                "targetType ip",
            ),
            (
                Trouble::BindingsForbidden("forbidden".to_owned()),
                "forbidden",
                "RBAC",
            ),
        ] {
            let text = trouble.text();
            assert!(text.contains(subject) && text.contains(advice), "{text}");
            // The API's limit on an Event's note is 1024 bytes, and the controller's name comes on top.
            assert!(text.len() < 600, "{} bytes: {text}", text.len());
        }
    }
}

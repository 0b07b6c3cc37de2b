//! Who sends traffic to a pod, as this replica's watches know it at one moment. Plain data, between the watches and
//! the decision.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use super::endpoints::{Seen, Sender};
use super::target_group::{Family, TargetGroup};

/// A Service that sends, or of late sent, to a pod, and what refers to that Service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SenderSeen {
    /// The Service.
    pub sender: Sender,
    /// What its slices say of the pod.
    pub seen: Seen,
    /// The pod's addresses there, also those that left; both families of a dual-stack pod.
    pub addresses: BTreeSet<IpAddr>,
    /// The pod's ports there.
    pub ports: BTreeSet<u16>,
    /// Who else could take the traffic.
    pub others: Others,
    /// The target groups that are bound to it, or were of late.
    pub bindings: Vec<Bound>,
    /// Bindings that register nodes rather than this pod (`targetType: instance`), by namespace and name.
    pub node_bindings: Vec<String>,
    /// A controller that we can't ask and that sends by this Service: a loadBalancerClass or an Ingress's controller.
    pub unknown_controller: Option<String>,
}

/// The other endpoints of a pod's Service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Others {
    /// At least one is ready.
    Ready {
        /// How long there has been one without a break.
        age: Duration,
    },
    /// None is ready, but a pod that isn't terminating is there to become so.
    Starting,
    /// There is none. kube-proxy and load balancers then go on sending to whoever still serves.
    None,
}

/// A target group that a `TargetGroupBinding` ties to a Service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bound {
    /// Namespace and name of the binding.
    pub binding: String,
    /// The group.
    pub group: TargetGroup,
    /// By the binding's `targetGroupProtocol`, or what made it.
    pub family: Option<Family>,
    /// Whether the controller has dealt with the Service's endpoints; `None` where it writes no checkpoint.
    pub checkpoint: Option<Checkpoint>,
    /// Whether the binding is gone by now.
    pub is_gone: bool,
    /// Whether the controller manages the security group's rules (`spec.networking`): it revokes them before it
    /// deregisters the last pod.
    pub manages_rules: bool,
}

/// `elbv2.k8s.aws/checkpoint`: the controller blanks it before it changes a target group, and fills it when it has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Checkpoint {
    /// Whether it is blank: the controller is at work, or failed.
    pub is_blank: bool,
    /// How long this replica has known its present value.
    pub age: Duration,
    /// Whether this replica saw it change to that, rather than finding it so in its first list.
    pub witnessed: bool,
}

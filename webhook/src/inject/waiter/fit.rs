//! What of the waiter depends on the pod around it: its user and its resources.

use serde::Serialize;

use crate::inject::quantity::Quantity;
use crate::inject::view::{Container, Quantities, Resources, SecurityContext, Spec};

/// User of the waiter where the pod level says root, which `runAsNonRoot` would refuse; the same as the image's own.
const WAITER_USER: i64 = 65_532;
/// The waiter idles; the request is what the scheduler sets aside.
const CPU_REQUEST: &str = "5m";
/// Less makes the start of processes in the container slow enough to notice.
const CPU_LIMIT: &str = "100m";
/// 3 MiB of waiter and 3 MiB of binary in the volume, and what the runtime needs to start a process beside it.
const MEMORY: &str = "16Mi";
/// The waiter's own log, rotated by the kubelet.
const EPHEMERAL_STORAGE: &str = "16Mi";

/// The waiter's requests and limits.
#[derive(Debug, Serialize)]
pub(super) struct WaiterResources {
    requests: Amounts,
    limits: Amounts,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
struct Amounts {
    cpu: &'static str,
    memory: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    ephemeral_storage: Option<&'static str>,
}

/// The mains' common user where it isn't root, so that the modes of the app's projected tokens stay as they are (the
/// kubelet makes them 0600 where all containers share one user). Unset where the pod level says the same, or where
/// there is none: then the image's user, or the namespace's range, applies.
pub(super) fn run_as_user(spec: &Spec<'_>) -> Option<i64> {
    let user = |context: &Option<SecurityContext>| {
        context.as_ref().and_then(|context| context.run_as_user)
    };
    let pod_user = user(&spec.security_context);
    let mut users = spec
        .containers
        .iter()
        .flatten()
        .map(|container| user(&container.security_context).or(pod_user));
    let first = users.next().flatten();
    let common = first.filter(|first| *first != 0 && users.all(|user| user == Some(*first)));
    match (common, pod_user) {
        (Some(common), pod_user) => Some(common).filter(|_| pod_user != Some(common)),
        (None, Some(0)) => Some(WAITER_USER),
        (None, _) => None,
    }
}

/// Always set (quotas and autoscalers want them), except where the pod level has them: then a container's own
/// requests must fit into the pod's, which leaves no room.
pub(super) fn resources(spec: &Spec<'_>) -> Option<WaiterResources> {
    let is_empty = |quantities: &Option<Quantities>| {
        quantities
            .as_ref()
            .is_none_or(|quantities| quantities.cpu.is_none() && quantities.memory.is_none())
    };
    if spec
        .resources
        .as_ref()
        .is_some_and(|resources| !is_empty(&resources.requests) || !is_empty(&resources.limits))
    {
        return None;
    }
    let mut containers = spec
        .containers
        .iter()
        .flatten()
        .chain(spec.init_containers.iter().flatten());
    let cpu_request = if containers.all(is_guaranteed) {
        CPU_LIMIT
    } else {
        CPU_REQUEST
    };
    // Where all mains say how much local storage they use, a quota probably makes them.
    let ephemeral_storage = spec
        .containers
        .iter()
        .flatten()
        .all(says_storage)
        .then_some(EPHEMERAL_STORAGE);
    Some(WaiterResources {
        requests: Amounts {
            cpu: cpu_request,
            memory: MEMORY,
            ephemeral_storage,
        },
        limits: Amounts {
            cpu: CPU_LIMIT,
            memory: MEMORY,
            ephemeral_storage,
        },
    })
}

/// The kubelet's rule for one container: CPU and memory limits, and requests that equal them (or default to them).
fn is_guaranteed(container: &Container<'_>) -> bool {
    let amounts = |quantities: &Option<Quantities>| quantities.unwrap_or_default();
    let Some(resources) = &container.resources else {
        return false;
    };
    let (requests, limits) = (amounts(&resources.requests), amounts(&resources.limits));
    let is_equal = |request: Option<Quantity>, limit: Option<Quantity>| {
        limit.is_some_and(|limit| {
            limit.is_positive() && request.is_none_or(|request| request == limit)
        })
    };
    is_equal(requests.cpu, limits.cpu) && is_equal(requests.memory, limits.memory)
}

fn says_storage(container: &Container<'_>) -> bool {
    let said = |quantities: &Option<Quantities>| {
        quantities.is_some_and(|quantities| quantities.ephemeral_storage.is_some())
    };
    container
        .resources
        .as_ref()
        .is_some_and(|Resources { requests, limits }| said(requests) || said(limits))
}

//! Pods that can't be gated, and what their owners can do about it.

use sidecar::contract::{CONTAINER, MOUNT_PATH, TOKEN_VOLUME, VOLUME, annotation};

use super::plan::Plan;
use super::view::{Annotations, Container, PodView, Volume};
use super::{Reason, Skip};

/// Whether the pod as a whole can be gated.
pub(super) fn check_pod(pod: &PodView<'_>, annotations: &Annotations<'_>) -> Result<(), Skip> {
    let spec = &pod.spec;
    let os = spec.os.as_ref().and_then(|os| os.name.as_deref());
    let selected_os = spec
        .node_selector
        .as_ref()
        .and_then(|selector| selector.os.as_deref());
    let silence = format!(
        "set {}: \"false\" on it to silence this",
        annotation::INJECT
    );
    if annotations.mirror {
        return Err(Skip::new(
            Reason::MirrorPod,
            format!("not gated: mirror pods of static pods can't be; {silence}"),
        ));
    }
    if os == Some("windows") || selected_os == Some("windows") {
        return Err(Skip::new(
            Reason::Windows,
            format!("not gated: Windows pods can't be; {silence}"),
        ));
    }
    if spec.termination_grace_period_seconds == Some(0) {
        let warning = "not gated: terminationGracePeriodSeconds is 0, which kills at once; set it to 1 or more".to_owned();
        return Err(Skip::new(Reason::NoGrace, warning));
    }
    let mut containers = spec
        .containers
        .iter()
        .flatten()
        .chain(spec.init_containers.iter().flatten());
    if containers.any(|container| &*container.name == CONTAINER) {
        let warning =
            format!("not gated: a container named {CONTAINER} exists and isn't ours; rename it");
        return Err(Skip::new(Reason::Collision, warning));
    }
    match spec
        .volumes
        .iter()
        .flatten()
        .find(|volume| matches!(&*volume.name, VOLUME | TOKEN_VOLUME))
    {
        Some(Volume { name }) => Err(Skip::new(
            Reason::Collision,
            format!(
                "not gated: a volume named {} exists and isn't ours; rename it",
                &**name
            ),
        )),
        None => Ok(()),
    }
}

/// Whether our mounts have room in every container of a plan.
pub(super) fn check_paths(plan: &Plan<'_>) -> Result<(), Skip> {
    match plan
        .gated
        .iter()
        .find_map(|gated| path_collision(gated.container))
    {
        Some(collision) => Err(Skip::new(
            Reason::Collision,
            format!("not gated: {collision}"),
        )),
        None => Ok(()),
    }
}

/// Something of others at the place where a container's mount must go.
pub(super) fn path_collision(container: &Container<'_>) -> Option<String> {
    let mounts = container
        .volume_mounts
        .iter()
        .flatten()
        .filter(|mount| &*mount.name != VOLUME);
    let devices = container
        .volume_devices
        .iter()
        .flatten()
        .map(|device| &*device.device_path);
    let path = mounts
        .map(|mount| &*mount.mount_path)
        .chain(devices)
        .find(|path| is_ours(path))?;
    Some(format!(
        "container {} has a volume at {path}, where ours must go; mount it elsewhere",
        &*container.name
    ))
}

/// Our mount path itself, with or without a slash at its end, or a place inside it (which would hide the waiter's files).
fn is_ours(path: &str) -> bool {
    path.strip_prefix(MOUNT_PATH)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

//! Turns a plan into operations, and leaves out those that would change nothing.

use std::collections::BTreeMap;

use sidecar::contract::{LABEL_INJECTED, MOUNT_PATH, VOLUME, annotation};

use super::config::InjectConfig;
use super::hooks::Hook;
use super::options::Options;
use super::patch::{PatchWriter, escape};
use super::plan::{Gated, Plan, Waiter, Wrap};
use super::view::{Annotations, Container, PodView, Probe, SAFE_TO_EVICT_VOLUMES, Spec};
use super::waits::Waits;
use super::{inbound, status, waiter};

/// The patch of a gated pod; `None` where it has all that already.
pub(super) fn gate(
    pod: &PodView<'_>,
    plan: &Plan<'_>,
    options: &Options<'_>,
    config: &InjectConfig,
) -> Option<String> {
    let mut patch = PatchWriter::default();
    for gated in &plan.gated {
        gate_container(&mut patch, gated, &plan.waits, options);
    }
    for (list, containers) in [
        ("containers", &pod.spec.containers),
        ("initContainers", &pod.spec.init_containers),
    ] {
        for (index, container) in containers.iter().flatten().enumerate() {
            let is_gated =
                list == "containers" && plan.gated.iter().any(|gated| gated.index == index);
            keep_probe_grace(
                &mut patch,
                &format!("/spec/{list}/{index}"),
                container,
                plan.waits.probe_grace_seconds(is_gated),
            );
        }
    }
    add_waiter(&mut patch, &pod.spec, plan, config);
    raise_grace(&mut patch, &pod.spec, &plan.waits);
    let metadata = Gate {
        is_changed: !patch.is_empty(),
        plan,
        config,
    };
    metadata.mark(&mut patch, pod);
    patch.finish()
}

/// The patch that only says in the status annotation why a pod isn't gated; `None` where it says so already.
pub(super) fn say(pod: &PodView<'_>, status: &str) -> Option<String> {
    let mut patch = PatchWriter::default();
    let current = pod
        .metadata
        .annotations
        .as_ref()
        .and_then(|annotations| annotations.get(annotation::STATUS));
    if current != Some(status) {
        set_members(
            &mut patch,
            "/metadata/annotations",
            pod.metadata.annotations.is_some(),
            &[(annotation::STATUS, status)],
        );
    }
    patch.finish()
}

fn gate_container(
    patch: &mut PatchWriter,
    gated: &Gated<'_>,
    waits: &Waits,
    options: &Options<'_>,
) {
    let Gated {
        index,
        container,
        wrap,
    } = gated;
    let at = format!("/spec/containers/{index}");
    let mounts = container.volume_mounts.as_deref();
    if !mounts
        .unwrap_or_default()
        .iter()
        .any(|mount| &*mount.name == VOLUME && &*mount.mount_path == MOUNT_PATH)
    {
        patch.append(
            &format!("{at}/volumeMounts"),
            mounts.is_some(),
            &[waiter::GATED_MOUNT],
        );
    }
    let Some(Wrap { min_hold, original }) = wrap else {
        return;
    };
    let handler = Hook {
        container: &container.name,
        max_wait: waits.max_wait,
        fallback_wait: waits.fallback_wait,
        min_hold: *min_hold,
        liveness_cap: waits.liveness_cap(container),
        original,
        original_first: options.original_first,
    }
    .handler();
    // Only preStop: postStart and stopSignal beside it stay untouched.
    match &container.lifecycle {
        None => patch.add(
            &format!("{at}/lifecycle"),
            &BTreeMap::from([("preStop", handler)]),
        ),
        Some(lifecycle) if lifecycle.pre_stop.is_none() => {
            patch.add(&format!("{at}/lifecycle/preStop"), &handler);
        }
        Some(_) => patch.replace(&format!("{at}/lifecycle/preStop"), &handler),
    }
}

fn keep_probe_grace(patch: &mut PatchWriter, at: &str, container: &Container<'_>, seconds: i64) {
    let set = |patch: &mut PatchWriter, name: &str, probe: &Option<Probe>| {
        if probe
            .as_ref()
            .is_some_and(|probe| probe.termination_grace_period_seconds.is_none())
        {
            patch.add(
                &format!("{at}/{name}/terminationGracePeriodSeconds"),
                &seconds,
            );
        }
    };
    set(patch, "livenessProbe", &container.liveness_probe);
    set(patch, "startupProbe", &container.startup_probe);
}

fn add_waiter(patch: &mut PatchWriter, spec: &Spec<'_>, plan: &Plan<'_>, config: &InjectConfig) {
    match &plan.waiter {
        Waiter::Missing => {
            // Last: it starts after a mesh's sidecar and stops before it, so that it has a network while it waits.
            let mut arguments = plan.waits.run_arguments(&config.server_name);
            arguments.extend(inbound::arguments(spec));
            let container = waiter::container(spec, arguments, config);
            patch.append(
                "/spec/initContainers",
                spec.init_containers.is_some(),
                &[container],
            );
            patch.append("/spec/volumes", spec.volumes.is_some(), &waiter::volumes());
        }
        Waiter::Present {
            index,
            arguments,
            min_hold,
        } if plan.waits.min_hold > *min_hold => {
            // All others stay as they are: this waiter may be of a version that knows no more.
            patch.replace(
                &format!("/spec/initContainers/{index}/args"),
                &plan.waits.with_min_hold(arguments),
            );
        }
        Waiter::Present { .. } => {}
    }
}

fn raise_grace(patch: &mut PatchWriter, spec: &Spec<'_>, waits: &Waits) {
    const PATH: &str = "/spec/terminationGracePeriodSeconds";
    let needed = waits.grace_seconds();
    match spec.termination_grace_period_seconds {
        None => patch.add(PATH, &needed),
        Some(current) if current < needed => patch.replace(PATH, &needed),
        Some(_) => {}
    }
}

struct Gate<'g> {
    is_changed: bool,
    plan: &'g Plan<'g>,
    config: &'g InjectConfig,
}

impl Gate<'_> {
    fn mark(&self, patch: &mut PatchWriter, pod: &PodView<'_>) {
        let annotations = pod.metadata.annotations.as_ref();
        let evictable = evictable_volumes(annotations);
        let mut set: Vec<(&str, &str)> = evictable
            .iter()
            .map(|list| (SAFE_TO_EVICT_VOLUMES, &**list))
            .collect();
        // A second pass that finds nothing to do leaves the status of the first, which may be another version's.
        let has_status =
            annotations.is_some_and(|annotations| annotations.get(annotation::STATUS).is_some());
        let status = (self.is_changed || !has_status)
            .then(|| status::injected(self.plan, &self.config.version));
        set.extend(status.iter().map(|status| (annotation::STATUS, &**status)));
        set_members(patch, "/metadata/annotations", annotations.is_some(), &set);
        let labels = pod.metadata.labels.as_ref();
        if labels.and_then(|labels| labels.get(LABEL_INJECTED)) != Some("true") {
            set_members(
                patch,
                "/metadata/labels",
                labels.is_some(),
                &[(LABEL_INJECTED, "true")],
            );
        }
    }
}

/// The cluster autoscaler's list with our volume, where it isn't in it yet.
fn evictable_volumes(annotations: Option<&Annotations<'_>>) -> Option<String> {
    let list = annotations
        .and_then(|annotations| annotations.safe_to_evict_volumes.as_deref())
        .unwrap_or_default();
    if list.split(',').any(|name| name.trim() == VOLUME) {
        return None;
    }
    Some(if list.trim().is_empty() {
        VOLUME.to_owned()
    } else {
        format!("{list},{VOLUME}")
    })
}

/// Sets members of an object that may be absent.
fn set_members(patch: &mut PatchWriter, object: &str, is_there: bool, members: &[(&str, &str)]) {
    if is_there {
        for (key, value) in members {
            patch.add(&format!("{object}/{}", escape(key)), value);
        }
    } else if !members.is_empty() {
        patch.add(object, &members.iter().copied().collect::<BTreeMap<_, _>>());
    }
}

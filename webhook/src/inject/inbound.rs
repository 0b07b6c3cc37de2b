//! What the waiter has to know of a pod's inbound connections: whose network it looks at, and how many of them are the
//! kubelet's own.

use std::collections::BTreeMap;

use sidecar::contract::flag;

use super::view::{Connect, Container, Port, Spec};

/// periodSeconds that the API server fills in.
const DEFAULT_PERIOD_SECONDS: i64 = 10;

/// Arguments of the waiter beside those of its waits.
pub(super) fn arguments(spec: &Spec<'_>) -> Vec<String> {
    let mut arguments = Vec::new();
    if spec.host_network == Some(true) {
        arguments.push(format!("--{}", flag::HOST_NETWORK));
    }
    for (port, per_minute) in probes_per_minute(spec) {
        // Enough digits for any period; whoever counts connections rounds anyway.
        let per_minute = (per_minute * 1000.0).round() / 1000.0;
        arguments.push(format!("--{}={port}:{per_minute}", flag::PROBES));
    }
    arguments
}

/// Connections of readiness probes to the pod, by port. Liveness and startup probes end with the deletion.
fn probes_per_minute(spec: &Spec<'_>) -> BTreeMap<u16, f64> {
    let mut by_port = BTreeMap::new();
    for container in spec.containers.iter().flatten() {
        let Some(probe) = &container.readiness_probe else {
            continue;
        };
        let connects = [&probe.http_get, &probe.tcp_socket, &probe.grpc];
        let mut ports = connects.into_iter().flatten();
        let Some(port) = ports.find_map(|connect| port(connect, container)) else {
            continue;
        };
        let period = probe.period_seconds.filter(|seconds| *seconds > 0);
        let period = u32::try_from(period.unwrap_or(DEFAULT_PERIOD_SECONDS)).unwrap_or(u32::MAX);
        *by_port.entry(port).or_insert(0.0) += 60.0 / f64::from(period);
    }
    by_port
}

/// The pod's own port that a probe connects to; a probe of another host isn't inbound.
fn port(connect: &Connect<'_>, container: &Container<'_>) -> Option<u16> {
    if connect.host.as_ref().is_some_and(|host| !host.is_empty()) {
        return None;
    }
    let number = match connect.port.as_ref()? {
        Port::Number(number) => *number,
        Port::Name(name) => {
            let mut ports = container.ports.iter().flatten();
            let port = ports.find(|port| port.name.as_deref() == Some(&**name))?;
            port.container_port?
        }
    };
    u16::try_from(number).ok().filter(|port| *port > 0)
}

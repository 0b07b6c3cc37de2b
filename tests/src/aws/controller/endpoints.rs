//! Which targets a binding wants, and by what checkpoint it knows that they are the same as before. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::net::{IpAddr, SocketAddr};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use serde_json::Value;
use sha2::{Digest, Sha256};

/// Targets, and the uid of the pod behind each.
pub(super) type Wanted = BTreeMap<SocketAddr, String>;

/// The ready endpoints of the Service's port; ready is what isn't said not to be. That an endpoint
/// is terminating matters only as far as it isn't ready then, unless the Service publishes addresses
/// that aren't. None when the Service has no such port.
pub(super) fn wanted<'a>(
    service: &Service,
    port: &IntOrString,
    slices: impl IntoIterator<Item = &'a EndpointSlice>,
) -> Option<Wanted> {
    let ports = service.spec.as_ref()?.ports.as_deref().unwrap_or_default();
    let port = ports.iter().find(|candidate| match port {
        IntOrString::Int(number) => candidate.port == *number,
        IntOrString::String(name) => candidate.name.as_ref() == Some(name),
    })?;
    // A slice knows the Service's port by name only, and one without a name by the empty one.
    let name = port.name.as_deref().unwrap_or_default();
    let mut wanted = Wanted::new();
    for slice in slices {
        let ports = slice.ports.iter().flatten();
        let port = ports
            .filter(|port| port.name.as_deref().unwrap_or_default() == name)
            .find_map(|port| u16::try_from(port.port?).ok());
        let Some(port) = port else { continue };
        for endpoint in &slice.endpoints {
            let conditions = endpoint.conditions.as_ref();
            let is_ready = conditions
                .and_then(|conditions| conditions.ready)
                .unwrap_or(true);
            let address = endpoint.addresses.first();
            let address = address.and_then(|address| address.parse::<IpAddr>().ok());
            if let (true, Some(address)) = (is_ready, address) {
                let pod = endpoint.target_ref.as_ref().and_then(|pod| pod.uid.clone());
                wanted.insert(SocketAddr::new(address, port), pod.unwrap_or_default());
            }
        }
    }
    Some(wanted)
}

/// A hash of the targets and one of the spec. The real one takes the pod's creation time where this
/// takes its uid; what goes in differs between its versions, too.
pub(super) fn checkpoint(wanted: &Wanted, spec: &Value) -> String {
    let mut targets = String::new();
    for (target, pod) in wanted {
        let _ = write!(targets, "{}:{}:{pod},", target.ip(), target.port());
    }
    let hash = |text: &str| URL_SAFE_NO_PAD.encode(Sha256::digest(text.as_bytes()));
    format!("{}/{}", hash(&targets), hash(&spec.to_string()))
}

/// What is to be done to a target group.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Plan {
    pub(super) deregister: Vec<SocketAddr>,
    pub(super) register: Vec<SocketAddr>,
}

/// Compares what is wanted with what the API lists, each target with its state. Draining ones are
/// left alone, and like the real one this takes `unhealthy.draining` for draining: such a target is *not*
/// deregistered. `ours` limits deregistration in a target group that others use too.
pub(super) fn plan(
    wanted: &Wanted,
    listed: &[(SocketAddr, String)],
    ours: Option<&BTreeSet<SocketAddr>>,
) -> Plan {
    let standing: BTreeSet<SocketAddr> = listed
        .iter()
        .filter(|(_, state)| !matches!(state.as_str(), "draining" | "unhealthy.draining"))
        .map(|(target, _)| *target)
        .collect();
    let may_go = |target: &SocketAddr| ours.is_none_or(|ours| ours.contains(target));
    Plan {
        deregister: standing
            .iter()
            .filter(|target| !wanted.contains_key(target) && may_go(target))
            .copied()
            .collect(),
        register: wanted
            .keys()
            .filter(|target| !standing.contains(target))
            .copied()
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn mk_service() -> Service {
        serde_json::from_value(json!({"spec": {"ports": [
            {"name": "http", "port": 80, "targetPort": 8080},
            {"name": "admin", "port": 81, "targetPort": "admin"},
        ]}}))
        .unwrap()
    }

    fn mk_slice(endpoints: &Value) -> EndpointSlice {
        serde_json::from_value(json!({
            "metadata": {"name": "a"},
            "addressType": "IPv4",
            "ports": [{"name": "admin", "port": 9090}, {"name": "http", "port": 8080}],
            "endpoints": endpoints,
        }))
        .unwrap()
    }

    fn mk_wanted<const N: usize>(targets: [&str; N]) -> Wanted {
        targets
            .map(|target| (target.parse().unwrap(), String::new()))
            .into()
    }

    #[test]
    fn endpoints_are_wanted_while_ready_also_when_they_terminate() {
        let slice = mk_slice(&json!([
            {"addresses": ["10.0.0.1"], "conditions": {"ready": true}},
            {"addresses": ["10.0.0.2"], "conditions": {"ready": false, "serving": true, "terminating": true}},
            {"addresses": ["10.0.0.3"], "conditions": {"ready": true, "terminating": true}},
            {"addresses": ["10.0.0.4"]},
        ]));
        for (port, wanted_port) in [
            (IntOrString::Int(80), 8080),
            (IntOrString::String("admin".to_owned()), 9090),
        ] {
            let wanted = wanted(&mk_service(), &port, [&slice]).unwrap();
            let expected = [1, 3, 4].map(|last| SocketAddr::from(([10, 0, 0, last], wanted_port)));
            assert_eq!(wanted.into_keys().collect::<Vec<_>>(), expected);
        }
        assert_eq!(wanted(&mk_service(), &IntOrString::Int(82), [&slice]), None);
    }

    #[test]
    fn checkpoint_changes_with_targets_pods_and_spec() {
        let spec = json!({"serviceRef": {"name": "shop", "port": 80}});
        let one = mk_wanted(["10.0.0.1:80"]);
        let same = checkpoint(&one, &spec);
        assert_eq!(checkpoint(&one.clone(), &spec), same);
        assert_ne!(checkpoint(&mk_wanted(["10.0.0.2:80"]), &spec), same);
        assert_ne!(checkpoint(&one, &json!({})), same);
        let other_pod = one
            .keys()
            .map(|target| (*target, "uid".to_owned()))
            .collect();
        assert_ne!(checkpoint(&other_pod, &spec), same);
    }

    #[test]
    fn plan_leaves_draining_targets_and_those_of_others_alone() {
        let wanted = mk_wanted(["10.0.0.1:80", "10.0.0.2:80", "10.0.0.3:80"]);
        let listed = [
            ("10.0.0.1:80", "healthy"),
            ("10.0.0.2:80", "draining"),
            ("10.0.0.4:80", "healthy"),
            ("10.0.0.5:80", "unhealthy.draining"),
            ("10.0.0.6:80", "draining"),
            ("10.0.0.7:80", "unhealthy"),
        ]
        .map(|(target, state)| (target.parse().unwrap(), state.to_owned()));
        let [two, three, four, seven] =
            ["10.0.0.2:80", "10.0.0.3:80", "10.0.0.4:80", "10.0.0.7:80"]
                .map(|target| target.parse().unwrap());
        let all = plan(&wanted, &listed, None);
        assert_eq!(all.deregister, [four, seven]);
        assert_eq!(all.register, [two, three]);
        assert_eq!(
            plan(&wanted, &listed, Some(&[seven].into())).deregister,
            [seven]
        );
    }
}

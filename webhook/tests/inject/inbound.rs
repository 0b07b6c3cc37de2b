//! What the waiter is told of its pod's inbound connections.

use serde_json::{Value, json};

use crate::support::*;

/// The waiter's arguments that aren't about waits.
fn inbound(pod: &Value) -> Vec<String> {
    let arguments = waiter(pod)["args"].as_array().unwrap().iter();
    let arguments = arguments.map(|argument| argument.as_str().unwrap().to_owned());
    arguments
        .filter(|argument| argument.starts_with("--probes") || argument == "--host-network")
        .collect()
}

fn probed(probe: &Value) -> Vec<String> {
    let ports = json!([{"containerPort": 9000}, {"name": "http", "containerPort": 8080}]);
    inbound(&injected(&mk_pod(
        json!({"ports": ports, "readinessProbe": probe}),
    )))
}

#[test]
fn readiness_probes_that_connect_are_counted_by_port_and_minute() {
    for (probe, expected) in [
        (
            json!({"httpGet": {"port": 8080, "path": "/"}, "periodSeconds": 5}),
            Some("8080:12"),
        ),
        (
            json!({"httpGet": {"port": "http", "scheme": "HTTPS"}, "periodSeconds": 10}),
            Some("8080:6"),
        ),
        (
            json!({"tcpSocket": {"port": 9000}, "periodSeconds": 7}),
            Some("9000:8.571"),
        ),
        (
            json!({"grpc": {"port": 9000, "service": ""}, "periodSeconds": 120}),
            Some("9000:0.5"),
        ),
        // The API server's default.
        (json!({"tcpSocket": {"port": 8080}}), Some("8080:6")),
        (
            json!({"tcpSocket": {"port": 8080}, "periodSeconds": 0}),
            Some("8080:6"),
        ),
        (
            json!({"exec": {"command": ["/ready"]}, "periodSeconds": 5}),
            None,
        ),
        (json!({"httpGet": {"port": "metrics"}}), None),
        (
            json!({"httpGet": {"port": 8080, "host": "192.0.2.1"}}),
            None,
        ),
        (json!({"httpGet": {"port": 70000}}), None),
        (json!({"httpGet": {}}), None),
        (json!(null), None),
    ] {
        let expected: Vec<_> = expected.iter().map(|e| format!("--probes={e}")).collect();
        assert_eq!(probed(&probe), expected, "{probe}");
    }
}

#[test]
fn probes_of_one_port_add_up_over_the_containers() {
    let probe =
        |port: u16, period: u32| json!({"tcpSocket": {"port": port}, "periodSeconds": period});
    let mut pod = mk_pod(json!({"readinessProbe": probe(8080, 5)}));
    pod["spec"]["containers"].as_array_mut().unwrap().extend([
        json!({"name": "b", "readinessProbe": probe(8080, 20)}),
        json!({"name": "c", "readinessProbe": probe(80, 60)}),
    ]);
    assert_eq!(
        inbound(&injected(&pod)),
        ["--probes=80:1", "--probes=8080:15"]
    );
}

/// They end with the deletion, so that they can't be taken for traffic.
#[test]
fn liveness_and_startup_probes_are_not_counted() {
    let probe = json!({"tcpSocket": {"port": 8080}});
    let pod = mk_pod(json!({"livenessProbe": probe, "startupProbe": probe}));
    assert_eq!(inbound(&injected(&pod)), Vec::<String>::new());
}

#[test]
fn waiter_is_told_of_its_nodes_network() {
    for (host_network, expected) in [
        (json!(true), vec!["--host-network"]),
        (json!(false), vec![]),
        (json!(null), vec![]),
    ] {
        let mut pod = mk_pod(json!({}));
        pod["spec"]["hostNetwork"] = host_network;
        assert_eq!(inbound(&injected(&pod)), expected);
    }
}

/// Its waiter may be of a version that knows no more than it was given.
#[test]
fn second_pass_leaves_what_the_first_said() {
    let mut first = injected(&mk_pod(
        json!({"readinessProbe": {"tcpSocket": {"port": 8080}}}),
    ));
    first["spec"]["initContainers"][0]["args"]
        .as_array_mut()
        .unwrap()
        .push(json!("--newer=1"));
    let late = json!({"name": "late", "readinessProbe": {"tcpSocket": {"port": 80}}, "lifecycle": {"preStop": {"sleep": {"seconds": 9}}}});
    first["spec"]["containers"]
        .as_array_mut()
        .unwrap()
        .push(late);
    let second = injected(&first);
    assert_eq!(inbound(&second), ["--probes=8080:6"]);
    let arguments = waiter(&second)["args"].as_array().unwrap();
    assert!(arguments.contains(&json!("--newer=1")) && arguments.contains(&json!("--min-hold=9")));
}

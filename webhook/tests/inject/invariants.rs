//! What holds for every pod: arguments that the waiter understands, and nothing unknown lost.

use std::ffi::OsString;
use std::time::Duration;

use serde_json::{Value, json};
use sidecar::args::{Command, parse};
use sidecar::contract::{self, annotation};

use crate::support::*;

fn os(arguments: &Value) -> Vec<OsString> {
    arguments
        .as_array()
        .unwrap()
        .iter()
        .map(|argument| argument.as_str().unwrap().into())
        .collect()
}

#[test]
fn the_waiter_reads_back_what_it_is_given() {
    let mut pod = mk_pod(json!({
        "name": "web",
        "livenessProbe": {"terminationGracePeriodSeconds": 25},
        "lifecycle": {"preStop": {"exec": {"command": ["/bye", "--max-wait=1", "--", "-x"]}}},
    }));
    pod["spec"]["containers"]
        .as_array_mut()
        .unwrap()
        .push(json!({"name": "b", "lifecycle": {"preStop": {"sleep": {"seconds": 7}}}}));
    for (key, value) in [
        (annotation::MAX_WAIT, "1m30s"),
        (annotation::FALLBACK_WAIT, "2500ms"),
        (annotation::SETTLE, "20s"),
        (annotation::ORIGINAL, "before"),
    ] {
        pod["metadata"]["annotations"][key] = json!(value);
    }
    pod["spec"]["hostNetwork"] = json!(true);
    pod["spec"]["containers"][0]["readinessProbe"] =
        json!({"tcpSocket": {"port": 8080}, "periodSeconds": 40});
    let patched = injected(&pod);

    let Command::Run(run) = parse(os(&waiter(&patched)["args"])).unwrap() else {
        panic!("not run")
    };
    assert_eq!(run.original_grace, Duration::from_secs(30));
    assert_eq!(run.max_wait, Duration::from_secs(90));
    assert_eq!(run.min_hold, Duration::from_secs(7));
    assert_eq!(run.fallback_wait, Duration::from_millis(2500));
    assert_eq!(run.settle, Some(Duration::from_secs(20)));
    assert_eq!(run.server_name, config().server_name);
    assert!(run.host_network);
    assert_eq!(run.probes, [(8080, 1.5)].into());

    let command = |index: usize| {
        patched["spec"]["containers"][index]["lifecycle"]["preStop"]["exec"]["command"].clone()
    };
    let Command::Hook(web) = parse(os(&command(0)).split_off(1)).unwrap() else {
        panic!("not hook")
    };
    assert_eq!(
        (web.container.as_str(), web.max_wait),
        ("web", Duration::from_secs(90))
    );
    assert_eq!(
        (web.min_hold, web.fallback_wait),
        (Duration::ZERO, Duration::from_millis(2500))
    );
    assert_eq!(
        (web.liveness_cap, web.original_first),
        (Some(Duration::from_millis(12_500)), true)
    );
    assert_eq!(web.original, ["/bye", "--max-wait=1", "--", "-x"]);

    let Command::Hook(b) = parse(os(&command(1)).split_off(1)).unwrap() else {
        panic!("not hook")
    };
    assert_eq!(
        (b.container.as_str(), b.min_hold),
        ("b", Duration::from_secs(7))
    );
    assert_eq!((b.liveness_cap, b.original_first), (None, false));
    assert!(b.original.is_empty());

    let ready = waiter(&patched)["lifecycle"]["postStart"]["exec"]["command"].clone();
    assert!(matches!(
        parse(os(&ready).split_off(1)),
        Ok(Command::Ready(_))
    ));
    assert_eq!(ready[0], contract::IMAGE_BINARY_PATH);
    assert_eq!(command(0)[0], contract::BINARY_PATH);
}

/// Puts a field that no version knows into every object of a document.
fn add_unknown_fields(value: &mut Value) {
    match value {
        Value::Object(members) => {
            members.values_mut().for_each(add_unknown_fields);
            members.insert("x~new/field".to_owned(), json!({"a~b/c": [1, null, "ü"]}));
        }
        Value::Array(items) => items.iter_mut().for_each(add_unknown_fields),
        _ => {}
    }
}

/// Whether all of `part` is in `whole`, lists' items in their place.
fn contains(whole: &Value, part: &Value) -> bool {
    match (whole, part) {
        (Value::Object(whole), Value::Object(part)) => part
            .iter()
            .all(|(key, value)| whole.get(key).is_some_and(|whole| contains(whole, value))),
        (Value::Array(whole), Value::Array(part)) => {
            whole.len() >= part.len()
                && whole
                    .iter()
                    .zip(part)
                    .all(|(whole, part)| contains(whole, part))
        }
        (whole, part) => whole == part,
    }
}

/// E3: typed libraries dropped what they didn't know, among it `restartPolicy` of init containers.
#[test]
fn unknown_fields_survive_everywhere() {
    let mut pod = mk_pod(json!({
        "volumeMounts": [{"name": "data", "mountPath": "/data"}],
        "lifecycle": {"postStart": {"exec": {"command": ["x"]}}},
        "livenessProbe": {"grpc": {"port": 1}},
        "env": [{"name": "A", "value": "b"}],
        "resources": {"limits": {"example.com/gpu": "1"}},
    }));
    pod["spec"]["initContainers"] = json!([{"name": "init", "restartPolicy": "Always"}]);
    pod["spec"]["containers"]
        .as_array_mut()
        .unwrap()
        .push(json!({"name": "b"}));
    add_unknown_fields(&mut pod);
    // Annotations and labels have text values only, in any version.
    pod["metadata"]["annotations"]["x~new/field"] = json!("y");
    pod["metadata"]["labels"]["x~new/field"] = json!("y");
    let webhook::inject::Outcome::Patched { patch, .. } = run(&pod) else {
        panic!("{:?}", run(&pod))
    };
    let patched = apply(&pod, &patch);
    let mut before = pod.clone();
    // The two values that are meant to change.
    before["spec"]
        .as_object_mut()
        .unwrap()
        .remove("terminationGracePeriodSeconds");
    assert!(contains(&patched, &before), "{patched:#}");
    assert_eq!(hook(&patched, 1)[1], "hook");
}

/// Random pods out of a small generator with a fixed seed, so that a failure can be repeated.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).unwrap() % bound
    }

    fn pick(&mut self, choices: &[Value]) -> Value {
        choices[self.below(choices.len())].clone()
    }

    fn object(&mut self, choices: &[(&str, &[Value])]) -> Value {
        let mut object = json!({});
        for (key, values) in choices {
            if self.below(2) == 0 {
                object[*key] = self.pick(values);
            }
        }
        object
    }

    fn container(&mut self, name: &str) -> Value {
        let pre_stops = [
            Value::Null,
            json!({"exec": {"command": ["/bye", "ü\"\\\n"]}}),
            json!({"exec": {"command": ["sleep", "15"]}}),
            json!({"exec": {"command": ["sh", "-c", "sleep 45"]}}),
            json!({"exec": {"command": ["/prestop-gate/bin/waiter", "hook", "--min-hold=3", "--", "x"]}}),
            json!({"sleep": {"seconds": 3}}),
            json!({"httpGet": {"port": "http"}}),
        ];
        let mut lifecycle = self.object(&[
            ("preStop", &pre_stops),
            ("postStart", &[json!({"exec": {"command": ["y"]}})]),
        ]);
        lifecycle["stopSignal"] = json!("SIGINT");
        let probes = [
            json!({}),
            json!({"terminationGracePeriodSeconds": 3}),
            json!({"periodSeconds": 1}),
        ];
        let mut container = self.object(&[
            ("lifecycle", &[lifecycle, json!({}), Value::Null]),
            ("livenessProbe", &probes),
            ("startupProbe", &probes),
            ("readinessProbe", &probes),
            (
                "volumeMounts",
                &[
                    json!([]),
                    json!([{"name": "d", "mountPath": "/d"}]),
                    Value::Null,
                ],
            ),
            (
                "securityContext",
                &[
                    json!({}),
                    json!({"runAsUser": 0}),
                    json!({"runAsUser": 1000}),
                ],
            ),
            (
                "resources",
                &[json!({}), json!({"limits": {"cpu": "1", "memory": "1Gi"}})],
            ),
        ]);
        container["name"] = json!(name);
        container
    }

    fn pod(&mut self) -> Value {
        let texts = [
            json!("true"),
            json!("60s"),
            json!("app"),
            json!("after"),
            json!("banana"),
            json!("a\nb"),
        ];
        let metadata = [
            (annotation::MAX_WAIT, &texts[..]),
            (annotation::CONTAINERS, &texts[..]),
            (annotation::ORIGINAL, &texts[..]),
            ("a~b/c", &texts[..]),
        ];
        let annotations = if self.below(3) > 0 {
            json!({"team": "x"})
        } else {
            self.object(&metadata)
        };
        let inits: Value = (0..self.below(3))
            .map(|index| self.container(&format!("init{index}")))
            .collect();
        let mut spec = self.object(&[
            (
                "volumes",
                &[
                    json!([]),
                    json!([{"name": "d", "emptyDir": {}}]),
                    Value::Null,
                ],
            ),
            (
                "terminationGracePeriodSeconds",
                &[
                    json!(0),
                    json!(1),
                    json!(30),
                    json!(600),
                    json!(-1),
                    json!(i64::MAX),
                ],
            ),
            (
                "securityContext",
                &[json!({"runAsUser": 0}), json!({"fsGroup": 1})],
            ),
            ("resources", &[json!({"limits": {"cpu": "1"}})]),
            ("initContainers", &[inits, Value::Null]),
        ]);
        spec["containers"] = (0..=self.below(3))
            .map(|index| self.container(["app", "b", "c"][index]))
            .collect();
        json!({"metadata": self.object(&[("annotations", &[annotations, Value::Null]), ("labels", &[json!({"x": "y"})])]), "spec": spec})
    }
}

#[test]
fn any_pod_can_be_patched_twice_the_second_time_without_effect() {
    let mut random = Random(42);
    let mut injections = 0;
    for _ in 0..1000 {
        let pod = random.pod();
        let webhook::inject::Outcome::Patched { patch, reason, .. } = run(&pod) else {
            panic!("unchanged: {pod}")
        };
        let patched = apply(&pod, &patch);
        assert!(
            matches!(run(&patched), webhook::inject::Outcome::Unchanged { .. }),
            "{pod}\n{patched}\n{:?}",
            run(&patched)
        );
        let typed: Result<k8s_openapi::api::core::v1::Pod, _> =
            serde_json::from_value(patched.clone());
        assert!(typed.is_ok(), "{typed:?} {patched}");
        if reason == webhook::inject::Reason::Injected {
            injections += 1;
            for container in patched["spec"]["containers"].as_array().unwrap() {
                let command = &container["lifecycle"]["preStop"]["exec"]["command"];
                if command[0] == contract::BINARY_PATH
                    && status(&patched)["containers"]
                        .as_array()
                        .unwrap()
                        .contains(&container["name"])
                {
                    let parsed = parse(os(command).split_off(1));
                    assert!(
                        matches!(&parsed, Ok(Command::Hook(hook)) if container["name"] == hook.container.as_str()),
                        "{parsed:?}"
                    );
                }
            }
            assert!(matches!(
                parse(os(&waiter(&patched)["args"])),
                Ok(Command::Run(_))
            ));
        }
    }
    assert!(
        injections > 300,
        "the generator must mostly make pods that can be gated: {injections}"
    );
}

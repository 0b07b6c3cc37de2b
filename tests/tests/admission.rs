//! What a real API server does with the webhook's answers.
#![allow(clippy::unwrap_used, reason = "a test that fails shows where")]

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::api::{DynamicObject, ListParams, PostParams};
use kube::core::GroupVersionKind;
use kube::{Api, ResourceExt, discovery::ApiResource};
use serde_json::{Value, json};
use sidecar::contract::{
    INJECTION_ENABLED, LABEL_INJECTED, LABEL_INJECTION, NAMESPACE, annotation,
};
use tests::gate::{GatedPod, SOON, cluster, is_gated, mk_app, namespace};
use tests::layout::workspace;
use tests::{TestNamespace, http, images, process};

/// What the API server would make of a pod: a dry run.
async fn admit(namespace: &TestNamespace, pod: Value) -> Pod {
    let pod: Pod = serde_json::from_value(pod).unwrap();
    namespace
        .api::<Pod>()
        .create(
            &PostParams {
                dry_run: true,
                ..PostParams::default()
            },
            &pod,
        )
        .await
        .unwrap()
}

fn annotated(name: &str, key: &str, value: &str) -> Value {
    let mut app = mk_app(name);
    app["metadata"]["annotations"] = json!({key: value});
    app
}

#[tokio::test]
async fn namespace_without_the_label_and_pods_that_opt_out_are_untouched() {
    let plain = TestNamespace::create(&cluster().await.unwrap(), "plain", &[])
        .await
        .unwrap();
    let untouched = admit(&plain, annotated("a", annotation::INJECT, "true")).await;
    assert!(!is_gated(&untouched) && untouched.spec.unwrap().init_containers.is_none());
    let all = namespace("all").await.unwrap();
    let untouched = admit(&all, annotated("a", annotation::INJECT, "false")).await;
    assert_eq!(
        untouched.annotations().len(),
        1,
        "{:?}",
        untouched.annotations()
    );
    assert!(!is_gated(&untouched));
    assert!(is_gated(&admit(&all, mk_app("a")).await));
}

#[tokio::test]
async fn label_enabled_gates_pods_that_ask_for_it() {
    let labels = [(LABEL_INJECTION, INJECTION_ENABLED)];
    let namespace = TestNamespace::create(&cluster().await.unwrap(), "enabled", &labels)
        .await
        .unwrap();
    assert!(!is_gated(&admit(&namespace, mk_app("a")).await));
    assert!(!is_gated(
        &admit(&namespace, annotated("a", annotation::INJECT, "false")).await
    ));
    assert!(is_gated(
        &admit(&namespace, annotated("a", annotation::INJECT, "true")).await
    ));
}

#[tokio::test]
async fn wrong_value_admits_the_pod_without_the_gate_and_says_so_three_times() {
    let namespace = namespace("wrong").await.unwrap();
    let before = metric(&namespace, "invalid-annotation").await;
    let cases = [
        ("max-wait", "banana"),
        ("max-wait", "-5s"),
        ("max-wait", "1h"),
        ("inject", "maybe"),
    ];
    for (index, (key, value)) in cases.into_iter().enumerate() {
        let (name, key) = (
            format!("wrong-{index}"),
            format!("{}{key}", annotation::PREFIX),
        );
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), annotated(&name, &key, value).to_string()).unwrap();
        let output = namespace
            .kubectl_output(&["apply", "-f", file.path().to_str().unwrap()])
            .unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success(), "{stderr}");
        assert!(
            stderr.contains("Warning: ")
                && stderr.contains(&key)
                && stderr.contains(value)
                && stderr.contains("allowed"),
            "{stderr}"
        );
        let pod = namespace.api::<Pod>().get(&name).await.unwrap();
        assert!(!is_gated(&pod) && pod.labels().get(LABEL_INJECTED).is_none());
        let status = &pod.annotations()[annotation::STATUS];
        assert!(
            status.contains("skipped")
                && status.contains(&key)
                && status.contains(value)
                && status.contains("allowed"),
            "{status}"
        );
    }
    assert_eq!(
        metric(&namespace, "invalid-annotation").await - before,
        cases.len() as u64
    );
}

/// The sum over both replicas of the reviews with an outcome.
async fn metric(namespace: &TestNamespace, outcome: &str) -> u64 {
    let pods = Api::<Pod>::namespaced(namespace.client().clone(), NAMESPACE)
        .list(&ListParams::default())
        .await
        .unwrap();
    let wanted = format!("prestop_gate_injections_total{{outcome=\"{outcome}\"}} ");
    let mut sum = 0;
    for pod in pods {
        let Some(ip) = pod.status.and_then(|status| status.pod_ip) else {
            continue;
        };
        let text = http::get(&format!("{ip}:8080"), "/metrics").await.unwrap();
        sum += text
            .lines()
            .find_map(|line| line.strip_prefix(&wanted))
            .map_or(0, |count| count.parse().unwrap());
    }
    sum
}

/// S45; and the pod really runs and is really held there.
#[tokio::test]
async fn gated_pod_runs_where_pod_security_restricted_is_enforced() {
    let labels = [
        (LABEL_INJECTION, "all"),
        ("pod-security.kubernetes.io/enforce", "restricted"),
    ];
    let namespace = TestNamespace::create(&cluster().await.unwrap(), "restricted", &labels)
        .await
        .unwrap();
    let mut app = mk_app("web");
    app["spec"]["securityContext"] =
        json!({"runAsNonRoot": true, "seccompProfile": {"type": "RuntimeDefault"}});
    app["spec"]["containers"][0]["securityContext"] = json!({"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}, "runAsUser": 1000});
    let pod = GatedPod::start_behind_service(&namespace, app)
        .await
        .unwrap();
    let held = pod.held().await.unwrap();
    assert!(held >= Duration::from_secs(5), "{held:?}");
}

/// S42: such a quota refuses every container without all four.
#[tokio::test]
async fn quota_on_requests_and_limits_admits_a_gated_pod() {
    let namespace = namespace("quota").await.unwrap();
    let hard = json!({"requests.cpu": "1", "requests.memory": "1Gi", "limits.cpu": "2", "limits.memory": "2Gi"});
    namespace.apply(json!({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "all"}, "spec": {"hard": hard}})).await.unwrap();
    let mut app = mk_app("web");
    let resources = json!({"cpu": "100m", "memory": "64Mi"});
    app["spec"]["containers"][0]["resources"] = json!({"requests": resources, "limits": resources});
    // The quota's controller has to see it first.
    tokio::time::sleep(Duration::from_secs(2)).await;
    let pod = admit(&namespace, app).await;
    assert!(is_gated(&pod));
}

/// S75: the sidecar must not keep a finished pod alive.
#[tokio::test]
async fn job_completes() {
    let namespace = namespace("job").await.unwrap();
    let job = json!({
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "once"},
        "spec": {"template": {"metadata": {"labels": {"app": "once"}}, "spec": {
            "restartPolicy": "Never",
            "containers": [{"name": "app", "image": images::reference("app"), "command": ["/app", "record", "--path", "/dev/stdout", "done"]}],
        }}},
    });
    namespace.apply(job).await.unwrap();
    let done = |job: Option<&k8s_openapi::api::batch::v1::Job>| {
        job.and_then(|job| job.status.as_ref())
            .and_then(|status| status.succeeded)
            == Some(1)
    };
    namespace
        .wait("once", "has completed", SOON, done)
        .await
        .unwrap();
    let pods = namespace
        .api::<Pod>()
        .list(&ListParams::default())
        .await
        .unwrap();
    assert!(is_gated(&pods.items[0]));
}

/// Tools that deploy from Git apply again and again.
#[tokio::test]
async fn applying_the_manifests_again_changes_nothing() {
    let cluster = cluster().await.unwrap();
    let client = cluster.client().await.unwrap();
    let manifests = process::output(
        cluster
            .kubectl()
            .arg("kustomize")
            .arg(workspace().join("manifests/base")),
    )
    .unwrap();
    let objects = yaml_documents(&cluster, &manifests);
    assert!(objects.len() >= 10, "{}", objects.len());
    let before = versions(&client, &objects).await;
    for _ in 0..2 {
        process::output(
            cluster
                .kubectl()
                .args(["apply", "-k"])
                .arg(workspace().join("manifests/base")),
        )
        .unwrap();
        assert_eq!(versions(&client, &objects).await, before);
    }
    let namespace = namespace("again").await.unwrap();
    assert!(is_gated(&admit(&namespace, mk_app("a")).await));
}

/// The documents of a YAML stream, by the API server's own reading of them.
fn yaml_documents(cluster: &tests::Cluster, manifests: &str) -> Vec<DynamicObject> {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), manifests).unwrap();
    let listed = process::output(
        cluster
            .kubectl()
            .args(["create", "--dry-run=client", "--output=json", "-f"])
            .arg(file.path()),
    )
    .unwrap();
    serde_json::Deserializer::from_str(&listed)
        .into_iter::<DynamicObject>()
        .map(Result::unwrap)
        .collect()
}

/// What tells whether an object was changed: its generation where it has one (a status moves the version), else its
/// version.
async fn versions(client: &kube::Client, objects: &[DynamicObject]) -> Vec<String> {
    let mut all = Vec::new();
    for object in objects {
        let types = object.types.clone().unwrap();
        let resource = ApiResource::from_gvk(&GroupVersionKind::try_from(&types).unwrap());
        let api: Api<DynamicObject> = match object.namespace() {
            Some(namespace) => Api::namespaced_with(client.clone(), &namespace, &resource),
            None => Api::all_with(client.clone(), &resource),
        };
        let found = api.get(&object.name_any()).await.unwrap();
        let generation = found
            .metadata
            .generation
            .map(|generation| generation.to_string());
        let version = generation.or_else(|| found.resource_version()).unwrap();
        all.push(format!(
            "{} {} {version} {}",
            types.kind,
            object.name_any(),
            found.data["webhooks"]
        ));
    }
    all
}

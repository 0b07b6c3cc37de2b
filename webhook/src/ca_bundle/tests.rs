//! Against an API server in memory, with paused time.

use http::Method;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use super::*;
use crate::fake_api::FakeApi;
use crate::readiness::Readiness;

const CONFIGURATIONS: &str = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations";

fn base64(text: &str) -> Value {
    json!(ByteString(text.as_bytes().to_vec()))
}

fn mk_entry(name: &str, client_config: &Value) -> Value {
    json!({"name": name, "clientConfig": client_config, "sideEffects": "None", "admissionReviewVersions": ["v1"]})
}

fn mk_service(name: &str, ca_pem: Option<&str>) -> Value {
    let mut config =
        json!({"service": {"name": name, "namespace": "prestop-gate", "path": "/mutate"}});
    if let Some(ca_pem) = ca_pem {
        config["caBundle"] = base64(ca_pem);
    }
    config
}

/// Our two entries, with these bundles.
fn mk_configuration(bundles: [Option<&str>; 2]) -> Value {
    json!({
        "metadata": {"name": CONFIGURATION},
        "webhooks": [
            mk_entry("all.prestop-gate.dev", &mk_service(contract::WEBHOOK_SERVICE, bundles[0])),
            mk_entry("enabled.prestop-gate.dev", &mk_service(contract::WEBHOOK_SERVICE, bundles[1])),
        ],
    })
}

struct Replica {
    api: FakeApi,
    trust: watch::Sender<Option<Trust>>,
    readiness: Readiness,
    shutdown: CancellationToken,
    task: JoinHandle<()>,
}

impl Replica {
    fn start(api: &FakeApi, ca_pem: Option<&str>) -> Self {
        let (readiness, shutdown) = (Readiness::new(), CancellationToken::new());
        let trust = watch::Sender::new(ca_pem.map(mk_trust));
        let keep = keep(
            api.client(),
            trust.subscribe(),
            readiness.register("ca-bundle"),
            shutdown.clone(),
        );
        Self {
            api: api.clone(),
            trust,
            readiness,
            shutdown,
            task: tokio::spawn(keep),
        }
    }

    fn bundles(&self) -> Vec<Value> {
        let configuration = self.api.object(CONFIGURATIONS, CONFIGURATION).unwrap();
        let webhooks = configuration["webhooks"].as_array().unwrap().clone();
        webhooks
            .into_iter()
            .map(|webhook| webhook["clientConfig"]["caBundle"].clone())
            .collect()
    }

    /// How many patches there were, after so much time that there won't be more.
    async fn patches(&self) -> usize {
        tokio::time::sleep(Duration::from_mins(20)).await;
        let writes = self.api.writes();
        assert!(
            writes.iter().all(|call| call.method == Method::PATCH),
            "{writes:?}"
        );
        writes.len()
    }
}

fn mk_trust(ca_pem: &str) -> Trust {
    Trust {
        ca_pem: ca_pem.to_owned(),
        key_id: "0123".to_owned(),
    }
}

#[tokio::test(start_paused = true)]
async fn equal_bundles_are_not_patched() {
    let api = FakeApi::default();
    api.put(CONFIGURATIONS, mk_configuration([Some("ca"), Some("ca")]));
    let replica = Replica::start(&api, Some("ca"));
    assert_eq!(replica.patches().await, 0);
    assert!(replica.readiness.pending().is_empty());
}

#[tokio::test(start_paused = true)]
async fn both_entries_are_patched_at_once() {
    for bundles in [
        [None, None],
        [Some("old"), None],
        [Some("old"), Some("older")],
    ] {
        let api = FakeApi::default();
        api.put(CONFIGURATIONS, mk_configuration(bundles));
        let replica = Replica::start(&api, Some("ca"));
        assert_eq!(replica.patches().await, 1);
        assert_eq!(replica.bundles(), [base64("ca"), base64("ca")]);
        assert!(replica.readiness.pending().is_empty());
        let selector = format!("fieldSelector=metadata.name%3D{CONFIGURATION}");
        let reads = api
            .calls()
            .into_iter()
            .filter(|call| call.method == Method::GET);
        for call in reads {
            assert!(
                call.query.contains(&selector),
                "not within the role: {call:?}"
            );
        }
    }
}

#[test]
fn only_entries_that_differ_and_call_our_service_are_patched() {
    let mut configuration = mk_configuration([Some("ca"), Some("old")]);
    let webhooks = configuration["webhooks"].as_array_mut().unwrap();
    webhooks.push(mk_entry(
        "url.example.com",
        &json!({"url": "https://example.com/mutate"}),
    ));
    webhooks.push(mk_entry(
        "other.example.com",
        &mk_service("other", Some("theirs")),
    ));
    let patch = patch(&serde_json::from_value(configuration).unwrap(), "ca");
    let expected = json!([
        {"op": "test", "path": "/webhooks/1/name", "value": "enabled.prestop-gate.dev"},
        {"op": "add", "path": "/webhooks/1/clientConfig/caBundle", "value": base64("ca")},
    ]);
    assert_eq!(json!(patch), expected);
}

#[tokio::test(start_paused = true)]
async fn reset_by_another_tool_is_patched_again() {
    let api = FakeApi::default();
    api.put(CONFIGURATIONS, mk_configuration([None, None]));
    let replica = Replica::start(&api, Some("ca"));
    assert_eq!(replica.patches().await, 1);
    api.put(CONFIGURATIONS, mk_configuration([None, None]));
    assert_eq!(replica.patches().await, 2);
    assert_eq!(replica.bundles(), [base64("ca"), base64("ca")]);
}

#[tokio::test(start_paused = true)]
async fn tool_that_resets_at_once_gets_at_most_one_patch_a_second() {
    fn reset_after_each(api: &FakeApi, times: usize) {
        if times > 0 {
            api.before_next(Method::PATCH, move |api| {
                api.put(CONFIGURATIONS, mk_configuration([None, None]));
                reset_after_each(api, times - 1);
            });
        }
    }
    let api = FakeApi::default();
    api.put(CONFIGURATIONS, mk_configuration([None, None]));
    reset_after_each(&api, 1_000);
    let replica = Replica::start(&api, Some("ca"));
    tokio::time::sleep(Duration::from_mins(1)).await;
    let patches = api.writes().len();
    assert!(patches <= 61, "{patches}");
    drop(replica);
}

#[tokio::test(start_paused = true)]
async fn change_of_the_authority_is_patched() {
    let api = FakeApi::default();
    api.put(CONFIGURATIONS, mk_configuration([None, None]));
    let replica = Replica::start(&api, None);
    assert_eq!(replica.patches().await, 0, "nothing is known yet");
    assert_eq!(replica.readiness.pending(), ["ca-bundle"]);
    for (number, ca_pem) in [(1, "first"), (2, "second")] {
        replica.trust.send_replace(Some(mk_trust(ca_pem)));
        assert_eq!(replica.patches().await, number);
        assert_eq!(replica.bundles(), [base64(ca_pem), base64(ca_pem)]);
    }
}

#[tokio::test(start_paused = true)]
async fn replicas_do_not_fight() {
    let api = FakeApi::default();
    api.put(CONFIGURATIONS, mk_configuration([None, None]));
    let replicas = [
        Replica::start(&api, Some("ca")),
        Replica::start(&api, Some("ca")),
    ];
    assert!(replicas[0].patches().await <= 2);
    assert_eq!(replicas[0].bundles(), [base64("ca"), base64("ca")]);
}

#[tokio::test(start_paused = true)]
async fn configuration_may_come_later() {
    let api = FakeApi::default();
    let replica = Replica::start(&api, Some("ca"));
    assert_eq!(replica.patches().await, 0);
    assert!(
        replica.readiness.pending().is_empty(),
        "the confirmer has its work without it"
    );
    api.put(CONFIGURATIONS, mk_configuration([None, None]));
    assert_eq!(replica.patches().await, 1);
}

#[tokio::test(start_paused = true)]
async fn list_that_was_changed_meanwhile_is_not_patched_at_the_wrong_place() {
    let api = FakeApi::default();
    api.put(CONFIGURATIONS, mk_configuration([Some("ca"), None]));
    api.before_next(Method::PATCH, |api| {
        api.change(CONFIGURATIONS, CONFIGURATION, |configuration| {
            let other = mk_entry("other.example.com", &mk_service("other", Some("theirs")));
            configuration["webhooks"]
                .as_array_mut()
                .unwrap()
                .insert(0, other);
        });
    });
    let replica = Replica::start(&api, Some("ca"));
    assert_eq!(replica.patches().await, 2, "one refused");
    assert_eq!(
        replica.bundles(),
        [base64("theirs"), base64("ca"), base64("ca")]
    );
}

#[tokio::test(start_paused = true)]
async fn refused_patch_is_tried_again() {
    let api = FakeApi::default();
    api.put(CONFIGURATIONS, mk_configuration([None, None]));
    for _ in 0..3 {
        api.fail_next(Method::PATCH, 403, "Forbidden");
    }
    let replica = Replica::start(&api, Some("ca"));
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(replica.readiness.pending(), ["ca-bundle"]);
    assert_eq!(replica.patches().await, 4);
    assert_eq!(api.write_pauses(), [1, 2, 4]);
    assert!(replica.readiness.pending().is_empty());
}

#[tokio::test(start_paused = true)]
async fn shutdown_ends_the_keeper() {
    let replica = Replica::start(&FakeApi::default(), Some("ca"));
    replica.shutdown.cancel();
    replica.task.await.unwrap();
}

//! The whole controller between a Kubernetes API of a few objects and the fake AWS.

use std::convert::Infallible;

use axum::body::Body;
use axum::extract::{RawQuery, State};
use axum::http::StatusCode;
use axum::routing::{get, patch};
use axum::{Json, Router};
use futures::stream;
use kube::{Client, Config};
use serde_json::{Value, json};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::{sleep, timeout};

use super::*;
use crate::aws::crds::Group;
use crate::aws::{ACCOUNT, Caller, FakeAws, Settings, TargetGroup, crds};

/// Longest wait for anything.
const PATIENCE: Duration = Duration::from_secs(20);

/// A Service with a binding and one slice. The slice changes, and the Service may be away.
#[derive(Debug)]
struct Cluster {
    has_service: bool,
    binding: Value,
    slice: Value,
    checkpoints: Vec<String>,
    /// Watches of slices.
    watchers: Vec<UnboundedSender<String>>,
    /// Watches of bindings, which stay open.
    silent: Vec<UnboundedSender<String>>,
}

type Shared = Arc<Mutex<Cluster>>;

fn mk_slice(ready: &[(u8, bool)]) -> Value {
    let endpoints: Vec<Value> = ready
        .iter()
        .map(|(last, is_ready)| json!({"addresses": [format!("10.0.0.{last}")], "conditions": {"ready": is_ready}}))
        .collect();
    json!({
        "metadata": {
            "name": "shop-1",
            "namespace": "a",
            "resourceVersion": "2",
            "labels": {"kubernetes.io/service-name": "shop"},
        },
        "addressType": "IPv4",
        "ports": [{"name": "http", "port": 8080}],
        "endpoints": endpoints,
    })
}

fn mk_service() -> Value {
    json!({
        "metadata": {"name": "shop", "namespace": "a"},
        "spec": {"ports": [{"name": "http", "port": 80}]},
    })
}

/// How the API says that there is no such object.
const NOT_FOUND: (StatusCode, &str) = (
    StatusCode::NOT_FOUND,
    r#"{"kind": "Status", "status": "Failure", "reason": "NotFound", "message": "", "code": 404}"#,
);

fn list(item: &Value) -> Value {
    json!({"apiVersion": "v1", "kind": "List", "metadata": {"resourceVersion": "1"}, "items": [item]})
}

/// A list, or a watch that tells what is sent to it, or nothing.
fn list_or_watch(query: Option<&str>, item: &Value, news: UnboundedReceiver<String>) -> Body {
    if !query.is_some_and(|query| query.contains("watch=true")) {
        return Body::from(list(item).to_string());
    }
    Body::from_stream(stream::unfold(news, |mut news| async {
        let line = news.recv().await?;
        Some((Ok::<_, Infallible>(line), news))
    }))
}

async fn serve(cluster: Shared) -> Client {
    // Fails if another test was first, which is as good.
    drop(rustls::crypto::ring::default_provider().install_default());
    let bindings = async |State(cluster): State<Shared>, RawQuery(query): RawQuery| {
        let (tell, told) = unbounded_channel();
        let mut cluster = cluster.lock().unwrap();
        cluster.silent.push(tell);
        list_or_watch(query.as_deref(), &cluster.binding, told)
    };
    let slices = async |State(cluster): State<Shared>, RawQuery(query): RawQuery| {
        let (tell, told) = unbounded_channel();
        let mut cluster = cluster.lock().unwrap();
        cluster.watchers.push(tell);
        list_or_watch(query.as_deref(), &cluster.slice, told)
    };
    let annotate = async |State(cluster): State<Shared>, Json(patch): Json<Value>| {
        let mut cluster = cluster.lock().unwrap();
        let annotations = patch["metadata"]["annotations"].clone();
        let checkpoint = annotations["elbv2.k8s.aws/checkpoint"].as_str().unwrap();
        cluster.checkpoints.push(checkpoint.to_owned());
        cluster.binding["metadata"]["annotations"] = annotations;
        Json(cluster.binding.clone())
    };
    let service = async |State(cluster): State<Shared>| {
        let is_there = cluster.lock().unwrap().has_service;
        is_there.then(|| Json(mk_service())).ok_or(NOT_FOUND)
    };
    let group = "/apis/elbv2.k8s.aws/v1beta1";
    let router = Router::new()
        .route(&format!("{group}/targetgroupbindings"), get(bindings))
        .route(
            &format!("{group}/namespaces/a/targetgroupbindings/shop"),
            patch(annotate),
        )
        .route("/apis/discovery.k8s.io/v1/endpointslices", get(slices))
        .route("/api/v1/namespaces/a/services/shop", get(service))
        .with_state(cluster);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async { axum::serve(listener, router).await });
    Client::try_from(Config::new(url.parse().unwrap())).unwrap()
}

fn change(cluster: &Shared, ready: &[(u8, bool)]) {
    let mut cluster = cluster.lock().unwrap();
    cluster.slice = mk_slice(ready);
    let mut object = cluster.slice.clone();
    object["apiVersion"] = json!("discovery.k8s.io/v1");
    object["kind"] = json!("EndpointSlice");
    let line = format!("{}\n", json!({"type": "MODIFIED", "object": object}));
    cluster
        .watchers
        .retain(|watcher| watcher.send(line.clone()).is_ok());
}

fn targets<const N: usize>(last: [u8; N]) -> Vec<SocketAddr> {
    last.map(|last| ([10, 0, 0, last], 8080).into()).to_vec()
}

/// What the next reconcile that isn't `Unchanged` came to.
async fn next(controller: &Controller, seen: &mut usize) -> Outcome {
    let found = async {
        loop {
            let reconciles = controller.reconciles();
            if let Some(reconcile) = reconciles.get(*seen) {
                *seen += 1;
                if reconcile.outcome != Outcome::Unchanged {
                    return reconcile.outcome.clone();
                }
            } else {
                sleep(Duration::from_millis(5)).await;
            }
        }
    };
    timeout(PATIENCE, found).await.unwrap()
}

fn operations(fake: &FakeAws) -> Vec<String> {
    fake.calls()
        .into_iter()
        .map(|call| call.operation)
        .collect()
}

async fn begin() -> (FakeAws, Shared, Controller, String) {
    let fake = FakeAws::start(([127, 0, 0, 1], 0).into(), Settings::default())
        .await
        .unwrap();
    let arn = fake.create_target_group(TargetGroup::alb("shop"));
    let caller = Caller::new("controller", ACCOUNT);
    fake.add_caller(caller.clone());
    let mut binding = serde_json::to_value(crds::binding(
        Group::LoadBalancerController,
        "shop",
        "shop",
        80,
        &arn,
    ))
    .unwrap();
    binding["metadata"] =
        json!({"name": "shop", "namespace": "a", "generation": 1, "resourceVersion": "1"});
    let cluster = Arc::new(Mutex::new(Cluster {
        has_service: true,
        binding,
        slice: mk_slice(&[(1, true), (2, true), (9, false)]),
        checkpoints: Vec::new(),
        watchers: Vec::new(),
        silent: Vec::new(),
    }));
    let controller = start(
        serve(Arc::clone(&cluster)).await,
        fake.sdk_config(&caller),
        Options::default(),
    );
    (fake, cluster, controller, arn)
}

#[tokio::test]
async fn ready_endpoints_are_registered_and_others_deregistered_first() {
    let (fake, cluster, controller, arn) = begin().await;
    let mut seen = 0;
    let first = next(&controller, &mut seen).await;
    let (deregistered, registered) = (Vec::new(), targets([1, 2]));
    assert_eq!(
        first,
        Outcome::Synced {
            deregistered,
            registered
        }
    );
    change(&cluster, &[(1, false), (2, true), (3, true)]);
    let second = next(&controller, &mut seen).await;
    let (deregistered, registered) = (targets([1]), targets([3]));
    assert_eq!(
        second,
        Outcome::Synced {
            deregistered,
            registered
        }
    );
    assert_eq!(
        operations(&fake),
        [
            "DescribeTargetHealth",
            "RegisterTargets",
            "DescribeTargetHealth",
            "DeregisterTargets",
            "RegisterTargets"
        ]
    );
    assert_eq!(
        fake.health(&arn, targets([1])[0]).unwrap().state,
        "draining"
    );
    let calls = fake.calls();
    assert!(
        calls
            .iter()
            .all(|call| call.peer == Some([127, 0, 0, 1].into()))
    );
    let checkpoints = cluster.lock().unwrap().checkpoints.clone();
    let is_blank: Vec<bool> = checkpoints.iter().map(String::is_empty).collect();
    assert_eq!(is_blank, [true, false, true, false]);
    assert_ne!(checkpoints[1], checkpoints[3]);
    // The same again is no reason to ask AWS.
    change(&cluster, &[(1, false), (2, true), (3, true)]);
    let before = controller.reconciles().len();
    timeout(PATIENCE, async {
        while controller.reconciles().len() == before {
            sleep(Duration::from_millis(5)).await;
        }
    })
    .await
    .unwrap();
    assert_eq!(
        controller.reconciles().last().unwrap().outcome,
        Outcome::Unchanged
    );
    assert_eq!(operations(&fake).len(), 5);
}

#[tokio::test]
async fn skipped_change_is_made_up_for_by_a_new_leader() {
    let (fake, cluster, controller, arn) = begin().await;
    let mut seen = 0;
    next(&controller, &mut seen).await;
    controller.skip(1);
    change(&cluster, &[(2, true)]);
    assert_eq!(next(&controller, &mut seen).await, Outcome::Skipped);
    assert_eq!(fake.health(&arn, targets([1])[0]).unwrap().state, "initial");
    let begun = now();
    controller.pause(Duration::from_millis(300));
    let made_up = next(&controller, &mut seen).await;
    let (deregistered, registered) = (targets([1]), Vec::new());
    assert_eq!(
        made_up,
        Outcome::Synced {
            deregistered,
            registered
        }
    );
    assert!(now() - begun >= Duration::from_millis(300));
}

#[tokio::test]
async fn service_that_is_back_has_its_targets_registered_anew() {
    let (_fake, cluster, controller, _) = begin().await;
    let mut seen = 0;
    next(&controller, &mut seen).await;
    cluster.lock().unwrap().has_service = false;
    change(&cluster, &[(1, true), (2, true)]);
    let (deregistered, registered) = (targets([1, 2]), Vec::new());
    assert_eq!(
        next(&controller, &mut seen).await,
        Outcome::Synced {
            deregistered,
            registered
        }
    );
    assert_eq!(cluster.lock().unwrap().checkpoints.last().unwrap(), "");
    cluster.lock().unwrap().has_service = true;
    change(&cluster, &[(1, true), (2, true)]);
    let (deregistered, registered) = (Vec::new(), targets([1, 2]));
    assert_eq!(
        next(&controller, &mut seen).await,
        Outcome::Synced {
            deregistered,
            registered
        }
    );
}

#[tokio::test]
async fn failed_reconcile_is_tried_again() {
    let (fake, cluster, controller, _) = begin().await;
    let mut seen = 0;
    next(&controller, &mut seen).await;
    fake.deny("controller", "elasticloadbalancing:DeregisterTargets");
    change(&cluster, &[(2, true)]);
    let Outcome::Failed(error) = next(&controller, &mut seen).await else {
        panic!("it was allowed");
    };
    assert!(error.contains("AccessDenied"), "{error}");
    fake.allow("controller", "elasticloadbalancing:DeregisterTargets");
    loop {
        match next(&controller, &mut seen).await {
            Outcome::Failed(_) => {}
            outcome => {
                let (deregistered, registered) = (targets([1]), Vec::new());
                assert_eq!(
                    outcome,
                    Outcome::Synced {
                        deregistered,
                        registered
                    }
                );
                break;
            }
        }
    }
}

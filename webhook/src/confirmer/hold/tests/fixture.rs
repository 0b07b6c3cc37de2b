//! A replica whose API server answers as told.

use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use http::{Request, Response};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::Client;
use kube::client::Body;
use kube::core::PartialObjectMeta;
use kube::runtime::watcher::Event;
use serde_json::{Value, json};
use sidecar::contract::{HoldParams, HoldRequest, HoldResponse, PROTOCOL, ReleaseReason, Verdict};
use tokio::time::{Instant, advance};
use tokio_util::sync::CancellationToken;

use crate::confirmer::auth::PodIdentity;
use crate::confirmer::events::Events;
use crate::confirmer::groups::Groups;
use crate::confirmer::hold::{Error, Holds};
use crate::confirmer::memory::Memory;
use crate::confirmer::settles::Settles;
use crate::confirmer::watches::{Progress, Source, World};
use crate::metrics::Metrics;

/// What the API server answers.
#[derive(Debug, Clone, Default)]
pub(super) struct Api {
    /// The pod; `None` is a 404.
    pub(super) pod: Option<Value>,
    /// Whether it answers 500 to everything.
    pub(super) down: bool,
    /// Its EndpointSlices; `None`: it answers 500 when asked for them.
    pub(super) slices: Option<Vec<Value>>,
    /// Status of the node's condition `Ready`, one a look; the last one stays.
    pub(super) node_ready: Vec<&'static str>,
    /// Paths and queries asked for.
    pub(super) asked: Vec<String>,
}

pub(super) struct Fixture {
    pub(super) api: Arc<Mutex<Api>>,
    pub(super) holds: Arc<Holds>,
}

pub(super) fn mk_fixture(api: Api) -> Fixture {
    let api = Arc::new(Mutex::new(api));
    let shared = Arc::clone(&api);
    let service = tower::service_fn(move |request: Request<Body>| {
        let uri = request
            .uri()
            .path_and_query()
            .map_or_else(String::new, ToString::to_string);
        let answer = answer(&mut shared.lock().expect("no test panics with it"), &uri);
        async move { Ok::<_, std::convert::Infallible>(answer) }
    });
    let client = Client::new(service, "default");
    let holds = Holds {
        client: client.clone(),
        world: World::default(),
        events: Events::new(client, None).0,
        metrics: Metrics::new(),
        groups: Groups::new(None),
        memory: Memory::default(),
        settles: Settles::default(),
        node_wait: Duration::from_secs(5),
        closing: CancellationToken::new(),
    };
    Fixture {
        api,
        holds: Arc::new(holds),
    }
}

pub(super) fn answer(api: &mut Api, path: &str) -> Response<Body> {
    api.asked.push(path.to_owned());
    let (status, body) = if api.down {
        (
            500,
            json!({"kind": "Status", "status": "Failure", "code": 500, "reason": "InternalError", "message": "down"}),
        )
    } else if path.contains("/endpointslices") {
        match &api.slices {
            Some(items) => (
                200,
                json!({"kind": "EndpointSliceList", "apiVersion": "discovery.k8s.io/v1", "metadata": {}, "items": items}),
            ),
            None => (
                500,
                json!({"kind": "Status", "status": "Failure", "code": 500, "reason": "InternalError", "message": "no"}),
            ),
        }
    } else if path.contains("/nodes/") {
        let ready = if api.node_ready.len() > 1 {
            api.node_ready.remove(0)
        } else {
            api.node_ready[0]
        };
        let conditions = json!([{"type": "Ready", "status": ready}, {"type": "MemoryPressure", "status": "False"}]);
        (
            200,
            json!({"kind": "Node", "apiVersion": "v1", "metadata": {"name": "n1"}, "status": {"conditions": conditions}}),
        )
    } else if let Some(pod) = &api.pod {
        (200, pod.clone())
    } else {
        (
            404,
            json!({"kind": "Status", "status": "Failure", "code": 404, "reason": "NotFound", "message": "no pod"}),
        )
    };
    Response::builder()
        .status(status)
        .body(Body::from(body.to_string().into_bytes()))
        .expect("the answer must build")
}

pub(super) fn mk_pod(uid: &str, grace: Option<u64>) -> Value {
    let mut pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "web-0", "namespace": "shop", "uid": uid, "labels": {"prestop-gate.dev/injected": "true"}},
        "spec": {"nodeName": "n1", "containers": []},
    });
    if let Some(grace) = grace {
        let at = SystemTime::now() + Duration::from_secs(grace);
        let seconds = at
            .duration_since(SystemTime::UNIX_EPOCH)
            .expect("after 1970")
            .as_secs();
        let at = k8s_openapi::jiff::Timestamp::from_second(i64::try_from(seconds).expect("fits"))
            .expect("in range");
        pod["metadata"]["deletionTimestamp"] = json!(at.to_string());
        pod["metadata"]["deletionGracePeriodSeconds"] = json!(grace);
    }
    pod
}

/// A pod that is being deleted, on a replica whose lists are complete: with an endpoint where `ready` says so.
pub(super) fn mk_terminating(ready: Option<bool>) -> Fixture {
    let pod = mk_pod("u1", Some(100));
    let fixture = mk_fixture(Api {
        pod: Some(pod.clone()),
        ..Api::default()
    });
    fixture.sync(Some(&pod), ready);
    fixture
}

pub(super) fn mk_meta(pod: &Value) -> PartialObjectMeta<Pod> {
    serde_json::from_value(json!({"metadata": pod["metadata"]})).expect("metadata must decode")
}

pub(super) fn mk_slice(ready: bool) -> EndpointSlice {
    serde_json::from_value(json!({
        "metadata": {"name": "web-a", "namespace": "shop", "labels": {"kubernetes.io/service-name": "web"}},
        "addressType": "IPv4",
        "endpoints": [{
            "addresses": ["198.18.0.7"],
            "conditions": {"ready": ready, "serving": true, "terminating": !ready},
            "targetRef": {"kind": "Pod", "name": "web-0", "namespace": "shop", "uid": "u1"},
        }],
        "ports": [],
    }))
    .expect("the slice must decode")
}

impl Fixture {
    /// Completes the first lists, with this pod and an endpoint where `ready` says so.
    pub(super) fn sync(&self, pod: Option<&Value>, ready: Option<bool>) {
        let (world, now) = (&self.holds.world, Instant::now());
        world.on_endpoint_slice(Event::Init, now);
        if let Some(ready) = ready {
            world.on_endpoint_slice(Event::InitApply(mk_slice(ready)), now);
        }
        world.on_endpoint_slice(Event::InitDone, now);
        world.on_pod(Event::Init, now);
        if let Some(pod) = pod {
            world.on_pod(Event::InitApply(mk_meta(pod)), now);
        }
        world.on_pod(Event::InitDone, now);
        for source in Source::OPTIONAL {
            world.on_unavailable(source, Progress::Absent, now);
        }
    }

    pub(super) fn set_pod(&self, pod: &Value) {
        self.holds
            .world
            .on_pod(Event::Apply(mk_meta(pod)), Instant::now());
    }

    pub(super) async fn turn(&self, request: HoldRequest) -> Result<HoldResponse, Error> {
        turn(Arc::clone(&self.holds), request).await
    }

    /// A turn that runs while the test goes on.
    pub(super) fn spawn(
        &self,
        request: HoldRequest,
    ) -> tokio::task::JoinHandle<Result<HoldResponse, Error>> {
        tokio::spawn(turn(Arc::clone(&self.holds), request))
    }
}

pub(super) async fn turn(holds: Arc<Holds>, request: HoldRequest) -> Result<HoldResponse, Error> {
    let pod = PodIdentity {
        namespace: "shop".to_owned(),
        name: "web-0".to_owned(),
        uid: "u1".to_owned(),
    };
    holds.turn(&pod, &request).await
}

pub(super) fn first() -> HoldRequest {
    HoldRequest {
        protocol: PROTOCOL,
        epoch: "e1".to_owned(),
        params: HoldParams {
            original_grace_seconds: 30.0,
            max_wait_seconds: 60.0,
            min_hold_seconds: 0.0,
            fallback_wait_seconds: 15.0,
            settle_seconds: None,
            quiet_seconds: None,
            host_network: false,
            probes_per_minute: std::collections::BTreeMap::new(),
        },
        elapsed_seconds: 0.1,
        terminating: false,
        progress: sidecar::contract::Progress::new(),
        traffic: None,
    }
}

pub(super) fn later() -> HoldRequest {
    HoldRequest {
        terminating: true,
        elapsed_seconds: 1.0,
        ..first()
    }
}

pub(super) fn outcome(response: &HoldResponse) -> (Verdict, Option<ReleaseReason>) {
    (response.verdict, response.reason)
}

/// Long enough for any replica's "I have only just started" to be over.
pub(super) async fn grow_old() {
    advance(Duration::from_mins(1)).await;
}

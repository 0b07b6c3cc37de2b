//! What becomes of watches' events together, and of watches that can't be had.

use std::convert::Infallible;

use futures::StreamExt as _;
use http::{Request, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::{Bytes, Frame};
use kube::Client;
use kube::client::Body;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::sleep;

use super::*;
use crate::confirmer::target_group::Family;
use crate::inject::{SlowSelector, SlowSelectors};
use crate::readiness::Readiness;

const CONTROLLER: &str = "/apis/elbv2.k8s.aws/v1beta1";
const AUTO_MODE: &str = "/apis/eks.amazonaws.com/v1";

fn decode<T: DeserializeOwned>(object: Value) -> T {
    serde_json::from_value(object).expect("the object must decode")
}

fn mk_slice(service: &str, uid: &str, namespace: &str) -> EndpointSlice {
    decode(json!({
        "metadata": {"name": format!("{service}-a"), "namespace": namespace, "labels": {"kubernetes.io/service-name": service}},
        "addressType": "IPv4",
        "endpoints": [{"addresses": ["198.18.0.7"], "targetRef": {"kind": "Pod", "uid": uid}}],
        "ports": [{"port": 8080}],
    }))
}

fn mk_binding(checkpoint: &str) -> Value {
    json!({
        "apiVersion": "elbv2.k8s.aws/v1beta1", "kind": "TargetGroupBinding",
        "metadata": {"name": "web-nlb", "namespace": "shop", "uid": "b", "resourceVersion": "1",
            "annotations": {"elbv2.k8s.aws/checkpoint": checkpoint}},
        "spec": {"targetGroupARN": "arn:1", "targetType": "ip", "serviceRef": {"name": "web", "port": 80}},
    })
}

/// A world in which Service `web` has the pod `u1`.
fn mk_world() -> World {
    let (world, now) = (World::new(Duration::from_mins(35)), Instant::now());
    world.on_endpoint_slice(Event::Init, now);
    world.on_endpoint_slice(Event::InitApply(mk_slice("web", "u1", "shop")), now);
    world.on_endpoint_slice(Event::InitDone, now);
    world
}

fn only(world: &World) -> SenderSeen {
    let mut senders = world.observe("u1", Instant::now()).senders;
    assert_eq!(senders.len(), 1);
    senders.remove(0)
}

#[tokio::test(start_paused = true)]
async fn sender_is_seen_with_all_that_refers_to_it() {
    let (world, now) = (mk_world(), Instant::now());
    world.on_service(
        Event::Apply(decode(json!({
            "metadata": {"name": "web", "namespace": "shop"},
            "spec": {"type": "LoadBalancer", "loadBalancerClass": "service.k8s.aws/nlb"},
        }))),
        now,
    );
    world.on_binding(
        Origin::Controller,
        Event::Apply(decode(mk_binding("a"))),
        now,
    );
    let seen = only(&world);
    let [bound] = &seen.bindings[..] else {
        panic!("there is one binding: {seen:?}");
    };
    assert_eq!(bound.binding, "shop/web-nlb");
    assert_eq!(bound.family, Some(Family::Nlb), "the Service's");
    assert_eq!(seen.unknown_controller, None);
    world.on_ingress(
        Event::Apply(decode(json!({
            "metadata": {"name": "web", "namespace": "shop"},
            "spec": {"ingressClassName": "lb", "defaultBackend": {"service": {"name": "web"}}},
        }))),
        now,
    );
    world.on_ingress_class(
        Event::Apply(decode(
            json!({"metadata": {"name": "lb"}, "spec": {"controller": "example.com/lb"}}),
        )),
        now,
    );
    assert_eq!(
        only(&world).unknown_controller,
        Some("ingress class lb, controller example.com/lb".to_owned())
    );
}

#[tokio::test(start_paused = true)]
async fn holds_hear_of_their_own_services_bindings_only() {
    let (world, now) = (mk_world(), Instant::now());
    world.on_endpoint_slice(Event::Apply(mk_slice("api", "u2", "shop")), now);
    let (mut web, mut api) = (world.subscribe("u1"), world.subscribe("u2"));
    for news in [&mut web, &mut api] {
        news.mark_unchanged();
    }
    world.on_binding(
        Origin::Controller,
        Event::Apply(decode(mk_binding(""))),
        now,
    );
    let heard = |news: &level::Receiver<()>| news.has_changed().expect("the world lives");
    assert!(heard(&web));
    assert!(!heard(&api));
    web.mark_unchanged();
    world.on_unavailable(Source::Bindings(Origin::Controller), Progress::Absent, now);
    assert!(heard(&web));
}

#[tokio::test(start_paused = true)]
async fn world_is_complete_when_each_watch_is_listed_or_known_never_to_be() {
    let (world, now) = (mk_world(), Instant::now());
    world.on_pod(Event::Init, now);
    world.on_pod(Event::InitDone, now);
    for source in Source::OPTIONAL {
        assert_eq!(world.observe("u1", now).synced_at, None, "{source:?}");
        world.on_unavailable(source, Progress::Absent, now);
    }
    assert_eq!(world.observe("u1", now).synced_at, Some(now));
}

#[tokio::test(start_paused = true)]
async fn ready_replicas_are_the_confirmers_own_endpoints_and_at_least_one() {
    let world = mk_world();
    assert_eq!(world.ready_replicas(), 1);
    for uid in ["c1", "c2", "c3"] {
        let mut slice = mk_slice("prestop-gate-confirmer", uid, "prestop-gate");
        slice.metadata.name = Some(uid.to_owned());
        world.on_endpoint_slice(Event::Apply(slice), Instant::now());
    }
    assert_eq!(world.ready_replicas(), 3);
}

fn mk_service(name: &str, spec: &Value) -> Event<Service> {
    let mut spec = spec.clone();
    spec["selector"] = json!({"app": name});
    Event::Apply(decode(
        json!({"metadata": {"name": name, "namespace": "shop"}, "spec": spec}),
    ))
}

fn mk_slow(name: &str, because: &str) -> SlowSelector {
    SlowSelector {
        namespace: "shop".to_owned(),
        selector: [("app".to_owned(), name.to_owned())].into(),
        because: because.to_owned(),
    }
}

#[tokio::test(start_paused = true)]
async fn slow_selectors_are_those_of_services_with_an_nlb_or_an_unknown_controller() {
    let (world, now) = (mk_world(), Instant::now());
    let nlb = json!({"type": "LoadBalancer", "loadBalancerClass": "service.k8s.aws/nlb"});
    let other = json!({"type": "LoadBalancer", "loadBalancerClass": "example.com/lb"});
    world.on_service(mk_service("web", &json!({})), now);
    world.on_service(mk_service("api", &other), now);
    world.on_service(mk_service("plain", &json!({"type": "LoadBalancer"})), now);
    // It may be for nodes: until there is a binding nobody knows.
    world.on_service(mk_service("nodes", &nlb), now);
    let unknown = "Service shop/api is behind a controller that can't be asked (loadBalancerClass example.com/lb)";
    assert_eq!(
        world.slow_selectors(),
        SlowSelectors::new([mk_slow("api", unknown)])
    );
    let mut binding = mk_binding("a");
    world.on_binding(
        Origin::Controller,
        Event::Apply(decode(binding.clone())),
        now,
    );
    let unsure =
        "Service shop/web may be behind an NLB (TargetGroupBinding shop/web-nlb names no protocol)";
    assert_eq!(
        world.slow_selectors(),
        SlowSelectors::new([mk_slow("web", unsure), mk_slow("api", unknown)])
    );
    binding["spec"]["targetGroupProtocol"] = json!("TLS");
    world.on_binding(
        Origin::Controller,
        Event::Apply(decode(binding.clone())),
        now,
    );
    let sure = "Service shop/web is behind an NLB (TargetGroupBinding shop/web-nlb)";
    assert_eq!(
        world.slow_selectors(),
        SlowSelectors::new([mk_slow("api", unknown), mk_slow("web", sure)])
    );
    binding["spec"]["targetGroupProtocol"] = json!("HTTP");
    world.on_binding(Origin::Controller, Event::Apply(decode(binding)), now);
    assert_eq!(
        world.slow_selectors(),
        SlowSelectors::new([mk_slow("api", unknown)])
    );
}

#[tokio::test(start_paused = true)]
async fn service_that_asks_for_an_nlb_to_pods_is_slow_before_its_binding_is_there() {
    let world = mk_world();
    let target = "service.beta.kubernetes.io/aws-load-balancer-nlb-target-type";
    let mut service: Service = decode(json!({
        "metadata": {"name": "web", "namespace": "shop", "annotations": {target: "ip"}},
        "spec": {"type": "LoadBalancer", "loadBalancerClass": "service.k8s.aws/nlb", "selector": {"app": "web"}},
    }));
    world.on_service(Event::Apply(service.clone()), Instant::now());
    let asks = mk_slow("web", "Service shop/web asks for an NLB");
    assert_eq!(world.slow_selectors(), SlowSelectors::new([asks]));
    service.metadata.annotations = Some([(target.to_owned(), "instance".to_owned())].into());
    world.on_service(Event::Apply(service), Instant::now());
    assert_eq!(world.slow_selectors(), SlowSelectors::default());
}

#[tokio::test(start_paused = true)]
async fn slow_selectors_say_what_they_can_not_know() {
    let world = mk_world();
    world.on_unavailable(Source::Ingresses, Progress::Forbidden, Instant::now());
    assert_eq!(
        world.slow_selectors(),
        SlowSelectors::default().incomplete("ingresses.networking.k8s.io can't be watched")
    );
}

/// How the API server answers for one path.
#[derive(Clone)]
enum Kind {
    Missing,
    Forbidden,
    There(Vec<Value>),
}

/// An API server that has only paths.
#[derive(Clone, Default)]
struct Paths(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    kinds: HashMap<String, Kind>,
    watches: HashMap<String, mpsc::UnboundedSender<Value>>,
    calls: Vec<String>,
}

impl Paths {
    fn client(&self) -> Client {
        let paths = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let answer = paths.answer(&request);
            async move { Ok::<_, Infallible>(answer) }
        });
        Client::new(service, "default")
    }

    /// Sets what there is; running watches of that path end.
    fn set(&self, path: &str, kind: Kind) {
        let mut state = self.0.lock().expect("no test panics with it");
        state.watches.remove(path);
        state.kinds.insert(path.to_owned(), kind);
    }

    fn asked(&self, path: &str) -> usize {
        let state = self.0.lock().expect("no test panics with it");
        state.calls.iter().filter(|call| *call == path).count()
    }

    fn answer(&self, request: &Request<Body>) -> Response<UnsyncBoxBody<Bytes, Infallible>> {
        let mut state = self.0.lock().expect("no test panics with it");
        let path = request.uri().path().to_owned();
        state.calls.push(path.clone());
        let (status, body) = match state.kinds.get(&path) {
            None | Some(Kind::Missing) => (404, mk_status(404, "Failed to parse error data")),
            Some(Kind::Forbidden) => (403, mk_status(403, "Forbidden")),
            Some(Kind::There(_))
                if request
                    .uri()
                    .query()
                    .is_some_and(|q| q.contains("watch=true")) =>
            {
                let (sender, receiver) = mpsc::unbounded_channel::<Value>();
                state.watches.insert(path, sender);
                let lines = futures::stream::unfold(receiver, async |mut receiver| {
                    Some((receiver.recv().await?, receiver))
                });
                let frames = lines.map(|event| Ok(Frame::data(Bytes::from(format!("{event}\n")))));
                return Response::new(StreamBody::new(frames).boxed_unsync());
            }
            // Discovery.
            Some(Kind::There(resources)) if [CONTROLLER, AUTO_MODE].contains(&&*path) => (
                200,
                json!({"kind": "APIResourceList", "groupVersion": "x/v1", "resources": resources}),
            ),
            Some(Kind::There(items)) => (
                200,
                json!({"metadata": {"resourceVersion": "1"}, "items": items}),
            ),
        };
        let body = Full::new(Bytes::from(body.to_string())).boxed_unsync();
        Response::builder()
            .status(StatusCode::from_u16(status).expect("a status"))
            .body(body)
            .expect("the answer must build")
    }
}

fn mk_status(code: u16, reason: &str) -> Value {
    json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason, "message": "no"})
}

/// Watches of a cluster without AWS, running.
fn mk_cluster() -> (Paths, World, Readiness) {
    let paths = Paths::default();
    let slice = serde_json::to_value(mk_slice("web", "u1", "shop")).expect("must encode");
    paths.set(
        "/apis/discovery.k8s.io/v1/endpointslices",
        Kind::There(vec![slice]),
    );
    for path in [
        "/api/v1/pods",
        "/api/v1/services",
        "/apis/networking.k8s.io/v1/ingresses",
        "/apis/networking.k8s.io/v1/ingressclasses",
    ] {
        paths.set(path, Kind::There(Vec::new()));
    }
    let (world, readiness) = (World::new(Duration::from_mins(35)), Readiness::new());
    let ready = readiness.register("watches");
    tokio::spawn(run(paths.client(), world.clone(), ready));
    (paths, world, readiness)
}

async fn seconds(seconds: u64) {
    sleep(Duration::from_secs(seconds)).await;
}

fn of(group: &str) -> String {
    format!("{group}/targetgroupbindings")
}

fn mk_discovered() -> Kind {
    Kind::There(vec![
        json!({"name": "targetgroupbindings", "singularName": "", "namespaced": true,
        "kind": "TargetGroupBinding", "verbs": ["list", "watch"]}),
    ])
}

#[tokio::test(start_paused = true)]
async fn kind_that_appears_later_is_found_and_one_that_is_removed_leaves_its_bindings_gone() {
    let (paths, world, readiness) = mk_cluster();
    seconds(5).await;
    assert!(readiness.pending().is_empty(), "{:?}", readiness.pending());
    assert_eq!(only(&world).bindings, []);
    paths.set(&of(CONTROLLER), Kind::There(vec![mk_binding("a")]));
    seconds(31).await;
    assert!(!only(&world).bindings[0].is_gone);
    assert_eq!(
        world.progress(Source::Bindings(Origin::Controller)),
        Some(Progress::Listed)
    );
    paths.set(&of(CONTROLLER), Kind::Missing);
    seconds(5).await;
    assert!(only(&world).bindings[0].is_gone);
    paths.set(&of(CONTROLLER), Kind::There(vec![mk_binding("b")]));
    seconds(31).await;
    assert!(!only(&world).bindings[0].is_gone);
    // Looking for what isn't there costs little.
    let before = paths.asked(&of(AUTO_MODE));
    seconds(600).await;
    assert!(paths.asked(&of(AUTO_MODE)) - before <= 21);
}

#[tokio::test(start_paused = true)]
async fn missing_permission_is_told_apart_from_a_missing_kind() {
    let (paths, world, readiness) = mk_cluster();
    // As it is without our rules: forbidden whether it is there or not.
    paths.set(&of(CONTROLLER), Kind::Forbidden);
    paths.set(&of(AUTO_MODE), Kind::Forbidden);
    paths.set(CONTROLLER, mk_discovered());
    paths.set("/api/v1/services", Kind::Forbidden);
    seconds(5).await;
    assert!(readiness.pending().is_empty(), "{:?}", readiness.pending());
    assert_eq!(world.progress(Source::Services), Some(Progress::Forbidden));
    assert_eq!(
        world.progress(Source::Bindings(Origin::AutoMode)),
        Some(Progress::Absent)
    );
    let told = || world.observe("u1", Instant::now()).bindings_forbidden;
    assert_eq!(
        told().as_deref(),
        Some(
            "the ClusterRole prestop-gate must allow list and watch on targetgroupbindings.elbv2.k8s.aws"
        )
    );
    paths.set(&of(CONTROLLER), Kind::There(vec![mk_binding("a")]));
    seconds(31).await;
    assert_eq!(told(), None);
    assert_eq!(only(&world).bindings.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn without_slices_a_replica_does_not_become_ready() {
    let (paths, _world, readiness) = mk_cluster();
    paths.set("/apis/discovery.k8s.io/v1/endpointslices", Kind::Forbidden);
    seconds(120).await;
    assert_eq!(readiness.pending(), ["watches"]);
}

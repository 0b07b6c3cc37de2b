//! Services, Ingresses and their classes in; who sends by a Service out.

use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::*;

const MEMORY: Duration = Duration::from_mins(35);

fn mk<T: DeserializeOwned>(name: &str, annotations: &Value, spec: &Value) -> T {
    let namespace = "shop";
    let metadata = json!({"name": name, "namespace": namespace, "annotations": annotations});
    serde_json::from_value(json!({"metadata": metadata, "spec": spec}))
        .expect("the object must decode")
}

fn web() -> Sender {
    Sender {
        namespace: "shop".to_owned(),
        name: "web".to_owned(),
    }
}

/// A store that has seen Service `web`.
fn mk_store(annotations: &Value, spec: &Value) -> Services {
    let mut store = Services::new(MEMORY);
    let service = mk("web", annotations, spec);
    store.on_service(Event::Apply(service), Instant::now());
    store
}

fn add_class(store: &mut Services, name: &str, controller: &str, is_default: bool) {
    let annotations = json!({ DEFAULT_CLASS: is_default.to_string() });
    let class = mk(name, &annotations, &json!({"controller": controller}));
    store.on_ingress_class(Event::Apply(class), Instant::now());
}

fn mk_ingress(annotations: &Value, class: &Value) -> Ingress {
    let backend = json!({"service": {"name": "web", "port": {"number": 80}}});
    let path = json!({"path": "/", "pathType": "Prefix", "backend": backend});
    let spec = json!({"ingressClassName": class, "rules": [{}, {"http": {"paths": [path]}}]});
    mk("web", annotations, &spec)
}

#[tokio::test(start_paused = true)]
async fn nlb_is_told_by_class_or_annotation() {
    for (annotation, spec, family) in [
        (
            json!(null),
            json!({"type": "LoadBalancer", "loadBalancerClass": "service.k8s.aws/nlb"}),
            true,
        ),
        (
            json!(null),
            json!({"type": "LoadBalancer", "loadBalancerClass": "eks.amazonaws.com/nlb"}),
            true,
        ),
        (json!("nlb"), json!({"type": "LoadBalancer"}), true),
        (json!("nlb-ip"), json!({"type": "LoadBalancer"}), true),
        (json!("external"), json!({"type": "LoadBalancer"}), true),
        (json!("clb"), json!({"type": "LoadBalancer"}), false),
        (json!(null), json!({"type": "LoadBalancer"}), false),
        (json!("external"), json!({"type": "ClusterIP"}), false),
    ] {
        let annotations = annotation.as_str().map(|value| json!({ AWS_TYPE: value }));
        let store = mk_store(&json!(annotations), &spec);
        assert_eq!(
            store.family(&web()).is_some(),
            family,
            "{annotation} {spec}"
        );
        assert_eq!(store.unknown_controller(&web()), None);
    }
}

#[tokio::test(start_paused = true)]
async fn load_balancer_class_that_is_not_ours_to_know_is_named() {
    let spec = json!({"type": "LoadBalancer", "loadBalancerClass": "example.com/lb"});
    assert_eq!(
        mk_store(&json!(null), &spec).unknown_controller(&web()),
        Some("loadBalancerClass example.com/lb".to_owned())
    );
}

#[tokio::test(start_paused = true)]
async fn ingress_is_judged_by_the_controller_of_its_class() {
    let unknown = |class: &str, controller: &str| {
        Some(format!("ingress class {class}, controller {controller}"))
    };
    for (controller, expected) in [
        ("ingress.k8s.aws/alb", None),
        ("k8s.io/ingress-nginx", None),
        ("haproxy.org/ingress-controller/internal", None),
        (
            "haproxy.org/ingress-controllers",
            unknown("c", "haproxy.org/ingress-controllers"),
        ),
        ("example.com/lb", unknown("c", "example.com/lb")),
        // GCE's container-native load balancing gets a method of its own later.
        (
            "networking.gke.io/ingress-gce",
            unknown("c", "networking.gke.io/ingress-gce"),
        ),
    ] {
        let mut store = mk_store(&json!(null), &json!({}));
        store.on_ingress(
            Event::Apply(mk_ingress(&json!(null), &json!("c"))),
            Instant::now(),
        );
        assert_eq!(
            store.unknown_controller(&web()),
            Some("ingress class c".to_owned()),
            "nothing says whose class that is"
        );
        add_class(&mut store, "c", controller, false);
        assert_eq!(store.unknown_controller(&web()), expected);
    }
}

#[tokio::test(start_paused = true)]
async fn class_is_named_by_the_annotation_before_the_field_and_by_the_default_class_after() {
    let judge = |annotation: Option<&str>, class: Value, default: Option<&str>| {
        let mut store = mk_store(&json!(null), &json!({}));
        let annotations = json!(annotation.map(|value| json!({ CLASS_ANNOTATION: value })));
        store.on_ingress(
            Event::Apply(mk_ingress(&annotations, &class)),
            Instant::now(),
        );
        add_class(&mut store, "good", "k8s.io/ingress-nginx", false);
        add_class(&mut store, "bad", "example.com/lb", false);
        if let Some(controller) = default {
            add_class(&mut store, "standard", controller, true);
        }
        store.unknown_controller(&web())
    };
    assert_eq!(judge(Some("good"), json!("bad"), None), None);
    assert!(judge(Some("bad"), json!("good"), None).is_some());
    // Values of the time before IngressClasses.
    assert_eq!(judge(Some("nginx"), json!(null), None), None);
    assert!(judge(Some("gce"), json!(null), None).is_some());
    assert!(judge(None, json!(null), None).is_some());
    assert_eq!(
        judge(None, json!(null), Some("traefik.io/ingress-controller")),
        None
    );
    assert!(judge(None, json!(null), Some("example.com/lb")).is_some());
}

#[tokio::test(start_paused = true)]
async fn only_services_that_an_ingress_refers_to_are_its_own() {
    let t0 = Instant::now();
    let mut store = mk_store(&json!(null), &json!({}));
    let api = Sender {
        name: "api".to_owned(),
        ..web()
    };
    let default = json!({"ingressClassName": "x", "defaultBackend": {"service": {"name": "api"}}});
    let ingress: Ingress = mk("all", &json!(null), &default);
    store.on_ingress(Event::Apply(ingress), t0);
    assert!(store.unknown_controller(&api).is_some());
    assert_eq!(store.unknown_controller(&web()), None);
    let elsewhere = Sender {
        namespace: "other".to_owned(),
        ..api.clone()
    };
    assert_eq!(store.unknown_controller(&elsewhere), None);
    let resource = json!({"ingressClassName": "x", "defaultBackend": {"resource": {"kind": "B", "name": "api"}}});
    let ingress: Ingress = mk("all", &json!(null), &resource);
    store.on_ingress(Event::Apply(ingress), t0);
    assert_eq!(store.unknown_controller(&api), None);
}

#[tokio::test(start_paused = true)]
async fn what_went_is_remembered_for_holds_but_selects_no_new_pods() {
    let t0 = Instant::now();
    let spec = json!({"type": "LoadBalancer", "loadBalancerClass": "example.com/lb", "selector": {"app": "web"}});
    let mut store = mk_store(&json!(null), &spec);
    assert_eq!(store.selectors().count(), 1);
    // Missing from a new list.
    store.on_service(Event::Init, t0);
    store.on_service(Event::InitDone, t0);
    assert_eq!(store.selectors().count(), 0);
    store.prune(t0 + MEMORY - Duration::from_secs(1));
    assert!(store.unknown_controller(&web()).is_some());
    store.prune(t0 + MEMORY);
    assert_eq!(store.unknown_controller(&web()), None);
}

#[tokio::test(start_paused = true)]
async fn service_without_a_selector_selects_nothing() {
    for spec in [json!({}), json!({"selector": {}})] {
        assert_eq!(mk_store(&json!(null), &spec).selectors().count(), 0);
    }
}

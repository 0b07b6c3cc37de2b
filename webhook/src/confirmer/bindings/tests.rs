//! Bindings in, target groups of Services out.

use serde_json::{Value, json};

use super::*;

const MEMORY: Duration = Duration::from_mins(35);
const ARN: &str = "arn:aws:elasticloadbalancing:eu-west-1:111122223333:targetgroup/web/01";

const fn s(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn mk_binding(name: &str, spec: &Value, checkpoint: Option<&str>) -> DynamicObject {
    let annotations = checkpoint.map(|value| json!({ CHECKPOINT: value }));
    serde_json::from_value(json!({
        "apiVersion": "elbv2.k8s.aws/v1beta1",
        "kind": "TargetGroupBinding",
        "metadata": {"name": name, "namespace": "shop", "annotations": annotations},
        "spec": spec,
    }))
    .expect("the binding must decode")
}

fn mk_spec(service: &str, arn: &str) -> Value {
    json!({"targetGroupARN": arn, "targetType": "ip", "targetGroupProtocol": "TCP", "serviceRef": {"name": service, "port": 80}})
}

fn service(name: &str) -> Sender {
    Sender {
        namespace: "shop".to_owned(),
        name: name.to_owned(),
    }
}

/// A store that has seen an empty first list.
fn mk_store(now: Instant) -> Bindings {
    let mut store = Bindings::new(MEMORY);
    store.on_event(Origin::Controller, Event::Init, now);
    store.on_event(Origin::Controller, Event::InitDone, now);
    store
}

fn apply(store: &mut Bindings, binding: DynamicObject, now: Instant) -> Vec<Sender> {
    store.on_event(Origin::Controller, Event::Apply(binding), now)
}

fn only(store: &Bindings, name: &str, now: Instant) -> Bound {
    let bound = store.of(&service(name), now);
    assert_eq!(bound.len(), 1, "{bound:?}");
    bound.into_iter().next().expect("there is one")
}

fn arns(store: &Bindings, name: &str, now: Instant) -> Vec<(String, bool)> {
    let bound = store.of(&service(name), now).into_iter();
    bound.map(|b| (b.group.to_string(), b.is_gone)).collect()
}

#[tokio::test(start_paused = true)]
async fn binding_tells_group_role_and_family() {
    let t0 = Instant::now();
    let mut store = mk_store(t0);
    let spec = json!({
        "targetGroupARN": ARN, "targetGroupName": "web", "targetType": "ip", "serviceRef": {"name": "web", "port": "http"},
        "targetGroupProtocol": "HTTPS", "iamRoleArnToAssume": "arn:aws:iam::444455556666:role/lb",
        "assumeRoleExternalId": "x", "multiClusterTargetGroup": true, "networking": {"ingress": []},
    });
    assert_eq!(
        apply(&mut store, mk_binding("web-tgb", &spec, None), t0),
        [service("web")]
    );
    let role = Role {
        arn: "arn:aws:iam::444455556666:role/lb".to_owned(),
        external_id: Some("x".to_owned()),
    };
    assert_eq!(
        only(&store, "web", t0),
        Bound {
            manages_rules: true,
            binding: "shop/web-tgb".to_owned(),
            group: TargetGroup {
                id: GroupId::Arn(ARN.to_owned()),
                role: Some(role)
            },
            family: Some(Family::Alb),
            checkpoint: None,
            is_gone: false,
        }
    );
    assert_eq!(store.of(&service("api"), t0), []);
}

#[tokio::test(start_paused = true)]
async fn name_is_all_that_some_bindings_give() {
    let t0 = Instant::now();
    let mut store = mk_store(t0);
    let spec =
        json!({"targetGroupARN": "", "targetGroupName": "web", "serviceRef": {"name": "web"}});
    apply(&mut store, mk_binding("b", &spec, None), t0);
    let bound = only(&store, "web", t0);
    assert_eq!(bound.group.id, GroupId::Name("web".to_owned()));
    assert_eq!(bound.family, None);
}

#[tokio::test(start_paused = true)]
async fn binding_that_registers_nodes_or_names_no_group_is_none_of_the_pods() {
    let t0 = Instant::now();
    let mut store = mk_store(t0);
    let nodes =
        json!({"targetGroupARN": ARN, "targetType": "instance", "serviceRef": {"name": "web"}});
    assert_eq!(
        apply(&mut store, mk_binding("n", &nodes, None), t0),
        [service("web")]
    );
    assert_eq!(store.of(&service("web"), t0), []);
    assert_eq!(store.of_nodes(&service("web")), ["shop/n"]);
    for spec in [
        json!({"targetType": "ip", "serviceRef": {"name": "web"}}),
        json!({"targetGroupARN": ARN}),
        json!({"targetGroupARN": [], "serviceRef": {"name": "web"}}),
    ] {
        assert_eq!(apply(&mut store, mk_binding("b", &spec, None), t0), []);
        assert_eq!(store.of(&service("web"), t0), [], "{spec}");
    }
    // It registers pods from now on; then it is gone.
    apply(&mut store, mk_binding("n", &mk_spec("web", ARN), None), t0);
    assert_eq!(store.of_nodes(&service("web")), [] as [String; 0]);
    assert_eq!(only(&store, "web", t0).binding, "shop/n");
    apply(&mut store, mk_binding("n", &nodes, None), t0);
    store.on_absent(Origin::Controller, t0);
    assert_eq!(store.of_nodes(&service("web")), [] as [String; 0]);
}

#[tokio::test(start_paused = true)]
async fn family_is_told_by_labels_where_no_protocol_is() {
    let t0 = Instant::now();
    for (protocol, label, family) in [
        (json!(null), "service.k8s.aws/stack-name", Some(Family::Nlb)),
        (json!(null), "ingress.k8s.aws/stack", Some(Family::Alb)),
        (
            json!("HTTP"),
            "service.k8s.aws/stack-name",
            Some(Family::Alb),
        ),
        (json!(null), "gateway.k8s.aws/stack-name", None),
        (json!("GENEVE"), "service.k8s.aws/stack-name", None),
    ] {
        let mut store = mk_store(t0);
        let mut spec = mk_spec("web", ARN);
        spec["targetGroupProtocol"] = protocol;
        let mut binding = mk_binding("b", &spec, None);
        binding.metadata.labels = Some([(label.to_owned(), "web".to_owned())].into());
        apply(&mut store, binding, t0);
        assert_eq!(only(&store, "web", t0).family, family, "{label}");
    }
}

#[tokio::test(start_paused = true)]
async fn checkpoint_is_dated_from_its_last_change() {
    let t0 = Instant::now();
    let mut store = mk_store(t0);
    let spec = mk_spec("web", ARN);
    let checkpoint = |is_blank, age, witnessed| {
        Some(Checkpoint {
            is_blank,
            age: s(age),
            witnessed,
        })
    };
    let mut set = |value: Option<&str>, at, look| {
        apply(&mut store, mk_binding("b", &spec, value), t0 + s(at));
        only(&store, "web", t0 + s(look)).checkpoint
    };
    assert_eq!(set(None, 0, 1), None);
    assert_eq!(set(Some("a/1"), 2, 3), checkpoint(false, 1, true));
    assert_eq!(set(Some("a/1"), 5, 6), checkpoint(false, 4, true));
    assert_eq!(set(Some(""), 10, 12), checkpoint(true, 2, true));
    assert_eq!(set(Some("b/1"), 13, 13), checkpoint(false, 0, true));
    // Once there, its absence says as little as a blank one.
    assert_eq!(set(None, 20, 21), checkpoint(true, 1, true));
}

#[tokio::test(start_paused = true)]
async fn checkpoint_of_the_first_list_was_not_witnessed_but_one_of_a_later_list_was() {
    let t0 = Instant::now();
    let mut store = Bindings::new(MEMORY);
    let mut list = |value, at| {
        let binding = mk_binding("b", &mk_spec("web", ARN), Some(value));
        store.on_event(Origin::Controller, Event::Init, at);
        store.on_event(Origin::Controller, Event::InitApply(binding), at);
        store.on_event(Origin::Controller, Event::InitDone, at);
        let checkpoint = only(&store, "web", at + s(1)).checkpoint;
        checkpoint.map(|c| (c.age, c.witnessed))
    };
    assert_eq!(list("a", t0), Some((s(1), false)));
    assert_eq!(list("a", t0 + s(3)), Some((s(4), false)));
    assert_eq!(list("b", t0 + s(9)), Some((s(1), true)));
}

#[tokio::test(start_paused = true)]
async fn binding_that_went_is_remembered_as_gone() {
    let t0 = Instant::now();
    let mut store = mk_store(t0);
    let binding = mk_binding("b", &mk_spec("web", ARN), Some("a"));
    apply(&mut store, binding.clone(), t0);
    let left = store.on_event(
        Origin::Controller,
        Event::Delete(binding.clone()),
        t0 + s(1),
    );
    assert_eq!(left, [service("web")]);
    assert_eq!(arns(&store, "web", t0 + s(1)), [(ARN.to_owned(), true)]);
    store.prune(t0 + MEMORY);
    assert_eq!(arns(&store, "web", t0 + s(1)).len(), 1);
    // Made anew in time, it is the same group again.
    apply(&mut store, binding.clone(), t0 + s(2));
    assert_eq!(arns(&store, "web", t0 + s(2)), [(ARN.to_owned(), false)]);
    store.on_event(Origin::Controller, Event::Delete(binding), t0 + s(3));
    store.prune(t0 + s(3) + MEMORY);
    assert_eq!(arns(&store, "web", t0 + s(3)), []);
}

#[tokio::test(start_paused = true)]
async fn switch_of_service_or_group_leaves_the_old_one_to_the_old_service() {
    let t0 = Instant::now();
    let mut store = mk_store(t0);
    apply(&mut store, mk_binding("b", &mk_spec("web", ARN), None), t0);
    assert_eq!(
        apply(&mut store, mk_binding("b", &mk_spec("api", ARN), None), t0),
        [service("web"), service("api")]
    );
    assert_eq!(arns(&store, "web", t0), [(ARN.to_owned(), true)]);
    assert_eq!(arns(&store, "api", t0), [(ARN.to_owned(), false)]);
    apply(
        &mut store,
        mk_binding("b", &mk_spec("api", "arn:2"), None),
        t0,
    );
    assert_eq!(
        arns(&store, "api", t0),
        [(ARN.to_owned(), true), ("arn:2".to_owned(), false)]
    );
}

#[tokio::test(start_paused = true)]
async fn several_bindings_of_both_kinds_are_kept_apart() {
    let t0 = Instant::now();
    let mut store = mk_store(t0);
    apply(
        &mut store,
        mk_binding("b", &mk_spec("web", "arn:1"), None),
        t0,
    );
    apply(
        &mut store,
        mk_binding("c", &mk_spec("web", "arn:2"), None),
        t0,
    );
    let auto = mk_binding("b", &mk_spec("web", "arn:3"), None);
    store.on_event(Origin::AutoMode, Event::Apply(auto), t0);
    assert_eq!(arns(&store, "web", t0).len(), 3);
    // One kind is uninstalled, or missing from a new list.
    assert_eq!(store.on_absent(Origin::AutoMode, t0), [service("web")]);
    let gone = |store: &Bindings| {
        let mut gone = arns(store, "web", t0);
        gone.retain(|(_, is_gone)| *is_gone);
        gone.into_iter().map(|(arn, _)| arn).collect::<Vec<_>>()
    };
    assert_eq!(gone(&store), ["arn:3"]);
    store.on_event(Origin::Controller, Event::Init, t0);
    let kept = mk_binding("c", &mk_spec("web", "arn:2"), None);
    store.on_event(Origin::Controller, Event::InitApply(kept), t0);
    store.on_event(Origin::Controller, Event::InitDone, t0);
    assert_eq!(gone(&store), ["arn:1", "arn:3"]);
}

#[tokio::test(start_paused = true)]
async fn slow_binding_is_told_by_itself_or_else_by_the_service() {
    let t0 = Instant::now();
    let mut store = mk_store(t0);
    let web = service("web");
    let nlb = |name: &str| Some((name.to_owned(), Some(Family::Nlb)));
    let mut spec = mk_spec("web", ARN);
    spec["targetGroupProtocol"] = json!("HTTP");
    apply(&mut store, mk_binding("alb", &spec, None), t0);
    assert_eq!(store.slow(&web, Some(Family::Nlb)), None);
    spec["targetGroupProtocol"] = json!(null);
    let quiet = mk_binding("b", &spec, None);
    apply(&mut store, quiet.clone(), t0);
    assert_eq!(store.slow(&web, Some(Family::Nlb)), nlb("shop/b"));
    assert_eq!(store.slow(&web, None), Some(("shop/b".to_owned(), None)));
    let sure = mk_binding("c", &mk_spec("web", "arn:2"), None);
    apply(&mut store, sure.clone(), t0);
    assert_eq!(store.slow(&web, None), nlb("shop/c"));
    for binding in [quiet, sure] {
        store.on_event(Origin::Controller, Event::Delete(binding), t0);
    }
    assert_eq!(store.slow(&web, Some(Family::Nlb)), None);
}

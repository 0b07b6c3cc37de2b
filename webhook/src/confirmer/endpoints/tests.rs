//! Slices in, evidence out.

use std::time::Duration;

use k8s_openapi::api::discovery::v1::EndpointSlice;
use serde_json::json;
use tokio::time::Instant;

use super::{Endpoints, Seen, Sender};
use crate::confirmer::sender::{Others, SenderSeen};

const MEMORY: Duration = Duration::from_mins(35);

const fn s(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// A slice `name` of Service `web` with (uid, ready, terminating) entries.
fn mk_slice(name: &str, endpoints: &[(&str, bool, bool)]) -> EndpointSlice {
    let endpoints: Vec<_> = endpoints
        .iter()
        .map(|(uid, ready, terminating)| {
            json!({
                "addresses": ["198.18.0.7"],
                "conditions": {"ready": ready, "serving": true, "terminating": terminating},
                "targetRef": {"kind": "Pod", "name": "web-0", "namespace": "shop", "uid": uid},
            })
        })
        .collect();
    serde_json::from_value(json!({
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": name, "namespace": "shop", "labels": {"kubernetes.io/service-name": "web"}},
        "addressType": "IPv4",
        "endpoints": endpoints,
        "ports": [],
    }))
    .expect("the slice must decode")
}

fn seen(index: &Endpoints, uid: &str, now: Instant) -> Vec<(Sender, Seen)> {
    let senders = index.of_pod(uid, now).into_iter();
    senders.map(|seen| (seen.sender, seen.seen)).collect()
}

/// What the one Service of a pod has besides it.
fn others(index: &Endpoints, uid: &str, now: Instant) -> Others {
    let [SenderSeen { others, .. }] = index.of_pod(uid, now)[..] else {
        panic!("{uid} must have one Service");
    };
    others
}

fn ready(seconds: u64) -> Others {
    Others::Ready { age: s(seconds) }
}

fn web() -> Sender {
    Sender {
        namespace: "shop".to_owned(),
        name: "web".to_owned(),
    }
}

/// An index that has seen an empty first list at `now`.
fn mk_index(now: Instant) -> Endpoints {
    let mut index = Endpoints::new(MEMORY);
    index.list_begins();
    index.list_ends(now);
    index
}

#[tokio::test(start_paused = true)]
async fn ready_endpoint_is_registered_and_its_drop_is_dated() {
    let t0 = Instant::now();
    let mut index = mk_index(t0);
    assert_eq!(
        index
            .apply(
                &mk_slice("web-a", &[("u1", true, false), ("u2", true, false)]),
                t0
            )
            .len(),
        2
    );
    assert_eq!(seen(&index, "u1", t0), [(web(), Seen::Registered)]);
    assert_eq!(
        index.apply(
            &mk_slice("web-a", &[("u1", false, true), ("u2", true, false)]),
            t0 + s(10)
        ),
        ["u1"]
    );
    let dropped = Seen::Dropped {
        age: s(3),
        witnessed: true,
    };
    assert_eq!(seen(&index, "u1", t0 + s(13)), [(web(), dropped)]);
    assert_eq!(seen(&index, "u2", t0 + s(13)), [(web(), Seen::Registered)]);
    assert_eq!(seen(&index, "u3", t0), []);
}

#[tokio::test(start_paused = true)]
async fn every_slice_of_a_service_must_drop_the_pod_and_the_last_one_counts() {
    let t0 = Instant::now();
    let mut index = mk_index(t0);
    index.apply(&mk_slice("web-v4", &[("u1", true, false)]), t0);
    index.apply(&mk_slice("web-v6", &[("u1", true, false)]), t0);
    index.apply(&mk_slice("web-v4", &[("u1", false, true)]), t0 + s(1));
    assert_eq!(seen(&index, "u1", t0 + s(2)), [(web(), Seen::Registered)]);
    index.apply(&mk_slice("web-v6", &[("u1", false, true)]), t0 + s(4));
    assert_eq!(
        seen(&index, "u1", t0 + s(9)),
        [(
            web(),
            Seen::Dropped {
                age: s(5),
                witnessed: true
            }
        )]
    );
}

#[tokio::test(start_paused = true)]
async fn re_registration_resets_the_evidence() {
    let t0 = Instant::now();
    let mut index = mk_index(t0);
    index.apply(&mk_slice("web-a", &[("u1", true, false)]), t0);
    index.apply(&mk_slice("web-a", &[("u1", false, false)]), t0 + s(1));
    index.apply(&mk_slice("web-a", &[("u1", true, false)]), t0 + s(3));
    assert_eq!(seen(&index, "u1", t0 + s(4)), [(web(), Seen::Registered)]);
    index.apply(&mk_slice("web-a", &[("u1", false, false)]), t0 + s(5));
    assert_eq!(
        seen(&index, "u1", t0 + s(6)),
        [(
            web(),
            Seen::Dropped {
                age: s(1),
                witnessed: true
            }
        )]
    );
}

#[tokio::test(start_paused = true)]
async fn pod_that_left_its_service_before_the_deletion_is_remembered() {
    let t0 = Instant::now();
    let mut index = mk_index(t0);
    index.apply(&mk_slice("web-a", &[("u1", true, false)]), t0);
    assert_eq!(index.apply(&mk_slice("web-a", &[]), t0 + s(2)), ["u1"]);
    assert_eq!(
        seen(&index, "u1", t0 + s(5)),
        [(
            web(),
            Seen::Dropped {
                age: s(3),
                witnessed: true
            }
        )]
    );
    index.prune(t0 + s(2) + MEMORY - s(1));
    assert_eq!(seen(&index, "u1", t0 + s(5)).len(), 1);
    index.prune(t0 + s(2) + MEMORY);
    assert_eq!(seen(&index, "u1", t0 + s(5)), []);
}

#[tokio::test(start_paused = true)]
async fn leaving_the_slice_when_not_ready_keeps_the_age() {
    let t0 = Instant::now();
    let mut index = mk_index(t0);
    index.apply(&mk_slice("web-a", &[("u1", true, false)]), t0);
    index.apply(&mk_slice("web-a", &[("u1", false, true)]), t0 + s(1));
    index.delete(&mk_slice("web-a", &[]), t0 + s(8));
    assert_eq!(
        seen(&index, "u1", t0 + s(9)),
        [(
            web(),
            Seen::Dropped {
                age: s(8),
                witnessed: true
            }
        )]
    );
}

#[tokio::test(start_paused = true)]
async fn first_list_tells_what_is_so_but_not_since_when() {
    let t0 = Instant::now();
    let mut index = Endpoints::default();
    index.list_begins();
    index.apply(&mk_slice("web-a", &[("u1", false, true)]), t0);
    index.list_ends(t0);
    assert_eq!(
        seen(&index, "u1", t0 + s(2)),
        [(
            web(),
            Seen::Dropped {
                age: s(2),
                witnessed: false
            }
        )]
    );
}

#[tokio::test(start_paused = true)]
async fn slice_missing_from_a_new_list_is_gone() {
    let t0 = Instant::now();
    let mut index = mk_index(t0);
    index.apply(&mk_slice("web-a", &[("u1", true, false)]), t0);
    index.apply(&mk_slice("web-b", &[("u2", true, false)]), t0);
    index.list_begins();
    index.apply(&mk_slice("web-b", &[("u2", false, true)]), t0 + s(1));
    // The other one loses whoever could have taken its traffic.
    assert_eq!(index.list_ends(t0 + s(1)), ["u1", "u2"]);
    let dropped = Seen::Dropped {
        age: s(1),
        witnessed: true,
    };
    assert_eq!(seen(&index, "u1", t0 + s(2)), [(web(), dropped)]);
    assert_eq!(seen(&index, "u2", t0 + s(2)), [(web(), dropped)]);
}

/// S7: such a Service keeps a terminating pod ready.
#[tokio::test(start_paused = true)]
async fn terminating_endpoint_that_stays_ready_is_published_not_ready() {
    let t0 = Instant::now();
    let mut index = mk_index(t0);
    index.apply(&mk_slice("web-a", &[("u1", true, true)]), t0);
    assert_eq!(seen(&index, "u1", t0), [(web(), Seen::PublishedNotReady)]);
}

#[tokio::test(start_paused = true)]
async fn endpoint_without_conditions_is_ready_and_one_without_a_pod_is_passed_over() {
    let t0 = Instant::now();
    let mut slice = mk_slice("web-a", &[("u1", false, false), ("u2", true, false)]);
    slice.endpoints[0].conditions = None;
    slice.endpoints[1].target_ref = None;
    let mut index = mk_index(t0);
    assert_eq!(index.apply(&slice, t0), ["u1"]);
    assert_eq!(seen(&index, "u1", t0), [(web(), Seen::Registered)]);
}

#[tokio::test(start_paused = true)]
async fn slice_without_a_service_is_a_sender_of_its_own() {
    let t0 = Instant::now();
    let mut slice = mk_slice("by-hand", &[("u1", true, false)]);
    slice.metadata.labels = None;
    let mut index = mk_index(t0);
    index.apply(&slice, t0);
    assert_eq!(
        seen(&index, "u1", t0)[0].0,
        Sender {
            namespace: "shop".to_owned(),
            name: "by-hand".to_owned()
        }
    );
}

#[tokio::test(start_paused = true)]
async fn addresses_and_ports_are_kept_after_the_endpoint_left() {
    let t0 = Instant::now();
    let mk = |name: &str, address: &str, ports: &[u16]| {
        let mut slice = mk_slice(name, &[("u1", true, false)]);
        slice.endpoints[0].addresses = vec![address.to_owned()];
        slice.ports = serde_json::from_value(
            ports
                .iter()
                .map(|port| json!({"port": port}))
                .chain([json!({"name": "any"})])
                .collect(),
        )
        .expect("the ports must decode");
        slice
    };
    let mut index = mk_index(t0);
    index.apply(&mk("web-v4", "198.18.0.7", &[8080, 8443]), t0);
    let v6 = mk("web-v6", "2001:DB8:0::7", &[8080]);
    index.apply(&v6, t0);
    index.delete(&v6, t0 + s(1));
    index.apply(&mk_slice("web-v4", &[]), t0 + s(1));
    let [seen] = &index.of_pod("u1", t0 + s(1))[..] else {
        panic!("one Service must be known");
    };
    let parse = |ip: &str| ip.parse().expect("must be an address");
    assert_eq!(
        seen.addresses,
        ["198.18.0.7", "2001:db8::7"].map(parse).into()
    );
    assert_eq!(seen.ports, [8080, 8443].into());
}

#[tokio::test(start_paused = true)]
async fn others_are_those_of_every_slice_without_the_pod_itself() {
    let t0 = Instant::now();
    let mut index = mk_index(t0);
    // The pod itself in two families isn't another.
    index.apply(&mk_slice("web-v4", &[("u1", true, false)]), t0);
    index.apply(&mk_slice("web-v6", &[("u1", true, false)]), t0);
    assert_eq!(others(&index, "u1", t0), Others::None);
    index.apply(&mk_slice("web-b", &[("u2", false, true)]), t0);
    assert_eq!(others(&index, "u1", t0), Others::None, "it is terminating");
    index.apply(&mk_slice("web-b", &[("u2", false, false)]), t0);
    assert_eq!(others(&index, "u1", t0), Others::Starting);
    assert_eq!(others(&index, "u2", t0 + s(3)), ready(3));
    index.apply(&mk_slice("web-b", &[("u2", true, false)]), t0 + s(4));
    assert_eq!(others(&index, "u1", t0 + s(9)), ready(5));
    index.apply(&mk_slice("web-b", &[("u2", true, true)]), t0 + s(10));
    assert_eq!(others(&index, "u1", t0 + s(10)), Others::None);
}

#[tokio::test(start_paused = true)]
async fn age_of_the_others_begins_with_the_first_one_that_was_there_without_a_break() {
    let t0 = Instant::now();
    let mut index = mk_index(t0);
    let all = |u1, u2, u3| {
        mk_slice(
            "web-a",
            &[("u1", u1, !u1), ("u2", u2, !u2), ("u3", u3, !u3)],
        )
    };
    index.apply(&all(true, false, false), t0);
    index.apply(&all(true, true, false), t0 + s(10));
    // It was alone until then, however long it had been ready itself.
    index.apply(&all(false, true, false), t0 + s(11));
    assert_eq!(others(&index, "u1", t0 + s(12)), ready(2));
    // Another takes over in time: no break.
    index.apply(&all(false, true, true), t0 + s(20));
    index.apply(&all(false, false, true), t0 + s(21));
    assert_eq!(others(&index, "u1", t0 + s(22)), ready(12));
    assert_eq!(others(&index, "u2", t0 + s(22)), ready(2));
    // A break.
    index.apply(&all(false, false, false), t0 + s(30));
    assert_eq!(others(&index, "u1", t0 + s(30)), Others::None);
    index.apply(&all(false, false, true), t0 + s(31));
    assert_eq!(others(&index, "u1", t0 + s(33)), ready(2));
    assert_eq!(others(&index, "u2", t0 + s(33)), ready(2));
    assert_eq!(index.ready(&web()), 1);
}

#[tokio::test(start_paused = true)]
async fn endpoint_that_is_no_pod_is_another_by_its_address() {
    let t0 = Instant::now();
    let mut index = mk_index(t0);
    let mut slice = mk_slice("web-b", &[("", true, false)]);
    slice.endpoints[0].target_ref = None;
    slice.endpoints[0].addresses = vec!["192.0.2.1".to_owned()];
    index.apply(&slice, t0);
    index.apply(&mk_slice("web-a", &[("u1", false, true)]), t0);
    assert_eq!(others(&index, "u1", t0 + s(1)), ready(1));
    assert_eq!(seen(&index, "192.0.2.1", t0), []);
    assert_eq!(index.ready(&web()), 1);
}

/// A hold may wait for nothing else than a replacement.
#[tokio::test(start_paused = true)]
async fn pod_that_waits_for_a_replacement_hears_of_it() {
    let t0 = Instant::now();
    let mut index = mk_index(t0);
    index.apply(&mk_slice("web-a", &[("u1", false, true)]), t0);
    assert_eq!(
        index.apply(&mk_slice("web-b", &[("u2", false, false)]), t0),
        ["u1", "u2"]
    );
    assert_eq!(
        index.apply(&mk_slice("web-b", &[("u2", true, false)]), t0),
        ["u1", "u2"]
    );
    let third = mk_slice("web-c", &[("u3", true, false), ("u4", true, false)]);
    index.apply(&third, t0);
    // From then on it makes no difference.
    assert_eq!(
        index.apply(&mk_slice("web-d", &[("u5", true, false)]), t0),
        ["u5"]
    );
}

#[tokio::test(start_paused = true)]
async fn beginning_to_terminate_when_not_ready_keeps_the_age() {
    let t0 = Instant::now();
    let mut index = mk_index(t0);
    index.apply(&mk_slice("web-a", &[("u1", true, false)]), t0);
    index.apply(&mk_slice("web-a", &[("u1", false, false)]), t0 + s(1));
    index.apply(&mk_slice("web-a", &[("u1", false, true)]), t0 + s(5));
    let dropped = Seen::Dropped {
        age: s(8),
        witnessed: true,
    };
    assert_eq!(seen(&index, "u1", t0 + s(9)), [(web(), dropped)]);
}

#[tokio::test(start_paused = true)]
async fn slice_that_changes_its_service_leaves_the_old_one() {
    let t0 = Instant::now();
    let mut index = mk_index(t0);
    let mut slice = mk_slice("web-a", &[("u1", true, false)]);
    index.apply(&slice, t0);
    slice.metadata.labels =
        Some([("kubernetes.io/service-name".to_owned(), "api".to_owned())].into());
    index.apply(&slice, t0 + s(1));
    let dropped = Seen::Dropped {
        age: s(1),
        witnessed: true,
    };
    let [(api, Seen::Registered), left] = &seen(&index, "u1", t0 + s(2))[..] else {
        panic!("both must be known");
    };
    assert_eq!((&*api.name, left), ("api", &(web(), dropped)));
}

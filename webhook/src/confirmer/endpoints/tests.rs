//! Slices in, evidence out.

use std::time::Duration;

use k8s_openapi::api::discovery::v1::EndpointSlice;
use serde_json::json;
use tokio::time::Instant;

use super::{Endpoints, Seen, Sender};

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
    assert_eq!(index.of_pod("u1", t0), [(web(), Seen::Registered)]);
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
    assert_eq!(index.of_pod("u1", t0 + s(13)), [(web(), dropped)]);
    assert_eq!(index.of_pod("u2", t0 + s(13)), [(web(), Seen::Registered)]);
    assert_eq!(index.of_pod("u3", t0), []);
}

#[tokio::test(start_paused = true)]
async fn every_slice_of_a_service_must_drop_the_pod_and_the_last_one_counts() {
    let t0 = Instant::now();
    let mut index = mk_index(t0);
    index.apply(&mk_slice("web-v4", &[("u1", true, false)]), t0);
    index.apply(&mk_slice("web-v6", &[("u1", true, false)]), t0);
    index.apply(&mk_slice("web-v4", &[("u1", false, true)]), t0 + s(1));
    assert_eq!(index.of_pod("u1", t0 + s(2)), [(web(), Seen::Registered)]);
    index.apply(&mk_slice("web-v6", &[("u1", false, true)]), t0 + s(4));
    assert_eq!(
        index.of_pod("u1", t0 + s(9)),
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
    assert_eq!(index.of_pod("u1", t0 + s(4)), [(web(), Seen::Registered)]);
    index.apply(&mk_slice("web-a", &[("u1", false, false)]), t0 + s(5));
    assert_eq!(
        index.of_pod("u1", t0 + s(6)),
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
        index.of_pod("u1", t0 + s(5)),
        [(
            web(),
            Seen::Dropped {
                age: s(3),
                witnessed: true
            }
        )]
    );
    index.prune(t0 + s(2) + MEMORY - s(1));
    assert_eq!(index.of_pod("u1", t0 + s(5)).len(), 1);
    index.prune(t0 + s(2) + MEMORY);
    assert_eq!(index.of_pod("u1", t0 + s(5)), []);
}

#[tokio::test(start_paused = true)]
async fn leaving_the_slice_when_not_ready_keeps_the_age() {
    let t0 = Instant::now();
    let mut index = mk_index(t0);
    index.apply(&mk_slice("web-a", &[("u1", true, false)]), t0);
    index.apply(&mk_slice("web-a", &[("u1", false, true)]), t0 + s(1));
    index.delete(&mk_slice("web-a", &[]), t0 + s(8));
    assert_eq!(
        index.of_pod("u1", t0 + s(9)),
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
        index.of_pod("u1", t0 + s(2)),
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
    assert_eq!(index.list_ends(t0 + s(1)), ["u1"]);
    let dropped = Seen::Dropped {
        age: s(1),
        witnessed: true,
    };
    assert_eq!(index.of_pod("u1", t0 + s(2)), [(web(), dropped)]);
    assert_eq!(index.of_pod("u2", t0 + s(2)), [(web(), dropped)]);
}

/// S7: such a Service keeps a terminating pod ready.
#[tokio::test(start_paused = true)]
async fn terminating_endpoint_that_stays_ready_is_published_not_ready() {
    let t0 = Instant::now();
    let mut index = mk_index(t0);
    index.apply(&mk_slice("web-a", &[("u1", true, true)]), t0);
    assert_eq!(index.of_pod("u1", t0), [(web(), Seen::PublishedNotReady)]);
}

#[tokio::test(start_paused = true)]
async fn endpoint_without_conditions_is_ready_and_one_without_a_pod_is_passed_over() {
    let t0 = Instant::now();
    let mut slice = mk_slice("web-a", &[("u1", false, false), ("u2", true, false)]);
    slice.endpoints[0].conditions = None;
    slice.endpoints[1].target_ref = None;
    let mut index = mk_index(t0);
    assert_eq!(index.apply(&slice, t0), ["u1"]);
    assert_eq!(index.of_pod("u1", t0), [(web(), Seen::Registered)]);
}

#[tokio::test(start_paused = true)]
async fn slice_without_a_service_is_a_sender_of_its_own() {
    let t0 = Instant::now();
    let mut slice = mk_slice("by-hand", &[("u1", true, false)]);
    slice.metadata.labels = None;
    let mut index = mk_index(t0);
    index.apply(&slice, t0);
    assert_eq!(
        index.of_pod("u1", t0)[0].0,
        Sender {
            namespace: "shop".to_owned(),
            name: "by-hand".to_owned()
        }
    );
}

//! The traffic lab: what users behind a load balancer see while pods are replaced.
//!
//! ```text
//! load ──► haproxy ──► pods          requests, from outside the cluster; nothing is retried
//!             ▲          │
//!         endpoints      │ log       SIGTERM and last request, in the app's own words
//!             ▲          ▼
//! EndpointSlices, Pods ─► ledger     what happened to each pod, and when
//! ```
//!
//! `HAProxy` is only the data plane. What makes it behave like a cloud's load balancer is the
//! [`endpoints`] follower: additions at once, removals late, by the pure schedule of [`follower`].
//! [`trial`] runs one [`variant`] under load, [`report`] says what came of it.

pub mod endpoints;
pub mod failure;
pub mod follower;
pub mod haproxy;
pub mod ledger;
pub mod load;
pub mod manifests;
pub mod pods;
pub mod report;
pub mod rollout;
pub mod slots;
pub mod story;
pub mod trial;
pub mod variant;
pub mod workload;

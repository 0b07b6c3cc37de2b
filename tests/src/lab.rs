//! The traffic lab: what users behind a load balancer see while pods are replaced.
//!
//! ```text
//! clients ─► haproxy ──► pods           requests, from outside the cluster; nothing is retried
//!               ▲          │
//!           schedule       │ log        SIGTERM and what came last, in the app's own words
//!               ▲          ▼
//! crate::aws ───┴──────► ledger ─► outcome ─► report, table, timeline
//!     ▲
//! TargetGroupBindings (crate::aws::controller), DescribeTargetHealth (the confirmer)
//! ```
//!
//! `HAProxy` is only the data plane. What makes it behave like a cloud's load balancer is [`dataplane`]: each of its
//! sources obeys the fake API at once when a target comes and late when one goes, by the pure [`schedule`], with lags
//! that are drawn ([`draw`]) and that nobody can read from the API. A [`trial`] runs one [`cell`] of the matrix, a
//! [`batch`] several of them at once, in the order of the [`plan`]. Whose fault a missing answer is, [`verdict`] says,
//! and how long a hold may last, [`bound`].

pub mod account;
pub mod balancer;
pub mod batch;
pub mod bound;
pub mod cell;
pub mod clients;
pub mod dataplane;
pub mod draw;
pub mod failure;
pub mod haproxy;
pub mod ledger;
pub mod load;
pub mod manifests;
pub mod outcome;
pub mod plan;
pub mod pods;
pub mod pool;
pub mod released;
pub mod report;
pub mod schedule;
pub mod scraper;
pub mod seen;
pub mod session;
pub mod site;
pub mod slots;
pub mod statistics;
pub mod story;
pub mod table;
pub mod tally;
pub mod timeline;
pub mod traffic;
pub mod trial;
pub mod variant;
pub mod verdict;
pub mod workload;

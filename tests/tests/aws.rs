//! Pods in target groups: the real prestop-gate against a stand-in for AWS that listens outside the cluster, one for
//! the AWS Load Balancer Controller, and a data plane that lags behind both.
//!
//! Upper bounds leave a busy machine several seconds, and the budget of two calls a second, which all tests share.
#![allow(clippy::unwrap_used, reason = "a test that fails shows where")]

use std::time::Duration;

#[path = "aws/admission.rs"]
mod admission;
#[path = "aws/data_plane.rs"]
mod data_plane;
#[path = "aws/drain_delay.rs"]
mod drain_delay;
#[path = "aws/late.rs"]
mod late;
#[path = "aws/left.rs"]
mod left;
#[path = "aws/rollouts.rs"]
mod rollouts;
#[path = "aws/scene.rs"]
mod scene;
#[path = "aws/world.rs"]
mod world;

const fn s(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

//! Harness of the tests: a real Kubernetes cluster on this machine, and what tests do with it.
//!
//! ```text
//! bin/cluster ── supervisor ── start ──┬── control_plane, node   command lines and configuration
//!                    │                 ├── netns, cgroup, pki    what must exist before
//!                    │                 └── images                our own, imported
//!                    ├── control  requests: stop the API server, …
//!                    └── cleanup  removes everything, also what a killed run left
//!
//! aws  a stand-in for AWS and one for its load balancer controller, which need no cluster to be tested
//!
//! a test ── Cluster::from_env ── TestNamespace   apply, wait, Events
//!                             └─ ContainerLog    what a container wrote until its end
//! ```

pub mod aws;
pub mod cgroup;
pub mod cleanup;
pub mod client;
pub mod cluster;
pub mod control;
pub mod control_plane;
pub mod gate;
pub mod http;
pub mod images;
pub mod lab;
pub mod layout;
pub mod logs;
pub mod namespace;
pub mod netns;
pub mod node;
pub mod pki;
pub mod process;
pub mod start;
pub mod supervisor;

pub use cluster::Cluster;
pub use logs::ContainerLog;
pub use namespace::TestNamespace;

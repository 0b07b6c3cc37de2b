//! Why a pod's hooks run: asked of the API server once per hold.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{Api, Client, ResourceExt};
use tokio::time::{sleep, timeout};
use tracing::warn;

use super::auth::PodIdentity;
use super::budget::Deletion;
use super::watches::deletion;

/// Longest wait for the pod. With [`NODE_TIMEOUT`] it stays below the 5 s that a waiter gives its first turn.
const POD_TIMEOUT: Duration = Duration::from_secs(2);

/// Longest wait for both looks at the node, [`SECOND_LOOK`] included.
const NODE_TIMEOUT: Duration = Duration::from_millis(2500);

/// How far apart a healthy node is looked at twice: conditions are written asynchronously.
const SECOND_LOOK: Duration = Duration::from_secs(1);

/// Why the hooks of a pod run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// The pod is being deleted.
    Terminating(Deletion),
    /// It isn't, and its node is well: a container is being restarted.
    Restart,
    /// It isn't, and its node is shutting down, under pressure or unknown.
    NodeFailing,
    /// There is no pod with this UID any more.
    Gone,
}

/// The API server couldn't be asked.
#[derive(Debug, thiserror::Error)]
#[error("failed to classify pod {namespace}/{name}")]
pub struct Error {
    namespace: String,
    name: String,
    #[source]
    source: kube::Error,
}

/// A pod as the API server has it now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Found {
    /// It is being deleted.
    Terminating(Deletion),
    /// It isn't.
    Running {
        /// Where it runs.
        node: Option<String>,
    },
    /// There is no pod with this UID any more.
    Gone,
}

/// Reads a pod by a fresh GET.
///
/// Without a resourceVersion a GET goes to etcd, and the kubelet learns of a deletion only from the API: so "not
/// terminating" after a hook began proves a kill that the API server did not ask for. No cache may answer this.
///
/// # Errors
/// Where it couldn't be read in time.
pub async fn find(client: &Client, pod: &PodIdentity) -> Result<Found, Error> {
    let pods = Api::<Pod>::namespaced(client.clone(), &pod.namespace);
    let found = timeout(POD_TIMEOUT, pods.get_opt(&pod.name))
        .await
        .unwrap_or_else(|elapsed| Err(kube::Error::Service(elapsed.into())))
        .map_err(|source| Error {
            namespace: pod.namespace.clone(),
            name: pod.name.clone(),
            source,
        })?;
    Ok(
        match found.filter(|found| found.uid().as_deref() == Some(&pod.uid)) {
            None => Found::Gone,
            Some(found) => match deletion(&found.metadata) {
                Some(deletion) => Found::Terminating(deletion),
                None => Found::Running {
                    node: found.spec.and_then(|spec| spec.node_name),
                },
            },
        },
    )
}

/// Classifies a pod whose hooks run.
///
/// # Errors
/// Where the pod couldn't be read. A node that couldn't be read counts as failing: the short hold is the safe one.
pub async fn classify(client: &Client, pod: &PodIdentity) -> Result<Class, Error> {
    let node = match find(client, pod).await? {
        Found::Terminating(deletion) => return Ok(Class::Terminating(deletion)),
        Found::Gone => return Ok(Class::Gone),
        Found::Running { node } => node,
    };
    let Some(node) = node else {
        return Ok(Class::NodeFailing);
    };
    let is_well = timeout(NODE_TIMEOUT, stays_well(client, &node))
        .await
        .unwrap_or_else(|error| {
            warn!(%error, node, "Failed to read the node of a pod whose hooks run");
            false
        });
    Ok(if is_well {
        Class::Restart
    } else {
        Class::NodeFailing
    })
}

/// Whether a node is well at two looks.
async fn stays_well(client: &Client, name: &str) -> bool {
    let nodes = Api::<Node>::all(client.clone());
    for look in 0..2 {
        if look > 0 {
            sleep(SECOND_LOOK).await;
        }
        match nodes.get_opt(name).await {
            Ok(Some(node)) if is_well(&node) => {}
            Ok(_) => return false,
            Err(error) => {
                warn!(%error, node = name, "Failed to read the node of a pod whose hooks run");
                return false;
            }
        }
    }
    true
}

/// Whether a node is ready and under no pressure.
fn is_well(node: &Node) -> bool {
    let conditions = node
        .status
        .iter()
        .flat_map(|status| status.conditions.iter().flatten());
    let mut ready = false;
    for condition in conditions {
        match condition.type_.as_str() {
            "Ready" => ready = condition.status == "True",
            "MemoryPressure" | "DiskPressure" | "PIDPressure" if condition.status == "True" => {
                return false;
            }
            _ => {}
        }
    }
    ready
}

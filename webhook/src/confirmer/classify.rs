//! Why a pod's hooks run: asked of the API server once per hold.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{Api, Client, ResourceExt};
use tokio::time::{sleep, timeout};
use tracing::warn;

use super::auth::PodIdentity;
use super::budget::Deletion;
use super::watches::deletion;

/// Longest wait for one answer of the API server.
const API_TIMEOUT: Duration = Duration::from_secs(3);

/// How far apart a healthy node is looked at twice: conditions are written asynchronously.
const SECOND_LOOK: Duration = Duration::from_secs(1);

/// Why the hooks of a pod run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// The pod is being deleted.
    Deleting(Deletion),
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

/// Classifies by a fresh GET.
///
/// Without a resourceVersion a GET goes to etcd, and the kubelet learns of a deletion only from the API: so "not
/// deleting" after a hook began proves a kill that the API server did not ask for. No cache may answer this.
///
/// # Errors
/// Where the pod couldn't be read. A node that couldn't be read counts as failing: the short hold is the safe one.
pub async fn classify(client: &Client, pod: &PodIdentity) -> Result<Class, Error> {
    let error = |source| Error {
        namespace: pod.namespace.clone(),
        name: pod.name.clone(),
        source,
    };
    let found = bounded(Api::<Pod>::namespaced(client.clone(), &pod.namespace).get_opt(&pod.name))
        .await
        .map_err(error)?;
    let Some(found) = found.filter(|found| found.uid().as_deref() == Some(&pod.uid)) else {
        return Ok(Class::Gone);
    };
    if let Some(deletion) = deletion(&found.metadata) {
        return Ok(Class::Deleting(deletion));
    }
    let Some(node_name) = found.spec.and_then(|spec| spec.node_name) else {
        return Ok(Class::NodeFailing);
    };
    let nodes = Api::<Node>::all(client.clone());
    for look in 0..2 {
        if look > 0 {
            sleep(SECOND_LOOK).await;
        }
        let node = bounded(nodes.get_opt(&node_name))
            .await
            .unwrap_or_else(|error| {
                warn!(%error, node = node_name, "Failed to read the node of a pod whose hooks run");
                None
            });
        if !node.as_ref().is_some_and(is_well) {
            return Ok(Class::NodeFailing);
        }
    }
    Ok(Class::Restart)
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

async fn bounded<T>(call: impl Future<Output = kube::Result<T>>) -> kube::Result<T> {
    timeout(API_TIMEOUT, call)
        .await
        .unwrap_or_else(|elapsed| Err(kube::Error::Service(elapsed.into())))
}

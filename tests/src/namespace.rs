//! A Kubernetes namespace for one test, and what tests do in it.

use std::{
    fmt::{self, Debug},
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use anyhow::{Context, Result, bail};
use k8s_openapi::{
    NamespaceResourceScope,
    api::core::v1::{Event, Pod, ServiceAccount},
    jiff::Timestamp,
};
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{
        ApiResource, DynamicObject, GroupVersionKind, ListParams, LogParams, Patch, PatchParams,
    },
    runtime::wait::await_condition,
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep, timeout_at};

use crate::{Cluster, process};

/// How server-side apply names the owner of the fields that tests set.
const FIELD_MANAGER: &str = "tests";
/// The pause after a failed watch: the API server may be down on purpose.
const RETRY: Duration = Duration::from_millis(200);

static NEXT: AtomicU32 = AtomicU32::new(0);

/// A namespace of its own for one test. Dropping it tells the cluster to delete it, so that its pods
/// don't take CPU from the tests that follow; nobody waits for that.
pub struct TestNamespace {
    cluster: Cluster,
    client: Client,
    name: String,
}

impl TestNamespace {
    /// Creates the namespace `PREFIX-…` with labels, and waits until pods may be created in it.
    ///
    /// # Errors
    /// When that takes more than 30 s.
    pub async fn create(cluster: &Cluster, prefix: &str, labels: &[(&str, &str)]) -> Result<Self> {
        let client = cluster.client().await?;
        let name = format!(
            "{prefix}-{}-{}",
            std::process::id(),
            NEXT.fetch_add(1, Ordering::Relaxed)
        );
        let namespace = Self {
            cluster: cluster.clone(),
            client,
            name,
        };
        let labels: serde_json::Map<String, Value> = labels
            .iter()
            .map(|&(key, value)| (key.to_owned(), value.into()))
            .collect();
        apply(&namespace.client, None, json!({
            "apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace.name, "labels": labels},
        }))
        .await?;
        // Before its ServiceAccount exists, pods are forbidden.
        namespace
            .wait(
                "default",
                "is there",
                Duration::from_secs(30),
                |account: Option<&ServiceAccount>| account.is_some(),
            )
            .await?;
        Ok(namespace)
    }

    /// The namespace's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The cluster it is in.
    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// The administrator's client.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// The API of one kind in this namespace.
    pub fn api<K>(&self) -> Api<K>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
    {
        Api::namespaced(self.client.clone(), &self.name)
    }

    /// Applies a manifest (server-side), in this namespace, and returns what the API server made of it.
    ///
    /// # Errors
    /// When the manifest has no kind or name, or the API server refuses it.
    pub async fn apply(&self, manifest: Value) -> Result<DynamicObject> {
        apply(&self.client, Some(&self.name), manifest).await
    }

    /// Waits until `holds` is true of the object `name` (`None`: it doesn't exist), and returns it.
    /// Goes on through an API server that is away for a while.
    ///
    /// # Errors
    /// When it doesn't become true in time; the error shows the object's last state.
    pub async fn wait<K>(
        &self,
        name: &str,
        what: &str,
        within: Duration,
        holds: impl Fn(Option<&K>) -> bool + Clone,
    ) -> Result<Option<K>>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
        K: Clone + Debug + Send + DeserializeOwned + serde::Serialize + 'static,
    {
        let deadline = Instant::now() + within;
        loop {
            match timeout_at(
                deadline,
                await_condition(self.api::<K>(), name, holds.clone()),
            )
            .await
            {
                Ok(Ok(object)) => return Ok(object),
                Ok(Err(_)) => sleep(RETRY).await,
                Err(_) => break,
            }
        }
        let last = self.api::<K>().get(name).await;
        let last = last.map_or_else(
            |error| error.to_string(),
            |object| json!(object)["status"].to_string(),
        );
        bail!(
            "failed to see within {within:?} that {} {name} {what}; its status: {last}",
            K::kind(&())
        )
    }

    /// Waits until the pod is Ready.
    ///
    /// # Errors
    /// When that takes too long.
    pub async fn wait_ready(&self, pod: &str, within: Duration) -> Result<Pod> {
        let found = self
            .wait(pod, "is Ready", within, |pod: Option<&Pod>| {
                pod.is_some_and(is_ready)
            })
            .await?;
        found.with_context(|| format!("failed to find pod {pod}"))
    }

    /// Waits until the pod of this UID is gone, and returns when that was seen.
    ///
    /// # Errors
    /// When that takes too long.
    pub async fn wait_gone(&self, pod: &str, uid: &str, within: Duration) -> Result<Instant> {
        let uid = uid.to_owned();
        let other =
            move |pod: Option<&Pod>| pod.is_none_or(|pod| pod.uid().as_deref() != Some(&uid));
        self.wait(pod, "is gone", within, other).await?;
        Ok(Instant::now())
    }

    /// The Ready, not terminating pods that a label selector finds, once there are exactly `count`.
    ///
    /// # Errors
    /// When there are never as many in time.
    pub async fn wait_pods(
        &self,
        selector: &str,
        count: usize,
        within: Duration,
    ) -> Result<Vec<Pod>> {
        let deadline = Instant::now() + within;
        let mut seen = Vec::new();
        while Instant::now() < deadline {
            if let Ok(pods) = self
                .api::<Pod>()
                .list(&ListParams::default().labels(selector))
                .await
            {
                let living = |pod: &Pod| pod.metadata.deletion_timestamp.is_none();
                let (ready, other): (Vec<_>, Vec<_>) = pods
                    .items
                    .into_iter()
                    .partition(|pod| living(pod) && is_ready(pod));
                if ready.len() == count && !other.iter().any(living) {
                    return Ok(ready);
                }
                seen = ready.iter().map(ResourceExt::name_any).collect();
            }
            sleep(RETRY).await;
        }
        bail!("failed to see {count} Ready pods of {selector} within {within:?}, but {seen:?}")
    }

    /// A container's log so far.
    ///
    /// # Errors
    /// When the container never ran, or is gone.
    pub async fn logs(&self, pod: &str, container: &str) -> Result<String> {
        let wanted = LogParams {
            container: Some(container.to_owned()),
            ..LogParams::default()
        };
        let text = self.api::<Pod>().logs(pod, &wanted).await;
        text.with_context(|| format!("failed to read the log of {container} in pod {pod}"))
    }

    /// The Events about the object `name`, oldest first. They outlive the object.
    ///
    /// # Errors
    /// When they can't be listed.
    pub async fn events(&self, name: &str) -> Result<Vec<Event>> {
        let wanted = ListParams::default().fields(&format!("involvedObject.name={name}"));
        let mut events = self
            .api::<Event>()
            .list(&wanted)
            .await
            .context("failed to list Events")?
            .items;
        events.sort_by_key(began);
        Ok(events)
    }

    /// Runs `kubectl` in this namespace and returns what it printed on stdout.
    ///
    /// # Errors
    /// When it fails; what it printed on stderr is in the error.
    pub fn kubectl(&self, arguments: &[&str]) -> Result<String> {
        process::output(
            self.cluster
                .kubectl()
                .args(["--namespace", &self.name])
                .args(arguments),
        )
    }

    /// Runs `kubectl` in this namespace and returns its output, stderr with admission warnings included.
    ///
    /// # Errors
    /// When it can't be run. That it failed is in the output.
    pub fn kubectl_output(&self, arguments: &[&str]) -> Result<std::process::Output> {
        let mut command = self.cluster.kubectl();
        command.args(["--namespace", &self.name]).args(arguments);
        command.output().context("failed to run kubectl")
    }
}

impl Debug for TestNamespace {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_tuple("TestNamespace")
            .field(&self.name)
            .finish()
    }
}

impl Drop for TestNamespace {
    fn drop(&mut self) {
        let mut command = self.cluster.kubectl();
        command
            .args(["delete", "namespace", &self.name, "--wait=false"])
            .stdout(std::process::Stdio::null());
        drop(process::check(&mut command));
    }
}

/// Applies a manifest (server-side); `namespace` is filled in where one is given.
///
/// # Errors
/// When the manifest has no kind or name, or the API server refuses it.
pub async fn apply(
    client: &Client,
    namespace: Option<&str>,
    manifest: Value,
) -> Result<DynamicObject> {
    let object: DynamicObject =
        serde_json::from_value(manifest).context("failed to parse a manifest")?;
    let types = object
        .types
        .as_ref()
        .context("failed to find a manifest's kind")?;
    let name = object
        .metadata
        .name
        .clone()
        .context("failed to find a manifest's name")?;
    let kind =
        GroupVersionKind::try_from(types).context("failed to parse a manifest's apiVersion")?;
    let resource = ApiResource::from_gvk(&kind);
    let api: Api<DynamicObject> = match namespace {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
        None => Api::all_with(client.clone(), &resource),
    };
    let applied = api
        .patch(
            &name,
            &PatchParams::apply(FIELD_MANAGER).force(),
            &Patch::Apply(&object),
        )
        .await;
    applied.with_context(|| format!("failed to apply {} {name}", kind.kind))
}

/// Whether a pod's Ready condition is true.
pub fn is_ready(pod: &Pod) -> bool {
    let conditions = pod
        .status
        .as_ref()
        .and_then(|status| status.conditions.as_ref());
    conditions.is_some_and(|all| {
        all.iter()
            .any(|condition| condition.type_ == "Ready" && condition.status == "True")
    })
}

/// The id of a container of a pod, main or init, without `containerd://`.
///
/// # Errors
/// When the container hasn't been created.
pub fn container_id(pod: &Pod, container: &str) -> Result<String> {
    let status = pod.status.clone().unwrap_or_default();
    let mut all = status
        .container_statuses
        .into_iter()
        .chain(status.init_container_statuses)
        .flatten();
    let id = all
        .find(|it| it.name == container)
        .and_then(|it| it.container_id);
    let id = id.with_context(|| {
        format!(
            "failed to find container {container} of pod {}",
            pod.name_any()
        )
    })?;
    Ok(id.trim_start_matches("containerd://").to_owned())
}

fn began(event: &Event) -> Option<Timestamp> {
    let precise = event.event_time.as_ref().map(|time| time.0);
    precise.or_else(|| event.first_timestamp.as_ref().map(|time| time.0))
}

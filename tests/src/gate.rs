//! prestop-gate in the test cluster, and pods behind its gate.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::core::v1::{Event, Pod};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};
use sidecar::contract::{CONTAINER, INJECTION_ALL, LABEL_INJECTED, LABEL_INJECTION};
use tokio::sync::OnceCell;
use tokio::time::{Instant, sleep};

use crate::layout::workspace;
use crate::logs::Record;
use crate::namespace::apply;
use crate::{Cluster, ContainerLog, TestNamespace, images, lab};

/// Longer than a pod needs on a busy machine.
pub const SOON: Duration = Duration::from_secs(90);

static INSTALLED: OnceCell<()> = OnceCell::const_new();

/// The cluster, with prestop-gate installed as a user does it.
///
/// # Errors
/// When it isn't in force in time.
pub async fn cluster() -> Result<Cluster> {
    let cluster = Cluster::from_env()?;
    INSTALLED
        .get_or_try_init(async || {
            let client = cluster.client().await?;
            lab::manifests::install(
                &client,
                cluster.kubectl(),
                &workspace().join("manifests/base"),
            )
            .await
        })
        .await?;
    Ok(cluster)
}

/// Waits until the API server's calls to the webhook arrive: a Deployment that is available doesn't show that its
/// watches have the configuration and that kube-proxy has the rules, and until then pods start without the gate.
///
/// # Errors
/// When they don't in time.
pub async fn wait_injecting(client: &Client) -> Result<()> {
    /// Calls in a row that must arrive, since they are spread over the replicas.
    const IN_A_ROW: u32 = 5;
    let namespace = "injection-probe";
    let labels = json!({LABEL_INJECTION: INJECTION_ALL});
    let manifest = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace, "labels": labels}});
    apply(client, None, manifest).await?;
    let probe: Pod = serde_json::from_value(mk_app("probe")).context("the probe must be a pod")?;
    let pods = Api::<Pod>::namespaced(client.clone(), namespace);
    let params = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    let deadline = Instant::now() + SOON;
    let mut gated = 0;
    while gated < IN_A_ROW {
        // Pods are forbidden until the namespace's ServiceAccount is there.
        match pods.create(&params, &probe).await {
            Ok(pod) if is_gated(&pod) => gated += 1,
            Ok(_) | Err(_) => {
                gated = 0;
                ensure!(
                    Instant::now() < deadline,
                    "failed to see pods gated within {SOON:?}"
                );
                sleep(Duration::from_millis(200)).await;
            }
        }
    }
    Ok(())
}

/// A namespace in which every pod is gated.
///
/// # Errors
/// When it can't be made, or prestop-gate isn't in force.
pub async fn namespace(prefix: &str) -> Result<TestNamespace> {
    TestNamespace::create(
        &cluster().await?,
        prefix,
        &[(LABEL_INJECTION, INJECTION_ALL)],
    )
    .await
}

/// A pod of the test service named and labelled `app: NAME`, FROM scratch, without a preStop.
pub fn mk_app(name: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": name}, "annotations": {}},
        "spec": {
            "containers": [{
                "name": "app",
                "image": images::reference("app"),
                "args": ["serve"],
                "ports": [{"containerPort": 8080}],
                "readinessProbe": {"httpGet": {"path": "/ready", "port": 8080}, "periodSeconds": 1},
            }],
        },
    })
}

/// A Service that selects `app: NAME`.
pub fn mk_service(name: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name},
        "spec": {"selector": {"app": name}, "ports": [{"port": 80, "targetPort": 8080}]},
    })
}

/// A running gated pod that is to be ended, and what is needed to tell how it went.
#[derive(Debug)]
pub struct GatedPod<'a> {
    namespace: &'a TestNamespace,
    /// As it was when Ready.
    pub pod: Pod,
    /// The app's log.
    pub app: ContainerLog,
    /// The waiter's log.
    pub waiter: ContainerLog,
}

impl<'a> GatedPod<'a> {
    /// Applies a pod, waits until it is Ready and makes sure that it is gated: a test that runs on a pod which
    /// nobody injected shows nothing.
    ///
    /// # Errors
    /// When it isn't.
    pub async fn start(namespace: &'a TestNamespace, manifest: Value) -> Result<Self> {
        let applied = namespace.apply(manifest).await?;
        Self::find(namespace, &applied.name_any()).await
    }

    /// [`Self::start`] behind a Service of the same name, which sends to it on return: before that there is nothing
    /// to hold for.
    ///
    /// # Errors
    /// When the pod isn't gated, or the Service doesn't see it in time.
    pub async fn start_behind_service(
        namespace: &'a TestNamespace,
        manifest: Value,
    ) -> Result<Self> {
        let name = manifest["metadata"]["name"]
            .as_str()
            .context("a pod must have a name")?;
        namespace.apply(mk_service(name)).await?;
        let pod = Self::start(namespace, manifest).await?;
        pod.wait_endpoint().await?;
        Ok(pod)
    }

    /// Waits until a Service sends to the pod.
    ///
    /// # Errors
    /// When none does in time.
    pub async fn wait_endpoint(&self) -> Result<()> {
        let slices: Api<EndpointSlice> = self.namespace.api();
        let uid = self.pod.uid();
        for _ in 0..300 {
            let all = slices.list(&ListParams::default()).await?;
            let ready = all
                .iter()
                .flat_map(|slice| &slice.endpoints)
                .any(|endpoint| {
                    let target = endpoint
                        .target_ref
                        .as_ref()
                        .and_then(|target| target.uid.clone());
                    let conditions = endpoint.conditions.as_ref();
                    target == uid
                        && conditions.and_then(|conditions| conditions.ready) == Some(true)
                });
            if ready {
                return Ok(());
            }
            sleep(Duration::from_millis(100)).await;
        }
        bail!("failed to see a ready endpoint of pod {}", self.name())
    }

    /// [`Self::start`] for a pod that exists.
    ///
    /// # Errors
    /// When it isn't Ready in time, or not gated.
    pub async fn find(namespace: &'a TestNamespace, name: &str) -> Result<Self> {
        let pod = namespace.wait_ready(name, SOON).await?;
        ensure!(
            is_gated(&pod),
            "pod {name} was not injected: {:?}",
            pod.annotations()
        );
        let app = ContainerLog::open(namespace.cluster(), &pod, "app")?;
        let waiter = ContainerLog::open(namespace.cluster(), &pod, CONTAINER)?;
        Ok(Self {
            namespace,
            pod,
            app,
            waiter,
        })
    }

    /// The pod's name.
    pub fn name(&self) -> String {
        self.pod.name_any()
    }

    /// Asks for the pod's deletion and returns when, in milliseconds of the wall clock.
    ///
    /// # Errors
    /// When the API server refuses.
    pub async fn delete(&self) -> Result<u64> {
        let asked = unix_ms();
        self.namespace
            .api::<Pod>()
            .delete(&self.name(), &DeleteParams::default())
            .await?;
        Ok(asked)
    }

    /// Waits until the pod is gone and returns when its app got SIGTERM.
    ///
    /// # Errors
    /// When it isn't gone in time, or the app never got one.
    pub async fn sigterm(&self) -> Result<u64> {
        let uid = self.pod.uid().context("a pod must have a UID")?;
        self.namespace.wait_gone(&self.name(), &uid, SOON).await?;
        Ok(self.app.record("sigterm")?.unix_ms)
    }

    /// Deletes the pod and returns how long after that its app got SIGTERM.
    ///
    /// # Errors
    /// When either fails.
    pub async fn held(&self) -> Result<Duration> {
        let asked = self.delete().await?;
        Ok(Duration::from_millis(
            self.sigterm().await?.saturating_sub(asked),
        ))
    }

    /// What the pod's own hook wrote.
    ///
    /// # Errors
    /// When the log can't be read.
    pub fn hook_records(&self) -> Result<Vec<Record>> {
        Ok(self
            .app
            .records()?
            .into_iter()
            .filter(|record| record.event == "record")
            .collect())
    }

    /// Waits for our Event of this `reason` on the pod, and returns its note.
    ///
    /// # Errors
    /// When there is none in time.
    pub async fn event(&self, reason: &str) -> Result<String> {
        wait_event(self.namespace, &self.name(), reason, "").await
    }
}

/// Waits for an Event of this `reason` about `name` whose message has `text` in it, and returns the message.
///
/// # Errors
/// When there is none within half a minute.
pub async fn wait_event(
    namespace: &TestNamespace,
    name: &str,
    reason: &str,
    text: &str,
) -> Result<String> {
    let mut seen: Vec<Event> = Vec::new();
    for _ in 0..150 {
        // The API server may be away on purpose.
        seen = namespace.events(name).await.unwrap_or(seen);
        let of_reason = seen
            .iter()
            .filter(|event| event.reason.as_deref() == Some(reason));
        let mut messages = of_reason.map(|event| event.message.clone().unwrap_or_default());
        if let Some(found) = messages.find(|message| message.contains(text)) {
            return Ok(found);
        }
        sleep(Duration::from_millis(200)).await;
    }
    let all: Vec<_> = seen
        .iter()
        .map(|event| (&event.reason, &event.message))
        .collect();
    bail!("failed to find Event {reason} with {text:?} about {name} among {all:?}")
}

/// Whether a pod carries the gate: label and container.
pub fn is_gated(pod: &Pod) -> bool {
    let inits = pod
        .spec
        .iter()
        .flat_map(|spec| spec.init_containers.iter().flatten());
    pod.labels().contains_key(LABEL_INJECTED)
        && inits
            .last()
            .is_some_and(|container| container.name == CONTAINER)
}

/// Now, in milliseconds of the wall clock that pods on this machine share.
pub fn unix_ms() -> u64 {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

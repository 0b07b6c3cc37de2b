//! A variant's workload in the cluster: created, restarted, removed.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Namespace, Pod, Service};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt};
use serde_json::json;
use sidecar::contract::LABEL_INJECTED;
use tokio::time::{Instant, sleep};

use super::pods::unix_ms;
use super::variant::Variant;
use super::workload;

/// Longest time for pods to start, and for a rollout.
pub const PATIENCE: Duration = Duration::from_mins(2);
/// Longest time for the removal of what an earlier run left.
const REMOVAL_PATIENCE: Duration = Duration::from_mins(3);

/// One variant's namespace with all that is in it.
#[derive(Clone)]
#[expect(missing_debug_implementations, reason = "a Kubernetes client has none")]
pub struct Rollout {
    client: Client,
    namespace: String,
    variant: Variant,
    replicas: usize,
}

impl Rollout {
    /// Names it; nothing is created yet.
    pub fn new(client: Client, variant: Variant, replicas: usize) -> Self {
        Self {
            client,
            namespace: format!("demo-{}", variant.name()),
            variant,
            replicas,
        }
    }

    /// The namespace's name.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Creates it all and waits until the pods are available, and gated if they are to be.
    pub async fn deploy(&self, image: &str) -> Result<()> {
        let create = PostParams::default();
        let namespaces = Api::<Namespace>::all(self.client.clone());
        self.remove_former(&namespaces).await?;
        namespaces
            .create(
                &create,
                &workload::namespace(&self.namespace, self.variant)?,
            )
            .await?;
        let services = Api::<Service>::namespaced(self.client.clone(), &self.namespace);
        services.create(&create, &workload::service()?).await?;
        let deployment = workload::deployment(self.variant, image, self.replicas)?;
        self.deployments().create(&create, &deployment).await?;
        self.wait_until_rolled_out().await?;
        if self.variant.settle().is_some() {
            self.check_injected().await?;
        }
        Ok(())
    }

    /// Does what `kubectl rollout restart` does, and waits until only new pods are wanted.
    pub async fn restart(&self) -> Result<()> {
        let restarted = json!({"kubectl.kubernetes.io/restartedAt": unix_ms().to_string()});
        let patch = json!({"spec": {"template": {"metadata": {"annotations": restarted}}}});
        let deployments = self.deployments();
        deployments
            .patch(
                workload::NAME,
                &PatchParams::default(),
                &Patch::Merge(patch),
            )
            .await?;
        self.wait_until_rolled_out().await
    }

    /// Asks for the namespace's removal, and doesn't wait for it.
    pub async fn remove(&self) -> Result<()> {
        let namespaces = Api::<Namespace>::all(self.client.clone());
        let outcome = namespaces
            .delete(&self.namespace, &DeleteParams::default())
            .await;
        outcome
            .map(drop)
            .with_context(|| format!("failed to delete namespace {}", self.namespace))
    }

    /// Removes what a run that was ended by force left in a cluster that was kept.
    async fn remove_former(&self, namespaces: &Api<Namespace>) -> Result<()> {
        let name = &self.namespace;
        let deadline = Instant::now() + REMOVAL_PATIENCE;
        while let Some(former) = namespaces.get_opt(name).await? {
            ensure!(
                Instant::now() < deadline,
                "failed to remove namespace {name} of an earlier run"
            );
            if former.metadata.deletion_timestamp.is_none() {
                self.remove().await?;
            }
            sleep(Duration::from_millis(500)).await;
        }
        Ok(())
    }

    /// A gate that isn't there would make the other rows' failures look like its own.
    async fn check_injected(&self) -> Result<()> {
        let pods = Api::<Pod>::namespaced(self.client.clone(), &self.namespace);
        let pods = pods.list(&ListParams::default()).await?;
        ensure!(
            pods.items.len() >= self.replicas,
            "failed to find the pods of {}",
            self.namespace
        );
        for pod in pods {
            let injected = pod
                .labels()
                .get(LABEL_INJECTED)
                .is_some_and(|value| value == "true");
            let name = pod.name_any();
            ensure!(
                injected,
                "pod {name} of {} was not gated: the webhook did not inject it",
                self.namespace
            );
        }
        Ok(())
    }

    async fn wait_until_rolled_out(&self) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        let deployments = self.deployments();
        while !workload::is_rolled_out(&deployments.get(workload::NAME).await?, self.replicas) {
            let seconds = PATIENCE.as_secs();
            ensure!(
                Instant::now() < deadline,
                "failed to roll {} out within {seconds} s",
                self.namespace
            );
            sleep(Duration::from_millis(200)).await;
        }
        Ok(())
    }

    fn deployments(&self) -> Api<Deployment> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }
}

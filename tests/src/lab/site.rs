//! A run's workload in the cluster: created, its pods ended, removed.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Namespace, Pod, Service};
use kube::api::{
    DeleteParams, DynamicObject, EvictParams, ListParams, Patch, PatchParams, PostParams,
};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};
use sidecar::contract::LABEL_INJECTED;
use tokio::time::{Instant, sleep};

use super::balancer::Layer;
use super::cell::{Cell, Operation};
use super::pods::unix_ms;
use super::workload::{self, ENDED, NAME, replicas_before};
use crate::aws::crds::{self, Group};

/// Longest time for pods to start, and for a rollout.
pub const PATIENCE: Duration = Duration::from_mins(3);
/// Grace of pods that are removed when a run is over.
const LAST_GRACE_SECONDS: u32 = 1;
/// What the controllers of Deployments and `ReplicaSets` need to see a change.
const CONTROLLER_MOMENT: Duration = Duration::from_millis(500);
/// Bindings exist long before pods do: the webhook chooses the longest hold by what its watches brought so far.
const BOUND_BEFORE: Duration = Duration::from_secs(2);

/// One run's namespace with all that is in it.
#[derive(Clone)]
#[expect(missing_debug_implementations, reason = "a Kubernetes client has none")]
pub struct Site {
    client: Client,
    namespace: String,
    cell: Cell,
}

impl Site {
    /// Names it; nothing is created yet.
    pub fn new(client: Client, cell: Cell) -> Self {
        Self {
            client,
            namespace: format!("lab-{cell}"),
            cell,
        }
    }

    /// The namespace's name.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Creates it all and waits until the pods are available, and gated if they are to be. Answers with the Service's
    /// address in the cluster.
    pub async fn deploy(&self, image: &str, groups: &[String]) -> Result<SocketAddr> {
        let create = PostParams::default();
        let namespace = workload::namespace(&self.namespace, self.cell)?;
        self.remove_former().await?;
        Api::<Namespace>::all(self.client.clone())
            .create(&create, &namespace)
            .await?;
        let services = Api::<Service>::namespaced(self.client.clone(), &self.namespace);
        let service = services.create(&create, &workload::service()?).await?;
        for (number, arn) in groups.iter().enumerate() {
            self.bind(&format!("{NAME}-{number}"), arn).await?;
        }
        sleep(BOUND_BEFORE).await;
        let deployment = workload::deployment(self.cell, image)?;
        self.deployments().create(&create, &deployment).await?;
        self.wait_until_rolled_out().await?;
        if self.cell.variant.is_gated() {
            self.check_injected().await?;
        }
        let address = service.spec.and_then(|spec| spec.cluster_ip);
        let address = address.and_then(|address| address.parse().ok());
        let address = address.context("failed to find the Service's address")?;
        Ok(SocketAddr::new(address, 80))
    }

    /// Ends [`ENDED`] pods, and returns when all of them are deleted and the Deployment is complete without them.
    pub async fn end_pods(&self) -> Result<()> {
        match self.cell.operation() {
            Operation::Rollout => {
                // As `kubectl rollout restart` does it.
                let restarted = json!({"kubectl.kubernetes.io/restartedAt": unix_ms().to_string()});
                let template = json!({"metadata": {"annotations": restarted}});
                self.patch(json!({"spec": {"template": template}})).await?;
            }
            Operation::ScaleIn => {
                let replicas = replicas_before(Operation::ScaleIn) - ENDED;
                self.patch(json!({"spec": {"replicas": replicas}})).await?;
            }
            Operation::Eviction | Operation::Delete => {
                let pods = self.pods().list(&ListParams::default()).await?;
                for pod in pods.items.iter().take(ENDED) {
                    self.end(&pod.name_any()).await?;
                    self.wait_until_rolled_out().await?;
                }
            }
        }
        self.wait_until_rolled_out().await
    }

    /// Removes it without waiting for the end: at once, since whatever goes on in it is in the way of the next run.
    pub async fn remove(&self) -> Result<()> {
        let namespaces = Api::<Namespace>::all(self.client.clone());
        if namespaces.get_opt(&self.namespace).await?.is_none() {
            return Ok(());
        }
        let background = DeleteParams::background();
        // It is not there if the run failed early. Its controller needs a moment, or it would make new pods.
        drop(self.patch(json!({"spec": {"replicas": 0}})).await);
        sleep(CONTROLLER_MOMENT).await;
        let last = DeleteParams::default().grace_period(LAST_GRACE_SECONDS);
        let pods = self.pods();
        pods.delete_collection(&last, &ListParams::default())
            .await?;
        let outcome = namespaces.delete(&self.namespace, &background).await;
        outcome
            .map(drop)
            .with_context(|| format!("failed to delete namespace {}", self.namespace))
    }

    async fn end(&self, pod: &str) -> Result<()> {
        let pods = self.pods();
        if self.cell.operation() == Operation::Eviction {
            pods.evict(pod, &EvictParams::default()).await?;
        } else {
            pods.delete(pod, &DeleteParams::default()).await?;
        }
        // The ReplicaSet needs a moment to see that one is missing.
        let deadline = Instant::now() + PATIENCE;
        while workload::is_rolled_out(&self.deployments().get(NAME).await?) {
            ensure!(Instant::now() < deadline, "failed to see pod {pod} missed");
            sleep(Duration::from_millis(50)).await;
        }
        Ok(())
    }

    /// Binds the Service to a target group, with the protocol that the real controller's webhook fills in.
    async fn bind(&self, name: &str, arn: &str) -> Result<()> {
        let group = Group::LoadBalancerController;
        let mut binding = crds::binding(group, name, NAME, json!(80), arn);
        binding.data["spec"]["targetGroupProtocol"] = match self.cell.balancer.layer() {
            Layer::Requests => json!("HTTP"),
            Layer::Connections => json!("TCP"),
        };
        let bindings = Api::<DynamicObject>::namespaced_with(
            self.client.clone(),
            &self.namespace,
            &group.resource(),
        );
        bindings.create(&PostParams::default(), &binding).await?;
        Ok(())
    }

    async fn patch(&self, patch: Value) -> Result<()> {
        let params = PatchParams::default();
        let deployments = self.deployments();
        deployments
            .patch(NAME, &params, &Patch::Merge(patch))
            .await?;
        Ok(())
    }

    /// Removes what a run that was ended by force left in a cluster that was kept.
    async fn remove_former(&self) -> Result<()> {
        let namespaces = Api::<Namespace>::all(self.client.clone());
        let name = &self.namespace;
        let deadline = Instant::now() + PATIENCE;
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
        let pods = self.pods().list(&ListParams::default()).await?;
        for pod in &pods {
            let injected = pod.labels().get(LABEL_INJECTED);
            ensure!(
                injected.is_some_and(|value| value == "true"),
                "pod {} of {} was not gated: the webhook did not inject it",
                pod.name_any(),
                self.namespace
            );
        }
        Ok(())
    }

    async fn wait_until_rolled_out(&self) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        let deployments = self.deployments();
        while !workload::is_rolled_out(&deployments.get(NAME).await?) {
            ensure!(
                Instant::now() < deadline,
                "failed to roll {} out within {} s",
                self.namespace,
                PATIENCE.as_secs()
            );
            sleep(Duration::from_millis(200)).await;
        }
        Ok(())
    }

    fn deployments(&self) -> Api<Deployment> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }
}

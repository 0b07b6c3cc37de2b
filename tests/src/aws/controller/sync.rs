//! Brings one target group in line with its binding.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::SystemTime;

use anyhow::{Context, Result, anyhow};
use aws_config::SdkConfig;
use aws_config::sts::AssumeRoleProvider;
use aws_credential_types::provider::SharedCredentialsProvider;
use aws_sdk_elasticloadbalancingv2 as elbv2;
use elbv2::error::{DisplayErrorContext, ProvideErrorMetadata, SdkError};
use elbv2::types::TargetDescription;
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::Api;
use kube::api::{DynamicObject, Patch, PatchParams};
use serde_json::json;

use super::Outcome;
use super::binding::{Binding, CHECKPOINT, CHECKPOINT_TIMESTAMP, Key};
use super::endpoints::{Plan, Wanted, checkpoint, plan, wanted};

/// Most targets in one call.
const CHUNK: usize = 200;

/// What the fake and AWS say when a target group is gone.
const NOT_FOUND: &str = "TargetGroupNotFound";

/// The clients, and what is remembered between reconciles.
pub(super) struct Syncer {
    kube: kube::Client,
    aws: SdkConfig,
    /// By role and external id.
    clients: BTreeMap<(Option<String>, Option<String>), elbv2::Client>,
    /// What was registered here, in target groups that others use too.
    ours: BTreeMap<Key, BTreeSet<SocketAddr>>,
}

impl Syncer {
    pub(super) fn new(kube: kube::Client, aws: SdkConfig) -> Self {
        Self {
            kube,
            aws,
            clients: BTreeMap::new(),
            ours: BTreeMap::new(),
        }
    }

    /// Reconciles, and changes the binding's annotations here as it does in the cluster.
    pub(super) async fn sync<'a>(
        &mut self,
        key: &Key,
        binding: &mut Binding,
        slices: impl IntoIterator<Item = &'a EndpointSlice>,
    ) -> Result<Outcome> {
        let services = Api::<Service>::namespaced(self.kube.clone(), &key.namespace);
        let reference = &binding.spec.service_ref;
        let service = services.get_opt(&reference.name).await;
        let service =
            service.with_context(|| format!("failed to get Service {}", reference.name))?;
        let wanted = service.and_then(|service| wanted(&service, &reference.port, slices));
        // As with the real one, a Service or port that isn't there empties the target group.
        let Some(wanted) = wanted else {
            let outcome = self.clean_up(key, binding).await?;
            // Else the same targets would seem to be there still when it is back.
            if binding.checkpoint().is_some_and(|known| !known.is_empty()) {
                self.annotate(key, binding, "").await?;
            }
            return Ok(outcome);
        };
        let target = checkpoint(&wanted, &binding.raw_spec);
        if binding.checkpoint() == Some(target.as_str()) {
            return Ok(Outcome::Unchanged);
        }
        let client = self.client(binding).await;
        let arn = find_arn(&client, binding).await?;
        let plan = self.plan(key, binding, &client, &arn, &wanted).await?;
        let changes = !plan.deregister.is_empty() || !plan.register.is_empty();
        if changes {
            self.annotate(key, binding, "").await?;
        }
        apply(&client, &arn, &plan).await?;
        if binding.spec.multi_cluster_target_group {
            self.ours.insert(key.clone(), wanted.into_keys().collect());
        }
        self.annotate(key, binding, &target).await?;
        Ok(Outcome::Synced {
            deregistered: plan.deregister,
            registered: plan.register,
        })
    }

    /// Deregisters everything that the binding stands for; a target group that is gone is as good.
    pub(super) async fn clean_up(&mut self, key: &Key, binding: &Binding) -> Result<Outcome> {
        let client = self.client(binding).await;
        let plan = match find_arn(&client, binding).await {
            Ok(arn) => {
                let planned = self.plan(key, binding, &client, &arn, &Wanted::new()).await;
                match planned {
                    Ok(plan) => apply(&client, &arn, &plan).await.map(|()| plan),
                    Err(error) => Err(error),
                }
            }
            Err(error) => Err(error),
        };
        let plan = match plan {
            Err(error) if error.downcast_ref::<Gone>().is_some() => Plan::default(),
            other => other?,
        };
        self.ours.remove(key);
        Ok(Outcome::Synced {
            deregistered: plan.deregister,
            registered: Vec::new(),
        })
    }

    async fn plan(
        &self,
        key: &Key,
        binding: &Binding,
        client: &elbv2::Client,
        arn: &str,
        wanted: &Wanted,
    ) -> Result<Plan> {
        let answer = client
            .describe_target_health()
            .target_group_arn(arn)
            .send()
            .await;
        let answer = answer.map_err(|error| told("describe target health", &error))?;
        let listed: Vec<(SocketAddr, String)> = answer
            .target_health_descriptions()
            .iter()
            .filter_map(|described| {
                let target = described.target()?;
                let port = u16::try_from(target.port()?).ok()?;
                let address = SocketAddr::new(target.id()?.parse().ok()?, port);
                let state = described.target_health()?.state()?;
                Some((address, state.as_str().to_owned()))
            })
            .collect();
        // The first time, nothing is known to be ours, and nothing is deregistered.
        let shared = binding.spec.multi_cluster_target_group;
        let none = BTreeSet::new();
        let ours = shared.then(|| self.ours.get(key).unwrap_or(&none));
        Ok(plan(wanted, &listed, ours))
    }

    async fn client(&mut self, binding: &Binding) -> elbv2::Client {
        let spec = &binding.spec;
        let role = (
            spec.iam_role_arn_to_assume.clone(),
            spec.assume_role_external_id.clone(),
        );
        if let Some(client) = self.clients.get(&role) {
            return client.clone();
        }
        let aws = match &role {
            (Some(arn), external_id) => {
                let mut provider = AssumeRoleProvider::builder(arn).configure(&self.aws);
                provider = provider.session_name("controller");
                if let Some(external_id) = external_id {
                    provider = provider.external_id(external_id);
                }
                let provider = SharedCredentialsProvider::new(provider.build().await);
                self.aws.to_builder().credentials_provider(provider).build()
            }
            (None, _) => self.aws.clone(),
        };
        let client = elbv2::Client::new(&aws);
        self.clients.insert(role, client.clone());
        client
    }

    async fn annotate(&self, key: &Key, binding: &mut Binding, checkpoint: &str) -> Result<()> {
        let seconds = SystemTime::now()
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap_or_default()
            .as_secs();
        let annotations = [
            (CHECKPOINT, checkpoint.to_owned()),
            (CHECKPOINT_TIMESTAMP, seconds.to_string()),
        ];
        let patch = json!({"metadata": {"annotations": BTreeMap::from(annotations.clone())}});
        let resource = key.group.resource();
        let bindings =
            Api::<DynamicObject>::namespaced_with(self.kube.clone(), &key.namespace, &resource);
        let patched = bindings
            .patch(&key.name, &PatchParams::default(), &Patch::Merge(patch))
            .await;
        patched.with_context(|| format!("failed to annotate binding {}", key.name))?;
        let annotations = annotations.map(|(name, value)| (name.to_owned(), value));
        binding.annotations.extend(annotations);
        Ok(())
    }
}

/// The target group isn't there.
#[derive(Debug, thiserror::Error)]
#[error("failed to find the target group")]
struct Gone;

fn told<E>(doing: &str, error: &SdkError<E>) -> anyhow::Error
where
    E: ProvideErrorMetadata + std::error::Error + 'static,
{
    if error.code() == Some(NOT_FOUND) {
        return Gone.into();
    }
    anyhow!("failed to {doing}: {}", DisplayErrorContext(error))
}

async fn find_arn(client: &elbv2::Client, binding: &Binding) -> Result<String> {
    if let Some(arn) = &binding.spec.target_group_arn {
        return Ok(arn.clone());
    }
    let name = binding.spec.target_group_name.as_deref();
    let name = name.context("failed to find a target group's ARN or name in the binding")?;
    let answer = client.describe_target_groups().names(name).send().await;
    let answer = answer.map_err(|error| told("describe target groups", &error))?;
    let arn = answer
        .target_groups()
        .first()
        .and_then(|group| group.target_group_arn());
    Ok(arn.ok_or(Gone)?.to_owned())
}

async fn apply(client: &elbv2::Client, arn: &str, plan: &Plan) -> Result<()> {
    let describe = |target: &SocketAddr| {
        TargetDescription::builder()
            .id(target.ip().to_string())
            .port(target.port().into())
            .build()
    };
    for chunk in plan.deregister.chunks(CHUNK) {
        let targets = Some(chunk.iter().map(describe).collect());
        let call = client
            .deregister_targets()
            .target_group_arn(arn)
            .set_targets(targets);
        let done = call.send().await;
        done.map_err(|error| told("deregister targets", &error))?;
    }
    for chunk in plan.register.chunks(CHUNK) {
        let targets = Some(chunk.iter().map(describe).collect());
        let call = client
            .register_targets()
            .target_group_arn(arn)
            .set_targets(targets);
        let done = call.send().await;
        done.map_err(|error| told("register targets", &error))?;
    }
    Ok(())
}

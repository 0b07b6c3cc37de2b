//! Asks AWS for target groups, by its official SDK: the only module that knows it.
//!
//! ```text
//! targets, details ──► session: region, role ──► SDK client (signs, one attempt) ──► Elastic Load Balancing
//!                                  │ lazily                                            │
//!                                  ▼                                                   ▼
//!                      credentials: IRSA, Pod Identity, node role ◄── STS, IMDS     failure: what went wrong
//! ```
//! Each call is one request to Elastic Load Balancing: its account-wide bucket (40 requests, 10 more a second) is
//! shared with the controller that deregisters, and the caller has the budget. Credentials come from other endpoints,
//! about once an hour.

mod failure;
mod session;
mod whole;

use std::collections::HashMap;
use std::future::Future;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use aws_config::{ConfigLoader, Region};
use aws_credential_types::provider::SharedCredentialsProvider;
use aws_sdk_elasticloadbalancingv2::types::{
    TargetGroup as Described, TargetHealthDescription, TargetHealthReasonEnum,
};
use futures::FutureExt;
use futures::future::BoxFuture;
use tokio::time::timeout;

use self::session::Sessions;
use crate::confirmer::target_group::{
    AskTargetGroups, Failure, Family, GroupDetails, GroupId, Health, Target, TargetGroup,
};

/// Longest call, credentials included. AWS answers in tens of milliseconds; a target group of 1,000 in a few hundred.
const CALL_TIMEOUT: Duration = Duration::from_secs(5);

/// Target groups of Elastic Load Balancing, asked with the pod's own credentials or a role's.
#[derive(Debug)]
pub struct AwsTargetGroups {
    sessions: Sessions,
    /// What `details` said of groups that are known by name: their health is asked for by ARN only.
    arns: Mutex<HashMap<TargetGroup, String>>,
}

impl AwsTargetGroups {
    /// Settings and credentials come from the environment as with every AWS SDK, when they are first needed.
    pub fn from_environment() -> Self {
        Self::new(Sessions::from_environment())
    }

    /// Settings as `settings` makes them, fresh for each region, and these credentials: nothing else of the environment
    /// counts. Groups that are only named aren't found this way.
    pub fn with_settings(
        settings: impl Fn() -> ConfigLoader + Send + Sync + 'static,
        credentials: SharedCredentialsProvider,
    ) -> Self {
        let http = session::http_client();
        let no_region: Option<Region> = None;
        Self::new(Sessions::new(http, settings, no_region, Some(credentials)))
    }

    fn new(sessions: Sessions) -> Self {
        Self {
            sessions,
            arns: Mutex::default(),
        }
    }

    async fn ask_targets(&self, group: &TargetGroup) -> Result<Vec<Target>, Failure> {
        let arn = match &group.id {
            GroupId::Arn(arn) => arn.clone(),
            GroupId::Name(name) => self.arn(group).ok_or_else(|| {
                Failure::Unavailable(format!("the ARN of target group {name} isn't known yet"))
            })?,
        };
        let client = self.sessions.client(group).await?;
        let answer = client
            .describe_target_health()
            .target_group_arn(arn)
            .send()
            .await
            .map_err(|error| {
                failure::of(
                    &error,
                    "elasticloadbalancing:DescribeTargetHealth",
                    group.role.as_ref(),
                )
            })?;
        // A list that is missing is no empty list: absence is evidence.
        let targets = answer.target_health_descriptions.ok_or_else(|| {
            Failure::Unavailable("the answer has no TargetHealthDescriptions".to_owned())
        })?;
        Ok(targets.iter().filter_map(target).collect())
    }

    async fn ask_details(&self, group: &TargetGroup) -> Result<GroupDetails, Failure> {
        let client = self.sessions.client(group).await?;
        let question = client.describe_target_groups();
        let question = match &group.id {
            GroupId::Arn(arn) => question.target_group_arns(arn),
            GroupId::Name(name) => question.names(name),
        };
        let answer = question.send().await.map_err(|error| {
            failure::of(
                &error,
                "elasticloadbalancing:DescribeTargetGroups",
                group.role.as_ref(),
            )
        })?;
        let described = answer
            .target_groups
            .as_deref()
            .and_then(<[_]>::first)
            .ok_or(Failure::NotFound)?;
        details(described)
            .ok_or_else(|| Failure::Unavailable("the answer has no TargetGroupArn".to_owned()))
    }

    fn arn(&self, group: &TargetGroup) -> Option<String> {
        self.arns
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get(group)
            .cloned()
    }

    /// Keeps what a name stands for, for as long as that is there.
    fn learn(&self, group: &TargetGroup, result: &Result<GroupDetails, Failure>) {
        let mut arns = self.arns.lock().unwrap_or_else(PoisonError::into_inner);
        match (&group.id, result) {
            (GroupId::Name(_), Ok(details)) => {
                arns.insert(group.clone(), details.arn.clone());
            }
            (_, Err(Failure::NotFound)) => {
                arns.remove(group);
            }
            _ => {}
        }
    }
}

impl AskTargetGroups for AwsTargetGroups {
    fn targets<'a>(
        &'a self,
        group: &'a TargetGroup,
    ) -> BoxFuture<'a, Result<Vec<Target>, Failure>> {
        in_time(self.ask_targets(group)).boxed()
    }

    fn details<'a>(
        &'a self,
        group: &'a TargetGroup,
    ) -> BoxFuture<'a, Result<GroupDetails, Failure>> {
        async move {
            let result = in_time(self.ask_details(group)).await;
            self.learn(group, &result);
            result
        }
        .boxed()
    }
}

async fn in_time<T>(call: impl Future<Output = Result<T, Failure>> + Send) -> Result<T, Failure> {
    // Boxed: the SDK's futures are some ten kilobytes.
    timeout(CALL_TIMEOUT, Box::pin(call))
        .await
        .unwrap_or_else(|_| {
            let seconds = CALL_TIMEOUT.as_secs();
            Err(Failure::Unavailable(format!(
                "AWS gave no answer within {seconds} s"
            )))
        })
}

/// `None` for what is no IP address with a port: an instance, a Lambda function, another load balancer.
fn target(described: &TargetHealthDescription) -> Option<Target> {
    let target = described.target.as_ref()?;
    let ip = target.id.as_deref()?.parse::<IpAddr>().ok()?;
    let port = u16::try_from(target.port?).ok()?;
    let health = described.target_health.as_ref();
    // The words of the wire, those included that the SDK doesn't know.
    let state = health.and_then(|health| health.state.as_ref());
    let reason = health.and_then(|health| health.reason.as_ref());
    Some(Target {
        ip,
        port,
        health: Health::of(
            state.map_or("", |state| state.as_str()),
            reason.map(TargetHealthReasonEnum::as_str),
        ),
    })
}

fn details(described: &Described) -> Option<GroupDetails> {
    let protocol = described.protocol.as_ref();
    let is_checked = described.health_check_enabled.unwrap_or(true);
    Some(GroupDetails {
        arn: described.target_group_arn.clone()?,
        family: protocol.and_then(|protocol| Family::of_protocol(protocol.as_str())),
        health_check_interval_seconds: described
            .health_check_interval_seconds
            .filter(|_| is_checked)
            .and_then(|seconds| u32::try_from(seconds).ok()),
        // `traffic-port` is no number.
        health_check_port: described
            .health_check_port
            .as_deref()
            .and_then(|port| port.parse().ok()),
    })
}

#[cfg(test)]
mod tests;

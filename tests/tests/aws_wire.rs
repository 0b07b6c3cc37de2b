//! The stand-in for AWS on the wire: AWS's SDK for Rust and boto3 against it, and the SDK against moto,
//! which shows that what we send is understood by somebody who didn't write it. Needs no cluster.
#![allow(clippy::unwrap_used, reason = "a test that fails shows where")]

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use aws_config::SdkConfig;
use aws_config::retry::RetryConfig;
use aws_sdk_elasticloadbalancingv2 as elbv2;
use elbv2::Client;
use elbv2::error::{DisplayErrorContext, ProvideErrorMetadata, SdkError};
use elbv2::operation::describe_target_health::DescribeTargetHealthError;
use elbv2::types::TargetDescription;
use tests::aws::{ACCOUNT, Caller, FakeAws, Fault, Health, Settings, TargetGroup};

#[path = "aws_wire/credentials.rs"]
mod credentials;
#[path = "aws_wire/faults.rs"]
mod faults;
#[path = "aws_wire/operations.rs"]
mod operations;
#[path = "aws_wire/strangers.rs"]
mod strangers;

/// Operation that most tests call.
const DESCRIBE_HEALTH: &str = "DescribeTargetHealth";
/// The permission for it.
const MAY_DESCRIBE_HEALTH: &str = "elasticloadbalancing:DescribeTargetHealth";

async fn start() -> (FakeAws, Caller) {
    let loopback = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let fake = FakeAws::start(loopback, Settings::default()).await.unwrap();
    let caller = Caller::new("confirmer", ACCOUNT);
    fake.add_caller(caller.clone());
    (fake, caller)
}

/// A client that tries once.
fn once(config: &SdkConfig) -> Client {
    let config = elbv2::config::Builder::from(config);
    Client::from_conf(config.retry_config(RetryConfig::disabled()).build())
}

fn target(id: &str, port: u16) -> TargetDescription {
    TargetDescription::builder()
        .id(id)
        .port(port.into())
        .build()
}

fn address(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

/// A target group whose targets are healthy at once.
fn mk_group(name: &str) -> TargetGroup {
    TargetGroup {
        registering: Duration::ZERO,
        first_checks: Duration::ZERO,
        ..TargetGroup::alb(name)
    }
}

/// What list-all says: `ID:PORT STATE REASON`.
async fn listed(client: &Client, arn: &str) -> Vec<String> {
    let answer = client
        .describe_target_health()
        .target_group_arn(arn)
        .send()
        .await;
    said(&answer.unwrap())
}

/// The error of a list-all that must fail.
async fn refused(client: &Client, arn: &str) -> SdkError<DescribeTargetHealthError> {
    let question = client.describe_target_health().target_group_arn(arn);
    question.send().await.unwrap_err()
}

fn said(
    answer: &elbv2::operation::describe_target_health::DescribeTargetHealthOutput,
) -> Vec<String> {
    let say = |described: &elbv2::types::TargetHealthDescription| {
        let target = described.target().unwrap();
        let health = described.target_health().unwrap();
        let (id, port) = (target.id().unwrap(), target.port().unwrap());
        let state = health.state().unwrap().as_str();
        match health.reason() {
            Some(reason) => format!("{id}:{port} {state} {}", reason.as_str()),
            None => format!("{id}:{port} {state}"),
        }
    };
    answer
        .target_health_descriptions()
        .iter()
        .map(say)
        .collect()
}

fn code<E: ProvideErrorMetadata>(error: &SdkError<E>) -> &str {
    error.code().unwrap_or_default()
}

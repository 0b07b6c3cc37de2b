//! The lab's AWS account: the fake endpoint, the controller that registers pods there, and who calls it.

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, Result};
use kube::Client;
use tokio::sync::mpsc::UnboundedReceiver;

use super::balancer::{Balancer, Layer};
use super::bound::Answer;
use super::cell::Cell;
use super::dataplane::unix_ms_of;
use super::outcome::Calls;
use crate::aws::controller::{self, Controller};
use crate::aws::{ACCOUNT, Caller, Change, FakeAws, Outcome, Settings, TargetGroup, crds};
use crate::layout::OUTSIDE_IP;

/// Where `manifests/lab` sends the confirmer.
const PORT: u16 = 4566;
/// Whose keys are in `manifests/lab`.
const CONFIRMER: &str = "prestop-gate";
/// What tells of deregistrations.
const HEALTH: &str = "DescribeTargetHealth";

/// The account, with its controller at work.
#[derive(Debug)]
pub struct Account {
    aws: FakeAws,
    disturbances: AtomicUsize,
    _controller: Controller,
}

/// Others' calls on the account's bucket; they end when the last of these is dropped.
#[derive(Debug)]
pub struct Disturbance<'a>(&'a Account);

impl Drop for Disturbance<'_> {
    fn drop(&mut self) {
        if self.0.disturbances.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.0.aws.set_foreign_load(ACCOUNT, 0.0);
        }
    }
}

impl Account {
    /// Starts the endpoint, makes the bindings' types known to the cluster, and starts the controller.
    pub async fn open(client: &Client) -> Result<Self> {
        let listen = SocketAddr::new(IpAddr::V4(OUTSIDE_IP), PORT);
        let aws = FakeAws::start(listen, Settings::default())
            .await
            .context("failed to start the fake AWS endpoint")?;
        crds::install(client, &[crds::Group::LoadBalancerController]).await?;
        aws.add_caller(Caller {
            name: CONFIRMER.to_owned(),
            account: ACCOUNT.to_owned(),
            access_key: "AKIALABCONFIRMER".to_owned(),
            secret_key: "no-secret".to_owned(),
        });
        let caller = Caller::new("controller", ACCOUNT);
        aws.add_caller(caller.clone());
        let options = controller::Options::default();
        let controller = controller::start(client.clone(), aws.sdk_config(&caller), options);
        Ok(Self {
            aws,
            disturbances: AtomicUsize::new(0),
            _controller: controller,
        })
    }

    /// Makes the target group number `group` of a run and answers with its ARN.
    pub fn create_group(&self, cell: Cell, group: usize) -> String {
        let name = format!("{cell}-{group}");
        let group = match cell.balancer.layer() {
            Layer::Requests => TargetGroup::alb(&name),
            Layer::Connections => TargetGroup::nlb(&name),
        };
        self.aws.create_target_group(TargetGroup {
            deregistration_delay: cell.balancer.deregistration_delay(),
            ..group
        })
    }

    /// What happens to a target group's targets from now on, those that are there first.
    pub fn subscribe(&self, arn: &str) -> UnboundedReceiver<Change> {
        self.aws.subscribe(arn)
    }

    /// Lets others use the account as they do beside `balancer`.
    pub fn disturb(&self, balancer: Balancer) -> Option<Disturbance<'_>> {
        let calls_per_second = balancer.foreign_calls_per_second();
        (calls_per_second > 0.0).then(|| {
            self.disturbances.fetch_add(1, Ordering::Relaxed);
            self.aws.set_foreign_load(ACCOUNT, calls_per_second);
            Disturbance(self)
        })
    }

    /// The confirmer's calls about a target group so far.
    pub fn calls(&self, arn: &str) -> Calls {
        let mut calls = Calls::default();
        for call in self.aws.calls() {
            let is_about = call.target_groups.iter().any(|group| group == arn);
            if call.caller != CONFIRMER || !is_about {
                continue;
            }
            calls.all += 1;
            if call.operation == HEALTH && call.outcome == Outcome::Answered {
                calls.answered.push(Answer {
                    at: unix_ms_of(call.at),
                    to: call.peer,
                });
            }
        }
        calls
    }
}

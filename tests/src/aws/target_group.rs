//! One target group as its API shows it. Pure: time is passed in.
//!
//! The life of a target is not stepped through by timers but computed from two moments, when it was
//! registered and when it was deregistered, so that asking is all it takes:
//!
//! ```text
//! RegisterTargets ─► initial (Elb.RegistrationInProgress, then Elb.InitialHealthChecking) ─► healthy
//! DeregisterTargets ─ control-plane lag ─► draining ─ deregistration delay ─► not listed any more
//! ```

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use super::health::Health;

/// The account that everything belongs to unless it is told otherwise.
pub const ACCOUNT: &str = "111122223333";
/// The only VPC of [`Settings::default`](super::Settings).
pub const VPC: &str = "vpc-0a1b2c3d4e5f60718";

/// How a target group checks its targets. Only reported: what checks would find is scripted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HealthCheck {
    /// Time between two checks of a target, 5–300 s.
    pub interval: Duration,
    /// Longest wait for an answer.
    pub timeout: Duration,
    /// Checks in a row that make a target healthy.
    pub healthy_threshold: u32,
    /// Failures in a row that make it unhealthy.
    pub unhealthy_threshold: u32,
    /// `traffic-port` or a number.
    pub port: String,
    /// Where HTTP checks go; none for TCP checks.
    pub path: Option<String>,
}

/// What a target group is made with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TargetGroup {
    /// Unique in its account and region, 32 characters at most.
    pub name: String,
    /// `HTTP`, `HTTPS`, `TCP`, `TLS`, `UDP`, `TCP_UDP`, `QUIC` or `TCP_QUIC`.
    pub protocol: String,
    /// The port of targets that are registered without one.
    pub port: u16,
    /// Targets must have an address of this VPC.
    pub vpc: String,
    /// Owner.
    pub account: String,
    /// ARNs of load balancers that use it. With none, every target is `unused`.
    pub load_balancers: Vec<String>,
    /// `deregistration_delay.timeout_seconds`, 0–3600 s.
    pub deregistration_delay: Duration,
    /// How targets are checked.
    pub health_check: HealthCheck,
    /// How long a new target says `Elb.RegistrationInProgress`.
    pub registering: Duration,
    /// How long it then says `Elb.InitialHealthChecking`.
    pub first_checks: Duration,
    /// From `DeregisterTargets` until the API says `draining`.
    pub control_plane_lag: Duration,
}

impl TargetGroup {
    /// Of an ALB, with the AWS Load Balancer Controller's numbers (a check each 15 s, 2 make healthy or
    /// unhealthy) and AWS's deregistration delay, 300 s.
    pub fn alb(name: &str) -> Self {
        let load_balancer = format!("loadbalancer/app/{name}/50dc6c495c0c9188");
        let check = HealthCheck {
            interval: Duration::from_secs(15),
            timeout: Duration::from_secs(5),
            healthy_threshold: 2,
            unhealthy_threshold: 2,
            port: "traffic-port".to_owned(),
            path: Some("/".to_owned()),
        };
        Self::new(name, "HTTP", &load_balancer, check)
    }

    /// Of an NLB, with the AWS Load Balancer Controller's numbers (a check each 10 s, 3 make healthy or
    /// unhealthy) and AWS's deregistration delay, 300 s.
    pub fn nlb(name: &str) -> Self {
        let load_balancer = format!("loadbalancer/net/{name}/50dc6c495c0c9188");
        let check = HealthCheck {
            interval: Duration::from_secs(10),
            timeout: Duration::from_secs(10),
            healthy_threshold: 3,
            unhealthy_threshold: 3,
            port: "traffic-port".to_owned(),
            path: None,
        };
        Self::new(name, "TCP", &load_balancer, check)
    }

    fn new(name: &str, protocol: &str, load_balancer: &str, health_check: HealthCheck) -> Self {
        Self {
            name: name.to_owned(),
            protocol: protocol.to_owned(),
            port: 80,
            vpc: VPC.to_owned(),
            account: ACCOUNT.to_owned(),
            load_balancers: vec![load_balancer.to_owned()],
            deregistration_delay: Duration::from_mins(5),
            registering: Duration::from_secs(1),
            first_checks: health_check.interval * (health_check.healthy_threshold - 1),
            health_check,
            control_plane_lag: Duration::ZERO,
        }
    }
}

/// What happened to a target, or to the group as a whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The API accepted a target that was not registered, or draining.
    Registered,
    /// The API accepted to deregister a target that was registered.
    Deregistered,
    /// The whole group is gone.
    GroupDeleted,
}

/// What the data plane is told, at the moment the API accepted it. How late it acts is its own affair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Change {
    /// None if it is about the whole group.
    pub target: Option<SocketAddr>,
    /// What happened.
    pub kind: Kind,
    /// When the API accepted it.
    pub at: Instant,
}

/// A target as the API spells it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Described {
    pub(super) id: String,
    pub(super) port: u16,
    pub(super) health: Health,
}

#[derive(Debug)]
struct Target {
    /// The id as it was registered: `2001:db8::1` has many spellings.
    id: String,
    registered: Instant,
    deregistered: Option<Instant>,
    script: Option<Health>,
}

/// A target group with its targets.
#[derive(Debug)]
pub(super) struct State {
    pub(super) settings: TargetGroup,
    pub(super) arn: String,
    targets: BTreeMap<(IpAddr, u16), Target>,
}

impl State {
    pub(super) fn new(settings: TargetGroup, arn: String) -> Self {
        Self {
            settings,
            arn,
            targets: BTreeMap::new(),
        }
    }

    /// Registers; true unless the target is registered already, which changes nothing.
    pub(super) fn register(&mut self, id: &str, address: SocketAddr, now: Instant) -> bool {
        self.forget(now);
        let key = (address.ip(), address.port());
        if let Some(target) = self.targets.get(&key)
            && target.deregistered.is_none()
        {
            return false;
        }
        let target = Target {
            id: id.to_owned(),
            registered: now,
            deregistered: None,
            script: None,
        };
        self.targets.insert(key, target);
        true
    }

    /// Deregisters; false if the target isn't registered, which AWS answers with success.
    pub(super) fn deregister(&mut self, address: SocketAddr, now: Instant) -> bool {
        match self.targets.get_mut(&(address.ip(), address.port())) {
            Some(target) if target.deregistered.is_none() => {
                target.deregistered = Some(now);
                true
            }
            _ => false,
        }
    }

    /// Lets a target that is listed say `health` until it is deregistered or registered anew.
    pub(super) fn script(&mut self, address: SocketAddr, health: Option<Health>) {
        if let Some(target) = self.targets.get_mut(&(address.ip(), address.port())) {
            target.script = health;
        }
    }

    /// How many targets count against the group's quota.
    pub(super) fn len(&self, now: Instant) -> usize {
        self.list(now).len()
    }

    /// The targets that are registered, draining ones not among them.
    pub(super) fn registered(&self) -> impl Iterator<Item = SocketAddr> {
        let registered = |(key, target): (&(IpAddr, u16), &Target)| {
            (target.deregistered.is_none()).then(|| SocketAddr::from(*key))
        };
        self.targets.iter().filter_map(registered)
    }

    /// What `DescribeTargetHealth` without `Targets` lists.
    pub(super) fn list(&self, now: Instant) -> Vec<Described> {
        let described = |((_, port), target): (&(IpAddr, u16), &Target)| {
            Some(Described {
                id: target.id.clone(),
                port: *port,
                health: self.health_of(target, now)?,
            })
        };
        self.targets.iter().filter_map(described).collect()
    }

    /// The health of one target; none when it isn't listed.
    pub(super) fn health(&self, address: SocketAddr, now: Instant) -> Option<Health> {
        self.health_of(self.targets.get(&(address.ip(), address.port()))?, now)
    }

    fn health_of(&self, target: &Target, now: Instant) -> Option<Health> {
        let settings = &self.settings;
        if let Some(deregistered) = target.deregistered {
            let draining = deregistered + settings.control_plane_lag;
            if now >= draining + settings.deregistration_delay {
                return None;
            }
            if now >= draining {
                return Some(Health::draining());
            }
        }
        if let Some(health) = &target.script {
            return Some(health.clone());
        }
        if settings.load_balancers.is_empty() {
            return Some(Health::not_in_use());
        }
        let age = now.saturating_duration_since(target.registered);
        Some(if age < settings.registering {
            Health::registering()
        } else if age < settings.registering + settings.first_checks {
            Health::first_checks()
        } else {
            Health::healthy()
        })
    }

    /// Drops targets that aren't listed any more, lest a long run collects them.
    fn forget(&mut self, now: Instant) {
        let (lag, delay) = (
            self.settings.control_plane_lag,
            self.settings.deregistration_delay,
        );
        let is_listed = |target: &Target| {
            target
                .deregistered
                .is_none_or(|deregistered| now < deregistered + lag + delay)
        };
        self.targets.retain(|_, target| is_listed(target));
    }
}

#[cfg(test)]
mod tests;

//! What the fake knows, and the way of every call through it. Pure: time is passed in.
//!
//! ```text
//! form ─► who signed ─► faults ─► credentials ─► bucket ─► permissions ─► elbv2 | sts | ec2 ─► XML
//!                                                                                 └─► calls, changes
//! ```

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Instant;

use fastrand::Rng;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::bucket::{Bucket, Rate};
use super::failure::Failure;
use super::faults::{Effect, Faults};
use super::identity::{Identities, Identity};
use super::request::{self, Params};
use super::target_group::{Change, Kind, State, TargetGroup};
use super::vpc::Vpc;
use super::xml::{self, Service};
use super::{ec2, elbv2, sts};

/// The name that unsigned calls are counted under.
pub const ANONYMOUS: &str = "anonymous";

/// What the fake is started with.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// The region that calls must be signed for.
    pub region: String,
    /// Where targets may be.
    pub vpcs: Vec<Vpc>,
    /// Each account's bucket for `Describe*`: 40 tokens and 10 a second, as AWS documents it.
    pub read_bucket: Rate,
    /// Each account's bucket for the rest, which AWS doesn't document; as the AWS Load Balancer
    /// Controller expects it, 20 and 4 a second.
    pub write_bucket: Rate,
    /// For ids and other users' calls.
    pub seed: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            region: "eu-central-1".to_owned(),
            vpcs: vec![Vpc::default()],
            read_bucket: Rate {
                burst: 40.0,
                per_second: 10.0,
            },
            write_bucket: Rate {
                burst: 20.0,
                per_second: 4.0,
            },
            seed: 1,
        }
    }
}

/// How a call ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// With what was asked for.
    Answered,
    /// With an error of this code.
    Failed(String),
    /// By a fault that was injected. Slow answers count as answered or failed.
    Faulted(Effect),
}

/// A call that arrived.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    /// When.
    pub at: Instant,
    /// The name of the user or role whose key signed it.
    pub caller: String,
    /// Where it came from; none without a connection.
    pub peer: Option<IpAddr>,
    /// `DescribeTargetHealth`, ….
    pub operation: String,
    /// The ARNs and names of target groups in it.
    pub target_groups: Vec<String>,
    /// How many targets it names; 0 is list-all.
    pub targets: usize,
    /// How it ended.
    pub outcome: Outcome,
}

/// An answer that is ready to be sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Reply {
    pub(super) status: u16,
    pub(super) body: String,
    pub(super) effect: Option<Effect>,
}

/// A call without its transport.
#[derive(Debug, Default)]
pub(super) struct Incoming<'a> {
    pub(super) authorization: Option<&'a str>,
    pub(super) token: Option<&'a str>,
    pub(super) peer: Option<IpAddr>,
    pub(super) params: Params,
}

/// Everything.
#[derive(Debug)]
pub(super) struct Api {
    pub(super) settings: Settings,
    pub(super) groups: BTreeMap<String, State>,
    pub(super) identities: Identities,
    pub(super) faults: Faults,
    buckets: BTreeMap<(String, bool), Bucket>,
    subscribers: BTreeMap<String, Vec<UnboundedSender<Change>>>,
    pub(super) calls: Vec<Call>,
    rng: Rng,
}

impl Api {
    pub(super) fn new(settings: Settings) -> Self {
        Self {
            rng: Rng::with_seed(settings.seed),
            settings,
            groups: BTreeMap::new(),
            identities: Identities::default(),
            faults: Faults::default(),
            buckets: BTreeMap::new(),
            subscribers: BTreeMap::new(),
            calls: Vec::new(),
        }
    }

    /// Takes a call and answers it.
    pub(super) fn call(&mut self, incoming: &Incoming<'_>, now: Instant) -> Reply {
        let request_id = self.uuid();
        let params = &incoming.params;
        let operation = params.get("Action").unwrap_or_default().to_owned();
        let service = params.get("Version").and_then(Service::of_version);
        let scope = incoming.authorization.and_then(request::scope);
        let identity = scope
            .as_ref()
            .and_then(|scope| self.identities.find(scope))
            .cloned();
        let caller = identity
            .as_ref()
            .map_or(ANONYMOUS, |identity| &identity.name)
            .to_owned();
        let effect = self.faults.strike(&operation, &caller, now);
        let result = match effect {
            Some(Effect::Status(status)) => Err(Failure::injected(status)),
            Some(Effect::ExpiredToken) => Err(Failure::expired()),
            Some(Effect::Throttled) => Err(Failure::throttled()),
            Some(Effect::Hang | Effect::Malformed | Effect::Truncated | Effect::Reset) => {
                Ok(String::new())
            }
            Some(Effect::Slow(_)) | None => service
                .ok_or_else(|| {
                    Failure::new(
                        400,
                        "InvalidAction",
                        format!("Could not find operation {operation}"),
                    )
                })
                .and_then(|service| {
                    let caller = self.admit(service, &operation, incoming, identity, now)?;
                    self.dispatch(service, &operation, &caller, params, &request_id, now)
                }),
        };
        let outcome = match (&effect, &result) {
            (Some(effect), _) if !matches!(effect, Effect::Slow(_)) => Outcome::Faulted(*effect),
            (_, Ok(_)) => Outcome::Answered,
            (_, Err(failure)) => Outcome::Failed(failure.code.clone()),
        };
        let named = ["TargetGroupArns", "Names"]
            .into_iter()
            .flat_map(|name| params.list(name));
        let target_groups = params.get("TargetGroupArn").into_iter().chain(named);
        self.calls.push(Call {
            at: now,
            caller,
            peer: incoming.peer,
            operation,
            target_groups: target_groups.map(str::to_owned).collect(),
            targets: params.targets().len(),
            outcome,
        });
        match result {
            Ok(body) => Reply {
                status: 200,
                body,
                effect,
            },
            Err(failure) => Reply {
                status: failure.status,
                body: xml::failure(service.unwrap_or(Service::Elbv2), &failure, &request_id),
                effect,
            },
        }
    }

    /// Whether the call may be made at all, and by whom it is.
    fn admit(
        &mut self,
        service: Service,
        operation: &str,
        incoming: &Incoming<'_>,
        identity: Option<Identity>,
        now: Instant,
    ) -> Result<Identity, Failure> {
        // Whoever brings a web identity's token has no keys yet.
        if operation == sts::ASSUME_ROLE_WITH_WEB_IDENTITY {
            let [name, account, arn] = [ANONYMOUS, "", ANONYMOUS].map(str::to_owned);
            return Ok(Identity { name, account, arn });
        }
        let scope = incoming
            .authorization
            .and_then(request::scope)
            .ok_or_else(Failure::unsigned)?;
        self.identities.check(&scope, incoming.token, now)?;
        if scope.region != self.settings.region {
            return Err(Failure::wrong_scope(&format!(
                "a valid region, not '{}'",
                scope.region
            )));
        }
        if scope.service != service.name() {
            return Err(Failure::wrong_scope(&format!(
                "correct service: '{}'",
                service.name()
            )));
        }
        let identity = identity.ok_or_else(|| Failure::unknown_key(scope.service))?;
        if service == Service::Elbv2 {
            let is_read = operation.starts_with("Describe");
            if !self.bucket(&identity.account, is_read, now).take(now) {
                return Err(Failure::throttled());
            }
        }
        let action = format!("{}:{operation}", service.name());
        if self.identities.is_denied(&identity.name, &action) {
            return Err(Failure::denied(&identity.arn, &action));
        }
        Ok(identity)
    }

    fn dispatch(
        &mut self,
        service: Service,
        operation: &str,
        caller: &Identity,
        params: &Params,
        request_id: &str,
        now: Instant,
    ) -> Result<String, Failure> {
        match service {
            Service::Elbv2 => elbv2::call(self, operation, caller, params, request_id, now),
            Service::Sts => sts::call(self, operation, caller, params, request_id, now),
            Service::Ec2 => ec2::call(self, operation, caller, params, request_id),
        }
    }

    fn bucket(&mut self, account: &str, is_read: bool, now: Instant) -> &mut Bucket {
        let rate = if is_read {
            self.settings.read_bucket
        } else {
            self.settings.write_bucket
        };
        let seed = self.settings.seed;
        let key = (account.to_owned(), is_read);
        self.buckets
            .entry(key)
            .or_insert_with(|| Bucket::new(rate, seed, now))
    }

    /// Others of `account` make so many `Describe*` calls a second from now on.
    pub(super) fn set_foreign_load(&mut self, account: &str, calls_per_second: f64, now: Instant) {
        self.bucket(account, true, now)
            .set_foreign_load(calls_per_second, now);
    }

    /// A new target group's ARN.
    pub(super) fn create(&mut self, mut group: TargetGroup) -> String {
        let region = self.settings.region.clone();
        let prefix = format!("arn:aws:elasticloadbalancing:{region}:{}:", group.account);
        for load_balancer in &mut group.load_balancers {
            if !load_balancer.starts_with("arn:") {
                load_balancer.insert_str(0, &prefix);
            }
        }
        let arn = format!(
            "{prefix}targetgroup/{}/{:016x}",
            group.name,
            self.rng.u64(..)
        );
        self.groups
            .insert(arn.clone(), State::new(group, arn.clone()));
        arn
    }

    pub(super) fn delete(&mut self, arn: &str, now: Instant) {
        if self.groups.remove(arn).is_some() {
            self.tell(arn, None, Kind::GroupDeleted, now);
        }
    }

    pub(super) fn register(&mut self, arn: &str, id: &str, target: SocketAddr, now: Instant) {
        let group = self.groups.get_mut(arn);
        if group.is_some_and(|group| group.register(id, target, now)) {
            self.tell(arn, Some(target), Kind::Registered, now);
        }
    }

    pub(super) fn deregister(&mut self, arn: &str, target: SocketAddr, now: Instant) {
        let group = self.groups.get_mut(arn);
        if group.is_some_and(|group| group.deregister(target, now)) {
            self.tell(arn, Some(target), Kind::Deregistered, now);
        }
    }

    /// Changes from now on, beginning with the targets that are registered already.
    pub(super) fn subscribe(&mut self, arn: &str, now: Instant) -> UnboundedReceiver<Change> {
        let (tell, told) = unbounded_channel();
        for target in self.groups.get(arn).into_iter().flat_map(State::registered) {
            // The receiver is still here.
            let _ = tell.send(Change {
                target: Some(target),
                kind: Kind::Registered,
                at: now,
            });
        }
        self.subscribers
            .entry(arn.to_owned())
            .or_default()
            .push(tell);
        told
    }

    fn tell(&mut self, arn: &str, target: Option<SocketAddr>, kind: Kind, at: Instant) {
        let subscribers = self.subscribers.get_mut(arn);
        if let Some(subscribers) = subscribers {
            subscribers.retain(|tell| tell.send(Change { target, kind, at }).is_ok());
        }
    }

    fn uuid(&mut self) -> String {
        let (a, b) = (self.rng.u64(..), self.rng.u64(..));
        format!(
            "{:08x}-{:04x}-4{:03x}-9{:03x}-{:012x}",
            a >> 32,
            (a >> 16) & 0xffff,
            a & 0xfff,
            b >> 52,
            b & 0xffff_ffff_ffff
        )
    }
}

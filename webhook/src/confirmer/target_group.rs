//! Target groups of AWS Elastic Load Balancing, in the words of its API (`DescribeTargetHealth`), and who asks for
//! them. No SDK here: `crate::aws` is the one that calls.

use std::fmt;
use std::net::IpAddr;

use futures::future::BoxFuture;

/// A target group, and the role by which it may be asked.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TargetGroup {
    /// Which.
    pub id: GroupId,
    /// The role to assume for a group of another account.
    pub role: Option<Role>,
}

/// How a binding names its group.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum GroupId {
    /// `targetGroupARN`.
    Arn(String),
    /// `targetGroupName`, in our own region.
    Name(String),
}

/// `iamRoleArnToAssume` and `assumeRoleExternalId`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Role {
    /// ARN of the role.
    pub arn: String,
    /// External id, where its trust policy wants one.
    pub external_id: Option<String>,
}

impl TargetGroup {
    /// The group's name: an ARN's ends with `targetgroup/NAME/ID`.
    pub fn name(&self) -> &str {
        match &self.id {
            GroupId::Name(name) => name,
            GroupId::Arn(arn) => arn.split('/').nth(1).unwrap_or(arn),
        }
    }
}

/// As people look for it: the ARN, or the name where that is all that is known.
impl fmt::Display for TargetGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.id {
            GroupId::Arn(id) | GroupId::Name(id) => f.write_str(id),
        }
    }
}

/// What kind of load balancer a target group belongs to; it decides how long its data plane lags.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Family {
    /// Application Load Balancer: balances requests.
    Alb,
    /// Network Load Balancer: balances connections.
    Nlb,
}

impl Family {
    /// By a target group's protocol; `None` for one that we don't know (GENEVE is a gateway's).
    pub fn of_protocol(protocol: &str) -> Option<Self> {
        match protocol {
            "HTTP" | "HTTPS" => Some(Self::Alb),
            "TCP" | "TLS" | "UDP" | "TCP_UDP" | "QUIC" | "TCP_QUIC" => Some(Self::Nlb),
            _ => None,
        }
    }
}

/// A registration in a target group, as one answer showed it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// Its address, parsed: `2001:db8::1` has many spellings.
    pub ip: IpAddr,
    /// Its port.
    pub port: u16,
    /// Its health.
    pub health: Health,
}

/// `TargetHealth`, as far as it matters to us.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Health {
    /// `healthy`, `initial`, `unhealthy`, `unavailable`, and whatever we don't know: it may be sent to.
    Registered,
    /// `unhealthy.draining`: no new connections, but it may recover.
    UnhealthyDraining,
    /// `draining`: it was deregistered.
    Draining,
    /// `unused` with `Target.NotInUse`, `Target.IpUnusable` or `Target.InvalidState`: no load balancer uses it.
    Unused,
    /// Reason `Target.NotRegistered`, whatever the state says.
    NotRegistered,
}

impl Health {
    /// Reads `State` and `Reason`; the reason `Target.NotRegistered` wins over any state.
    pub fn of(state: &str, reason: Option<&str>) -> Self {
        match (state, reason) {
            (_, Some("Target.NotRegistered")) => Self::NotRegistered,
            ("draining", _) => Self::Draining,
            ("unhealthy.draining", _) => Self::UnhealthyDraining,
            ("unused", Some("Target.NotInUse" | "Target.IpUnusable" | "Target.InvalidState")) => {
                Self::Unused
            }
            _ => Self::Registered,
        }
    }
}

/// Why a target group can't be asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// `TargetGroupNotFound`: nothing routes by it any more.
    #[error("there is no such target group")]
    NotFound,
    /// `ThrottlingException`, `Throttling`, `RequestLimitExceeded`, or HTTP 429.
    #[error("the account's calls are throttled")]
    Throttled,
    /// `AccessDenied` and its like; the text names what is not allowed.
    #[error("access denied: {0}")]
    Denied(String),
    /// No credentials, expired or wrong ones, or a role that can't be assumed.
    #[error("no usable credentials: {0}")]
    Credentials(String),
    /// Everything else: a time-out, 5xx, an answer that can't be read, no such region.
    #[error("{0}")]
    Unavailable(String),
}

/// Asks for target groups. Each call of a method is exactly one request to the API (retries are the caller's, which
/// has a budget), and ends by itself within some seconds.
pub trait AskTargetGroups: Send + Sync + 'static {
    /// `DescribeTargetHealth` of the whole group.
    fn targets<'a>(&'a self, group: &'a TargetGroup)
    -> BoxFuture<'a, Result<Vec<Target>, Failure>>;

    /// `DescribeTargetGroups` of this one: to learn a name's ARN, and what no binding says.
    fn details<'a>(
        &'a self,
        group: &'a TargetGroup,
    ) -> BoxFuture<'a, Result<GroupDetails, Failure>>;
}

/// What `DescribeTargetGroups` says of a group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupDetails {
    /// Its ARN.
    pub arn: String,
    /// By its protocol.
    pub family: Option<Family>,
    /// Seconds between two health checks by one node of the load balancer, where they are on.
    pub health_check_interval_seconds: Option<u32>,
    /// The port that is checked where it isn't the traffic's own.
    pub health_check_port: Option<u16>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn state_and_reason_are_read_as_the_api_means_them() {
        for (state, reason, health) in [
            ("healthy", None, Health::Registered),
            (
                "initial",
                Some("Elb.RegistrationInProgress"),
                Health::Registered,
            ),
            (
                "initial",
                Some("Elb.InitialHealthChecking"),
                Health::Registered,
            ),
            ("unhealthy", Some("Target.Timeout"), Health::Registered),
            (
                "unhealthy",
                Some("Target.FailedHealthChecks"),
                Health::Registered,
            ),
            ("unavailable", Some("Elb.InternalError"), Health::Registered),
            ("unhealthy.draining", None, Health::UnhealthyDraining),
            (
                "draining",
                Some("Target.DeregistrationInProgress"),
                Health::Draining,
            ),
            ("draining", None, Health::Draining),
            ("unused", Some("Target.NotInUse"), Health::Unused),
            ("unused", Some("Target.IpUnusable"), Health::Unused),
            ("unused", Some("Target.InvalidState"), Health::Unused),
            (
                "unused",
                Some("Target.NotRegistered"),
                Health::NotRegistered,
            ),
            // A state that doesn't fit the reason: the reason is the more telling one.
            (
                "unavailable",
                Some("Target.NotRegistered"),
                Health::NotRegistered,
            ),
            (
                "healthy",
                Some("Target.NotRegistered"),
                Health::NotRegistered,
            ),
            // What a later version of the API may say is no proof of anything.
            ("unused", None, Health::Registered),
            ("unused", Some("Target.Somehow"), Health::Registered),
            ("resting", Some("Target.Somehow"), Health::Registered),
        ] {
            assert_eq!(Health::of(state, reason), health, "{state} {reason:?}");
        }
    }

    #[test]
    fn group_is_named_by_its_arn_or_its_name() {
        let mk = |id| TargetGroup { id, role: None };
        let arn =
            "arn:aws:elasticloadbalancing:eu-west-1:111122223333:targetgroup/web/0123456789abcdef";
        assert_eq!(mk(GroupId::Arn(arn.to_owned())).name(), "web");
        assert_eq!(mk(GroupId::Arn(arn.to_owned())).to_string(), arn);
        assert_eq!(mk(GroupId::Name("web".to_owned())).name(), "web");
    }

    #[test]
    fn family_is_told_by_the_protocol() {
        assert_eq!(Family::of_protocol("HTTPS"), Some(Family::Alb));
        assert_eq!(Family::of_protocol("TCP_UDP"), Some(Family::Nlb));
        assert_eq!(Family::of_protocol("GENEVE"), None);
    }
}

//! What `ELBv2` says about a target, in its own words (`TargetHealth` of the API reference).

/// A state with its reason. Words, not an enum: tests also set ones that nobody has heard of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Health {
    /// `healthy`, `draining`, `unhealthy.draining`, …
    pub state: String,
    /// `Target.DeregistrationInProgress`, …; AWS gives none for `healthy`.
    pub reason: Option<String>,
    /// AWS's sentence about it.
    pub description: Option<String>,
}

impl Health {
    /// Any state, with any reason.
    pub fn new(state: &str, reason: Option<&str>) -> Self {
        Self {
            state: state.to_owned(),
            reason: reason.map(str::to_owned),
            description: reason.and_then(describe).map(str::to_owned),
        }
    }

    /// Gets requests.
    pub fn healthy() -> Self {
        Self::new("healthy", None)
    }

    /// Deregistered, and its deregistration delay isn't over.
    pub fn draining() -> Self {
        Self::new("draining", Some("Target.DeregistrationInProgress"))
    }

    pub(super) fn registering() -> Self {
        Self::new("initial", Some("Elb.RegistrationInProgress"))
    }

    pub(super) fn first_checks() -> Self {
        Self::new("initial", Some("Elb.InitialHealthChecking"))
    }

    pub(super) fn not_registered() -> Self {
        Self::new("unused", Some("Target.NotRegistered"))
    }

    pub(super) fn not_in_use() -> Self {
        Self::new("unused", Some("Target.NotInUse"))
    }
}

fn describe(reason: &str) -> Option<&'static str> {
    Some(match reason {
        "Elb.RegistrationInProgress" => "Target registration is in progress",
        "Elb.InitialHealthChecking" => "Initial health checks in progress",
        "Elb.InternalError" => "Health checks failed due to an internal error",
        "Target.ResponseCodeMismatch" => "Health checks failed with these codes: [503]",
        "Target.Timeout" => "Request timed out",
        "Target.FailedHealthChecks" => "Health checks failed",
        "Target.NotRegistered" => "Target is not registered to the target group",
        "Target.NotInUse" => {
            "Target group is not configured to receive traffic from the load balancer"
        }
        "Target.InvalidState" => "Target is in the stopped state",
        "Target.IpUnusable" => "Target IP address is reserved for use by a load balancer",
        "Target.DeregistrationInProgress" => "Target deregistration is in progress",
        "Target.HealthCheckDisabled" => "Health checks are disabled for this target",
        _ => return None,
    })
}

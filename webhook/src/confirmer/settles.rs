//! How long evidence has to settle, and how long it has to be quiet, by the kind of load balancer. Pure.

use std::time::Duration;

use super::target_group::Family;

/// How long what was seen gone is waited for, and how long no new connection may have come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settle {
    /// S: time after the evidence.
    pub settle: Duration,
    /// Q: time after the last new connection. It can only lengthen a hold.
    pub quiet: Duration,
}

/// The settles of all kinds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settles {
    /// kube-proxy, in-cluster proxies and clients, who follow `EndpointSlices`.
    pub service: Settle,
    /// Application Load Balancers.
    pub alb: Settle,
    /// Network Load Balancers, and target groups of which nobody knows whose they are.
    pub nlb: Settle,
    /// Controllers that can't be asked.
    pub unknown: Settle,
}

impl Default for Settles {
    /// An ALB was measured to send for 17 s after its API said `draining`; users of NLBs report 120 to 180 s, and
    /// AWS's support 180 to 300 s (aws-load-balancer-controller, issues 2366 and 1834). A rolling update by a
    /// controller that nobody can ask is given a minute.
    fn default() -> Self {
        let mk = |settle, quiet| Settle {
            settle: Duration::from_secs(settle),
            quiet: Duration::from_secs(quiet),
        };
        Self {
            service: mk(5, 5),
            alb: mk(20, 10),
            nlb: mk(180, 30),
            unknown: mk(60, 10),
        }
    }
}

impl Settles {
    /// The settle behind a load balancer of this family.
    pub fn of_family(&self, family: Option<Family>) -> Settle {
        match family {
            Some(Family::Alb) => self.alb,
            // Too long a hold costs time, too short a one requests.
            Some(Family::Nlb) | None => self.nlb,
        }
    }

    /// The same with what a pod asks for itself, which is meant for all that sends to it.
    #[must_use]
    pub fn overridden(self, settle: Option<Duration>, quiet: Option<Duration>) -> Self {
        let with = |own: Settle| Settle {
            settle: settle.unwrap_or(own.settle),
            quiet: quiet.unwrap_or(own.quiet),
        };
        Self {
            service: with(self.service),
            alb: with(self.alb),
            nlb: with(self.nlb),
            unknown: with(self.unknown),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn unknown_family_is_given_the_longest() {
        let settles = Settles::default();
        assert_eq!(settles.of_family(None), settles.nlb);
        assert_eq!(settles.of_family(Some(Family::Alb)).settle, s(20));
        assert_eq!(settles.of_family(Some(Family::Nlb)).settle, s(180));
    }

    #[test]
    fn what_a_pod_asks_for_counts_for_every_kind() {
        let settles = Settles::default().overridden(Some(s(7)), None);
        assert_eq!((settles.service.settle, settles.nlb.settle), (s(7), s(7)));
        assert_eq!(settles.nlb.quiet, s(30));
        assert_eq!(
            Settles::default().overridden(None, Some(s(0))).alb,
            Settle {
                settle: s(20),
                quiet: s(0)
            }
        );
    }
}

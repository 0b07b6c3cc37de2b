//! The load balancers that the lab stands in for, and what is known of them.

use std::time::Duration;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// One kind of load balancer with its circumstances. The names are those of the report.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, ValueEnum, Serialize, Deserialize,
)]
#[serde(rename_all = "kebab-case")]
pub enum Balancer {
    /// An AWS Application Load Balancer: requests are balanced one by one, connections to pods are pooled.
    Alb,
    /// An AWS Network Load Balancer: connections are balanced one by one and left open until either end closes.
    Nlb,
    /// An ALB in an account whose `Describe*` bucket others empty for most of the time.
    AlbThrottled,
    /// An ALB whose targets are gone from the API 5 s after their deregistration, inside the data plane's lag.
    #[value(name = "alb-dereg-5s")]
    #[serde(rename = "alb-dereg-5s")]
    AlbDereg5s,
    /// Two ALB groups before the same pods, each with lags of its own.
    TwoGroups,
}

/// What a load balancer tells apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layer {
    /// Requests: it never cuts what it sent itself, and nobody but it sees a pod's connection end.
    Requests,
    /// Connections: whoever has one keeps it for as long as the pod lives.
    Connections,
}

impl Balancer {
    /// The name in the report, in namespaces and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Alb => "alb",
            Self::Nlb => "nlb",
            Self::AlbThrottled => "alb-throttled",
            Self::AlbDereg5s => "alb-dereg-5s",
            Self::TwoGroups => "two-groups",
        }
    }

    /// What it balances.
    pub fn layer(self) -> Layer {
        match self {
            Self::Nlb => Layer::Connections,
            Self::Alb | Self::AlbThrottled | Self::AlbDereg5s | Self::TwoGroups => Layer::Requests,
        }
    }

    /// Target groups in front of one Deployment.
    pub fn groups(self) -> usize {
        if self == Self::TwoGroups { 2 } else { 1 }
    }

    /// Its deregistration delay; 300 s is AWS's default.
    pub fn deregistration_delay(self) -> Duration {
        Duration::from_secs(if self == Self::AlbDereg5s { 5 } else { 300 })
    }

    /// Others' `Describe*` calls per second in the account. AWS's bucket takes 10, so of 30 two thirds are refused,
    /// and as large a part of everybody else's.
    pub fn foreign_calls_per_second(self) -> f64 {
        if self == Self::AlbThrottled {
            30.0
        } else {
            0.0
        }
    }

    /// The gate's settle time, S: the design's, to be compared with what was seen.
    pub fn settle(self) -> Duration {
        Duration::from_secs(match self.layer() {
            Layer::Requests => 20,
            Layer::Connections => 180,
        })
    }

    /// The gate's quiet time, Q.
    pub fn quiet(self) -> Duration {
        Duration::from_secs(match self.layer() {
            Layer::Requests => 10,
            Layer::Connections => 30,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_line_and_report_use_the_same_names() {
        for balancer in Balancer::value_variants() {
            let name = balancer.to_possible_value().unwrap();
            assert_eq!(name.get_name(), balancer.name());
            assert_eq!(serde_json::to_value(balancer).unwrap(), balancer.name());
        }
    }
}

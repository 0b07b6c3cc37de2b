//! What stands between a pod's deletion and its SIGTERM, one after the other.

use std::time::Duration;

use clap::ValueEnum;
use serde::Serialize;
use serde_json::{Value, json};

/// One way to delay SIGTERM. The names are those of the report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Variant {
    /// No hook: SIGTERM comes with the deletion.
    None,
    /// The built-in sleep of 5 s, the usual guess.
    #[value(name = "sleep-5s")]
    #[serde(rename = "sleep-5s")]
    Sleep5s,
    /// The gate, told to settle for less than the load balancer's lag: shows that the lab can tell.
    ShortSettle,
    /// The gate with the settle time of an AWS ALB.
    Gate,
}

impl Variant {
    /// The name in the report, in namespaces and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Sleep5s => "sleep-5s",
            Self::ShortSettle => "short-settle",
            Self::Gate => "gate",
        }
    }

    /// The gate's settle time; nothing where pods are not gated.
    pub fn settle(self) -> Option<Duration> {
        match self {
            Self::None | Self::Sleep5s => None,
            Self::ShortSettle => Some(Duration::from_secs(5)),
            Self::Gate => Some(Duration::from_secs(20)),
        }
    }

    /// The container's own preStop.
    pub fn lifecycle(self) -> Option<Value> {
        (self == Self::Sleep5s).then(|| json!({"preStop": {"sleep": {"seconds": 5}}}))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_line_report_and_namespace_use_the_same_names() {
        for variant in Variant::value_variants() {
            assert_eq!(
                variant.to_possible_value().unwrap().get_name(),
                variant.name()
            );
            assert_eq!(serde_json::to_value(variant).unwrap(), variant.name());
        }
    }
}

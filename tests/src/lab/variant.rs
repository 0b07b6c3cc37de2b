//! What stands between a pod's deletion and its SIGTERM.

use std::time::Duration;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sidecar::contract::annotation;

/// One way to delay SIGTERM. The names are those of the report.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, ValueEnum, Serialize, Deserialize,
)]
#[serde(rename_all = "kebab-case")]
pub enum Variant {
    /// No hook: SIGTERM comes with the deletion.
    None,
    /// The built-in sleep of 5 s, the usual guess.
    #[value(name = "sleep-5s")]
    #[serde(rename = "sleep-5s")]
    Sleep5s,
    /// The built-in sleep of 15 s.
    #[value(name = "sleep-15s")]
    #[serde(rename = "sleep-15s")]
    Sleep15s,
    /// The built-in sleep of 30 s.
    #[value(name = "sleep-30s")]
    #[serde(rename = "sleep-30s")]
    Sleep30s,
    /// The control: the gate with neither settle nor quiet time. It must fail, or the lab could not show a failure.
    NoSettle,
    /// The gate as it comes.
    Gate,
}

impl Variant {
    /// The name in the report, in namespaces and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Sleep5s => "sleep-5s",
            Self::Sleep15s => "sleep-15s",
            Self::Sleep30s => "sleep-30s",
            Self::NoSettle => "no-settle",
            Self::Gate => "gate",
        }
    }

    /// Whether pods are gated.
    pub fn is_gated(self) -> bool {
        matches!(self, Self::NoSettle | Self::Gate)
    }

    /// The pods' annotations.
    pub fn annotations(self) -> Value {
        if self == Self::NoSettle {
            json!({annotation::SETTLE: "0s", annotation::QUIET: "0s"})
        } else {
            json!({})
        }
    }

    /// How long it sleeps, if that is what it does.
    pub fn sleep(self) -> Option<Duration> {
        let seconds = match self {
            Self::None | Self::NoSettle | Self::Gate => return None,
            Self::Sleep5s => 5,
            Self::Sleep15s => 15,
            Self::Sleep30s => 30,
        };
        Some(Duration::from_secs(seconds))
    }

    /// The container's own preStop.
    pub fn lifecycle(self) -> Option<Value> {
        let seconds = self.sleep()?.as_secs();
        Some(json!({"preStop": {"sleep": {"seconds": seconds}}}))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_line_report_and_namespace_use_the_same_names() {
        for variant in Variant::value_variants() {
            let name = variant.to_possible_value().unwrap();
            assert_eq!(name.get_name(), variant.name());
            assert_eq!(serde_json::to_value(variant).unwrap(), variant.name());
        }
    }
}

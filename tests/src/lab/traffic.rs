//! Kinds of traffic. What each consists of is in [`clients`](super::clients).

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// One kind of traffic, to one Deployment. The names are those of the report.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, ValueEnum, Serialize, Deserialize,
)]
#[serde(rename_all = "kebab-case")]
pub enum Traffic {
    /// Each request over a connection of its own.
    Short,
    /// A pool of connections that each live for some seconds.
    KeepAlive,
    /// Both of these, half of the requests each, and what else goes on at a pod: a scraper that calls it directly,
    /// endless answers as websockets are, and a client in the cluster with a pool of its own.
    Mixed,
    /// A request in two seconds, all through one of the load balancer's sources: the one with the longest lag.
    Slow,
}

impl Traffic {
    /// The name in the report, in namespaces and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Short => "short",
            Self::KeepAlive => "keep-alive",
            Self::Mixed => "mixed",
            Self::Slow => "slow",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_line_and_report_use_the_same_names() {
        for traffic in Traffic::value_variants() {
            let name = traffic.to_possible_value().unwrap();
            assert_eq!(name.get_name(), traffic.name());
            assert_eq!(serde_json::to_value(traffic).unwrap(), traffic.name());
        }
    }
}

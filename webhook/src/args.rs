//! Verbs, flags and environment of `prestop-gate`. The help text is these comments.

use std::net::SocketAddr;
use std::time::Duration;

use crate::confirmer::settles::{Settle, Settles};
use clap::{Args, Parser, Subcommand, ValueEnum};

/// Holds SIGTERM back until load balancers were seen to let go of a pod.
#[derive(Debug, Parser)]
#[command(name = "prestop-gate", version, about)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub verb: Verb,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Verb {
    /// Run the admission webhook and the confirmer.
    Serve(Serve),
}

/// Flags of `serve`.
#[derive(Debug, Clone, Args)]
pub struct Serve {
    /// Image of the waiter, as it is written into pods.
    #[arg(long, env = "PRESTOP_GATE_WAITER_IMAGE", value_name = "IMAGE")]
    pub waiter_image: String,
    /// Longest hold of pods that name none and have no NLB.
    #[arg(long, env = "PRESTOP_GATE_MAX_WAIT", value_name = "DURATION", default_value = "60s", value_parser = duration)]
    pub max_wait: Duration,
    /// Longest hold of pods that name none and are behind an NLB, or behind a controller that can't be asked; at least
    /// max-wait.
    #[arg(long, env = "PRESTOP_GATE_MAX_WAIT_NLB", value_name = "DURATION", default_value = "240s", value_parser = duration)]
    pub max_wait_nlb: Duration,
    /// Longest max-wait that a pod may ask for.
    #[arg(long, env = "PRESTOP_GATE_MAX_WAIT_CAP", value_name = "DURATION", default_value = "30m", value_parser = duration)]
    pub max_wait_cap: Duration,
    /// Hold of pods that name none when nothing can be confirmed.
    #[arg(long, env = "PRESTOP_GATE_FALLBACK_WAIT", value_name = "DURATION", default_value = "15s", value_parser = duration)]
    pub fallback_wait: Duration,
    /// Time that pods which name none are held after their endpoints were dropped.
    #[arg(long, env = "PRESTOP_GATE_SETTLE", value_name = "DURATION", default_value = "5s", value_parser = duration)]
    pub settle: Duration,
    /// Time without new connections that such a pod is held too; it can only lengthen a hold.
    #[arg(long, env = "PRESTOP_GATE_QUIET", value_name = "DURATION", default_value = "5s", value_parser = duration)]
    pub quiet: Duration,
    /// The same behind an ALB, after its target group was seen to let go.
    #[arg(long, env = "PRESTOP_GATE_SETTLE_ALB", value_name = "DURATION", default_value = "20s", value_parser = duration)]
    pub settle_alb: Duration,
    /// The same behind an ALB, after the last new connection.
    #[arg(long, env = "PRESTOP_GATE_QUIET_ALB", value_name = "DURATION", default_value = "10s", value_parser = duration)]
    pub quiet_alb: Duration,
    /// The same behind an NLB, after its target group was seen to let go.
    #[arg(long, env = "PRESTOP_GATE_SETTLE_NLB", value_name = "DURATION", default_value = "180s", value_parser = duration)]
    pub settle_nlb: Duration,
    /// The same behind an NLB, after the last new connection.
    #[arg(long, env = "PRESTOP_GATE_QUIET_NLB", value_name = "DURATION", default_value = "30s", value_parser = duration)]
    pub quiet_nlb: Duration,
    /// The same where a controller that can't be asked sends to the pod, after its endpoints were dropped.
    #[arg(long, env = "PRESTOP_GATE_SETTLE_UNKNOWN", value_name = "DURATION", default_value = "60s", value_parser = duration)]
    pub settle_unknown: Duration,
    /// The same where a controller that can't be asked sends to the pod, after the last new connection.
    #[arg(long, env = "PRESTOP_GATE_QUIET_UNKNOWN", value_name = "DURATION", default_value = "10s", value_parser = duration)]
    pub quiet_unknown: Duration,
    /// Longest hold when the node itself is shutting down or under pressure.
    #[arg(long, env = "PRESTOP_GATE_NODE_WAIT", value_name = "DURATION", default_value = "5s", value_parser = duration)]
    pub node_wait: Duration,
    /// Life of the certificate authorities.
    #[arg(long, env = "PRESTOP_GATE_CA_LIFE", value_name = "DURATION", default_value = "87600h", value_parser = duration)]
    pub ca_life: Duration,
    /// Life of the serving certificates; they are renewed after two thirds of it.
    #[arg(long, env = "PRESTOP_GATE_LEAF_LIFE", value_name = "DURATION", default_value = "2160h", value_parser = duration)]
    pub leaf_life: Duration,
    /// How long to go on serving after SIGTERM, until no Service sends here any more.
    #[arg(long, env = "PRESTOP_GATE_SHUTDOWN_DELAY", value_name = "DURATION", default_value = "10s", value_parser = duration)]
    pub shutdown_delay: Duration,
    /// Address of the admission webhook.
    #[arg(
        long,
        env = "PRESTOP_GATE_WEBHOOK_LISTEN",
        value_name = "ADDRESS",
        default_value = "[::]:8443"
    )]
    pub webhook_listen: SocketAddr,
    /// Address of the confirmer.
    #[arg(
        long,
        env = "PRESTOP_GATE_CONFIRMER_LISTEN",
        value_name = "ADDRESS",
        default_value = "[::]:8444"
    )]
    pub confirmer_listen: SocketAddr,
    /// Address of health and metrics, without TLS.
    #[arg(
        long,
        env = "PRESTOP_GATE_ADMIN_LISTEN",
        value_name = "ADDRESS",
        default_value = "[::]:8080"
    )]
    pub admin_listen: SocketAddr,
    /// Name of this replica's pod, for Events.
    #[arg(long, env = "POD_NAME", value_name = "NAME")]
    pub pod_name: Option<String>,
    /// What to log, as a level or as `target=level` pairs.
    #[arg(
        long,
        env = "PRESTOP_GATE_LOG_LEVEL",
        value_name = "FILTER",
        default_value = "info"
    )]
    pub log_level: String,
    /// How to log.
    #[arg(
        long,
        env = "PRESTOP_GATE_LOG_FORMAT",
        value_enum,
        default_value = "json"
    )]
    pub log_format: LogFormat,
}

impl Serve {
    /// The settles of pods that name none.
    pub fn settles(&self) -> Settles {
        let mk = |settle, quiet| Settle { settle, quiet };
        Settles {
            service: mk(self.settle, self.quiet),
            alb: mk(self.settle_alb, self.quiet_alb),
            nlb: mk(self.settle_nlb, self.quiet_nlb),
            unknown: mk(self.settle_unknown, self.quiet_unknown),
        }
    }

    /// Checks flags against each other.
    ///
    /// # Errors
    /// A sentence that names both flags.
    pub fn check(&self) -> anyhow::Result<()> {
        let Self {
            max_wait,
            max_wait_cap,
            settle,
            ..
        } = self;
        anyhow::ensure!(
            max_wait <= max_wait_cap,
            "--max-wait is {max_wait:?}; allowed is at most --max-wait-cap, {max_wait_cap:?}"
        );
        anyhow::ensure!(
            settle < max_wait,
            "--settle is {settle:?}; allowed is less than --max-wait, {max_wait:?}, or no hold would end before it"
        );
        Ok(())
    }
}

/// How to log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// One JSON object a line.
    Json,
    /// Lines for people.
    Plain,
}

/// A duration as Kubernetes and Go write it, zero or more.
fn duration(text: &str) -> Result<Duration, String> {
    crate::duration::parse(text)
        .ok_or_else(|| "allowed is a duration of 0 or more, such as 90s, 5m or 1h30m".to_owned())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    fn mk_serve(flags: &[&str]) -> Serve {
        let common = ["prestop-gate", "serve", "--waiter-image", "waiter:1"];
        match Cli::try_parse_from(common.iter().chain(flags))
            .expect("the flags must be read")
            .verb
        {
            Verb::Serve(serve) => serve,
        }
    }

    #[test]
    fn defaults_are_those_of_the_modules_that_explain_them() {
        let serve = mk_serve(&[]);
        let lives = certs::Lives::default();
        assert_eq!(serve.max_wait, crate::inject::config::DEFAULT_MAX_WAIT);
        assert_eq!(
            serve.max_wait_nlb,
            crate::inject::config::DEFAULT_MAX_WAIT_NLB
        );
        assert_eq!(
            serve.fallback_wait,
            crate::inject::config::DEFAULT_FALLBACK_WAIT
        );
        assert_eq!(
            serve.max_wait_cap,
            crate::inject::config::DEFAULT_MAX_WAIT_CAP
        );
        assert_eq!(serve.settles(), Settles::default());
        assert_eq!(
            (serve.ca_life, serve.leaf_life),
            (lives.authority, lives.leaf)
        );
        assert!(serve.check().is_ok());
    }

    #[test]
    fn flags_that_contradict_each_other_are_refused_by_name() {
        let error = mk_serve(&["--max-wait", "1h"])
            .check()
            .expect_err("must be refused")
            .to_string();
        assert!(
            error.contains("--max-wait is") && error.contains("--max-wait-cap"),
            "{error}"
        );
        let error = mk_serve(&["--settle", "60s"])
            .check()
            .expect_err("must be refused")
            .to_string();
        assert!(
            error.contains("--settle is") && error.contains("--max-wait"),
            "{error}"
        );
    }

    #[test]
    fn durations_are_read_as_go_writes_them_and_bad_ones_are_explained() {
        assert_eq!(duration("1h30m"), Ok(Duration::from_mins(90)));
        assert_eq!(duration("1500ms"), Ok(Duration::from_millis(1500)));
        assert_eq!(duration("0s"), Ok(Duration::ZERO));
        assert!(duration("-5s").is_err());
        assert!(
            duration("banana")
                .expect_err("must be refused")
                .contains("allowed is a duration of 0 or more")
        );
    }
}

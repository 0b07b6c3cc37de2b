//! Command line and environment of the waiter: all that it can be told.
//!
//! The webhook writes these arguments at admission; its tests feed them back through [`parse`].

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use lexopt::Arg;

use crate::contract::{self, flag};

/// Flag of every verb: where the shared volume is mounted, default [`contract::MOUNT_PATH`]. For tests.
pub const DIR: &str = "dir";
/// Flag of `run`: the waiter's token, default [`contract::TOKEN_PATH`]. For tests.
pub const TOKEN_FILE: &str = "token-file";

/// Printed by `waiter --help`.
pub const USAGE: &str = "\
waiter holds a pod's preStop hooks until its load balancers let go of it

usage:
  waiter run    --original-grace S --max-wait S --fallback-wait S --server-name NAME [--min-hold S] [--settle S] [--quiet S]
                [--host-network] [--probes PORT:PER_MINUTE]…
  waiter ready
  waiter hook   --container NAME --max-wait S --fallback-wait S [--min-hold S] [--liveness-cap S]
                [--original-first] -- [ORIGINAL…]
  waiter --version

S is a decimal number of seconds. Every verb takes --dir PATH (default /prestop-gate), run takes --token-file PATH.
Environment of run: PRESTOP_GATE_CONFIRMER (comma list of host:port), PRESTOP_GATE_CA (PEM).
";

/// What to do.
#[derive(Debug, Clone, PartialEq)]
pub enum Command {
    /// `waiter run`: the sidecar's own process.
    Run(RunArgs),
    /// `waiter ready`: the sidecar's postStart.
    Ready(ReadyArgs),
    /// `waiter hook`: a main's preStop.
    Hook(HookArgs),
    /// `waiter --version`.
    Version,
    /// `waiter --help`.
    Help,
}

/// Arguments of `waiter run`.
#[derive(Debug, Clone, PartialEq)]
pub struct RunArgs {
    /// Where the shared volume is mounted.
    pub dir: PathBuf,
    /// The waiter's token, read afresh for each request: the kubelet replaces it.
    pub token_file: PathBuf,
    /// terminationGracePeriodSeconds before us.
    pub original_grace: Duration,
    /// Longest hold.
    pub max_wait: Duration,
    /// Shortest hold, 0 where no sleep was replaced.
    pub min_hold: Duration,
    /// Hold when nothing can be confirmed.
    pub fallback_wait: Duration,
    /// Time after the evidence; the confirmer's default where absent.
    pub settle: Option<Duration>,
    /// Time after the last new connection, the confirmer's default where absent.
    pub quiet: Option<Duration>,
    /// Whether the pod has its node's network.
    pub host_network: bool,
    /// New connections that the kubelet's readiness probes make in a minute, by port.
    pub probes: BTreeMap<u16, f64>,
    /// TLS server name of the confirmer.
    pub server_name: String,
}

/// Arguments of `waiter ready`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReadyArgs {
    /// Where the shared volume is mounted.
    pub dir: PathBuf,
}

/// Arguments of `waiter hook`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HookArgs {
    /// Where the shared volume is mounted.
    pub dir: PathBuf,
    /// Name of the hook's container.
    pub container: String,
    /// Longest hold.
    pub max_wait: Duration,
    /// Shortest hold, 0 where no sleep was replaced.
    pub min_hold: Duration,
    /// Hold when nothing can be confirmed.
    pub fallback_wait: Duration,
    /// Longest wait while it isn't known whether the pod is terminating.
    pub liveness_cap: Option<Duration>,
    /// Run the original before the wait.
    pub original_first: bool,
    /// The container's own preStop, empty where it has none. Not text: whatever bytes the pod's author wrote.
    pub original: Vec<OsString>,
}

/// What `waiter run` reads from its environment. Neither is needed to start: without them nothing can be confirmed,
/// and hooks are held for the fallback.
#[derive(Debug, Clone, Default)]
pub struct Environment {
    /// [`contract::ENV_CONFIRMER`].
    pub confirmer: Option<String>,
    /// [`contract::ENV_CA`].
    pub ca: Option<String>,
}

impl Environment {
    /// Reads the process's environment; a value that isn't UTF-8 counts as absent.
    #[expect(
        clippy::disallowed_methods,
        reason = "this is the one place that reads the environment"
    )]
    pub fn read() -> Self {
        Self {
            confirmer: std::env::var(contract::ENV_CONFIRMER).ok(),
            ca: std::env::var(contract::ENV_CA).ok(),
        }
    }
}

/// Why the arguments are refused: always the key, the value and what is allowed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No verb.
    #[error("a verb is missing; allowed are run, ready and hook")]
    MissingVerb,
    /// Not a verb of ours.
    #[error("unknown verb {0:?}; allowed are run, ready and hook")]
    UnknownVerb(OsString),
    /// Not a flag of this verb.
    #[error("unknown argument {argument:?} of waiter {verb}; allowed are {allowed}")]
    UnknownArgument {
        /// The verb.
        verb: &'static str,
        /// What was given.
        argument: OsString,
        /// All flags of the verb.
        allowed: String,
    },
    /// A flag that the verb can't do without.
    #[error("--{flag} is missing; waiter {verb} needs it")]
    MissingFlag {
        /// The verb.
        verb: &'static str,
        /// The flag without dashes.
        flag: &'static str,
    },
    /// A flag's value can't be read.
    #[error("failed to read --{flag}: {problem}")]
    Value {
        /// The flag without dashes.
        flag: &'static str,
        /// The value and what is allowed.
        problem: String,
    },
    /// The command line isn't of the form `--flag value`.
    #[error("failed to read the command line")]
    Syntax(#[from] lexopt::Error),
}

/// Reads the arguments, without the program's own name.
///
/// # Errors
/// Names the key, the value and what is allowed.
pub fn parse(args: impl IntoIterator<Item = OsString>) -> Result<Command, Error> {
    let mut parser = lexopt::Parser::from_args(args);
    match parser.next()? {
        None => Err(Error::MissingVerb),
        Some(Arg::Long("version") | Arg::Short('V')) => Ok(Command::Version),
        Some(Arg::Long("help") | Arg::Short('h')) => Ok(Command::Help),
        Some(Arg::Value(verb)) => match verb.to_str() {
            Some(flag::RUN) => run(&mut parser),
            Some(flag::READY) => ready(&mut parser),
            Some(flag::HOOK) => hook(&mut parser),
            _ => Err(Error::UnknownVerb(verb)),
        },
        Some(argument) => Err(argument.unexpected().into()),
    }
}

fn run(parser: &mut lexopt::Parser) -> Result<Command, Error> {
    let valued = [
        DIR,
        TOKEN_FILE,
        flag::ORIGINAL_GRACE,
        flag::MAX_WAIT,
        flag::MIN_HOLD,
        flag::FALLBACK_WAIT,
        flag::SETTLE,
        flag::QUIET,
        flag::PROBES,
        flag::SERVER_NAME,
    ];
    let (mut flags, _) = Flags::read(
        flag::RUN,
        &valued,
        Some(flag::HOST_NETWORK),
        Original::Refused,
        parser,
    )?;
    Ok(Command::Run(RunArgs {
        dir: flags.path(DIR, contract::MOUNT_PATH),
        token_file: flags.path(TOKEN_FILE, contract::TOKEN_PATH),
        original_grace: flags.needed(flag::ORIGINAL_GRACE)?,
        max_wait: flags.needed(flag::MAX_WAIT)?,
        min_hold: flags.seconds(flag::MIN_HOLD)?.unwrap_or_default(),
        fallback_wait: flags.needed(flag::FALLBACK_WAIT)?,
        settle: flags.seconds(flag::SETTLE)?,
        quiet: flags.seconds(flag::QUIET)?,
        host_network: flags.bare,
        probes: flags.probes()?,
        server_name: flags.text(flag::SERVER_NAME)?,
    }))
}

fn ready(parser: &mut lexopt::Parser) -> Result<Command, Error> {
    let (mut flags, _) = Flags::read(flag::READY, &[DIR], None, Original::Refused, parser)?;
    Ok(Command::Ready(ReadyArgs {
        dir: flags.path(DIR, contract::MOUNT_PATH),
    }))
}

fn hook(parser: &mut lexopt::Parser) -> Result<Command, Error> {
    let valued = [
        DIR,
        flag::CONTAINER,
        flag::MAX_WAIT,
        flag::MIN_HOLD,
        flag::FALLBACK_WAIT,
        flag::LIVENESS_CAP,
    ];
    let (mut flags, original) = Flags::read(
        flag::HOOK,
        &valued,
        Some(flag::ORIGINAL_FIRST),
        Original::Taken,
        parser,
    )?;
    Ok(Command::Hook(HookArgs {
        dir: flags.path(DIR, contract::MOUNT_PATH),
        container: flags.text(flag::CONTAINER)?,
        max_wait: flags.needed(flag::MAX_WAIT)?,
        min_hold: flags.seconds(flag::MIN_HOLD)?.unwrap_or_default(),
        fallback_wait: flags.needed(flag::FALLBACK_WAIT)?,
        liveness_cap: flags.seconds(flag::LIVENESS_CAP)?,
        original_first: flags.bare,
        original,
    }))
}

/// Whether a verb takes a command line after its flags.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Original {
    Taken,
    Refused,
}

/// A verb's flags as they were given; of a repeated one the last counts, unless all do.
struct Flags {
    verb: &'static str,
    values: BTreeMap<&'static str, Vec<OsString>>,
    bare: bool,
}

impl Flags {
    /// Reads up to the first argument that is no flag; that one and all after it are the original. `bare` is the one
    /// flag without a value.
    fn read(
        verb: &'static str,
        valued: &[&'static str],
        bare: Option<&'static str>,
        original: Original,
        parser: &mut lexopt::Parser,
    ) -> Result<(Self, Vec<OsString>), Error> {
        let mut flags = Self {
            verb,
            values: BTreeMap::new(),
            bare: false,
        };
        loop {
            let argument = match parser.next()? {
                None => return Ok((flags, Vec::new())),
                Some(Arg::Value(first)) if original == Original::Taken => {
                    let original = std::iter::once(first).chain(parser.raw_args()?).collect();
                    return Ok((flags, original));
                }
                Some(Arg::Long(name)) => {
                    if bare == Some(name) {
                        flags.bare = true;
                        continue;
                    }
                    if let Some(known) = valued.iter().find(|known| **known == name) {
                        flags.values.entry(known).or_default().push(parser.value()?);
                        continue;
                    }
                    OsString::from(format!("--{name}"))
                }
                Some(Arg::Short(name)) => OsString::from(format!("-{name}")),
                Some(Arg::Value(value)) => value,
            };
            let allowed: Vec<_> = valued
                .iter()
                .chain(&bare)
                .map(|name| format!("--{name}"))
                .collect();
            return Err(Error::UnknownArgument {
                verb,
                argument,
                allowed: allowed.join(", "),
            });
        }
    }

    fn last(&mut self, flag: &'static str) -> Option<OsString> {
        self.values.remove(flag)?.pop()
    }

    fn path(&mut self, flag: &'static str, default: &str) -> PathBuf {
        self.last(flag)
            .map_or_else(|| PathBuf::from(default), PathBuf::from)
    }

    fn text(&mut self, flag: &'static str) -> Result<String, Error> {
        let value = self.last(flag).ok_or(Error::MissingFlag {
            verb: self.verb,
            flag,
        })?;
        value.into_string().map_err(|value| Error::Value {
            flag,
            problem: format!(
                "{:?} is not UTF-8; allowed is text",
                value.to_string_lossy()
            ),
        })
    }

    fn seconds(&mut self, flag: &'static str) -> Result<Option<Duration>, Error> {
        let Some(value) = self.last(flag) else {
            return Ok(None);
        };
        contract::parse_seconds(&value.to_string_lossy())
            .map(Some)
            .map_err(|problem| Error::Value { flag, problem })
    }

    /// All of [`flag::PROBES`]; those of one port add up.
    fn probes(&mut self) -> Result<BTreeMap<u16, f64>, Error> {
        let mut probes = BTreeMap::new();
        for value in self.values.remove(flag::PROBES).unwrap_or_default() {
            let value = value.to_string_lossy();
            let (port, per_minute) = probe(&value).ok_or_else(|| Error::Value {
                flag: flag::PROBES,
                problem: format!(
                    "{value:?} is not PORT:PER_MINUTE; allowed is a port of 1 to 65535 and a decimal number of 0 or more, such as 8080:6"
                ),
            })?;
            *probes.entry(port).or_default() += per_minute;
        }
        Ok(probes)
    }

    fn needed(&mut self, flag: &'static str) -> Result<Duration, Error> {
        self.seconds(flag)?.ok_or(Error::MissingFlag {
            verb: self.verb,
            flag,
        })
    }
}

fn probe(text: &str) -> Option<(u16, f64)> {
    let (port, per_minute) = text.trim().split_once(':')?;
    let (port, per_minute) = (port.parse().ok()?, per_minute.parse::<f64>().ok()?);
    (port != contract::UNKNOWN_PORT && per_minute.is_finite() && per_minute >= 0.0)
        .then_some((port, per_minute))
}

#[cfg(test)]
mod tests;

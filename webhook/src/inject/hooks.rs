//! What a container does before it stops today, and the hook that replaces it.

use std::time::Duration;

use serde::Serialize;
use serde_json::value::RawValue;
use sidecar::contract::{BINARY_PATH, flag, format_seconds, parse_seconds};

use super::view::{Handler, Text};

/// Existing preStop handler of a container.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum PreStop<'a> {
    /// None at all.
    Absent,
    /// A command that does more than sleep; runs after (or before) the wait, its arguments kept exactly.
    Command(Vec<Text<'a>>),
    /// A pure sleep: what the wait replaces, so it becomes the shortest hold.
    Sleep(Duration),
    /// Our own hook, with what it wraps.
    Ours {
        min_hold: Duration,
        original: Vec<Text<'a>>,
    },
    /// What this version leaves alone: how to call it in a warning.
    LeftAlone(&'static str),
}

impl<'a> PreStop<'a> {
    /// Reads the raw handler.
    pub(super) fn read(raw: Option<&'a RawValue>) -> Self {
        let Some(raw) = raw else { return Self::Absent };
        // Only the kinds and fields known here can be rewritten without loss; the API server judges the rest.
        match serde_json::from_str::<Handler<'a>>(raw.get()) {
            Ok(Handler {
                exec: Some(exec),
                http_get: None,
                tcp_socket: None,
                sleep: None,
            }) => match exec.command {
                Some(command) if !command.is_empty() => Self::of_command(command),
                _ => Self::LeftAlone("an exec without a command"),
            },
            Ok(Handler {
                exec: None,
                http_get: None,
                tcp_socket: None,
                sleep: Some(sleep),
            }) => u64::try_from(sleep.seconds)
                .map_or(Self::LeftAlone("a sleep of less than nothing"), |seconds| {
                    Self::Sleep(Duration::from_secs(seconds))
                }),
            Ok(Handler {
                exec: None,
                http_get: Some(_),
                tcp_socket: None,
                sleep: None,
            }) => Self::LeftAlone("httpGet"),
            Ok(Handler {
                exec: None,
                http_get: None,
                tcp_socket: Some(_),
                sleep: None,
            }) => Self::LeftAlone("tcpSocket"),
            _ => Self::LeftAlone("a kind with fields that this version doesn't know"),
        }
    }

    fn of_command(command: Vec<Text<'a>>) -> Self {
        if command.len() >= 2 && &*command[0] == BINARY_PATH && &*command[1] == flag::HOOK {
            return Self::unwrap(command);
        }
        pure_sleep(&command).map_or(Self::Command(command), Self::Sleep)
    }

    fn unwrap(mut command: Vec<Text<'a>>) -> Self {
        let own_end = command
            .iter()
            .position(|argument| &**argument == "--")
            .unwrap_or(command.len());
        let original = command.split_off(command.len().min(own_end + 1));
        let min_hold = flag_value(&command, flag::MIN_HOLD)
            .and_then(|value| parse_seconds(value).ok())
            .unwrap_or_default();
        Self::Ours { min_hold, original }
    }
}

/// The value of `--name=value` among arguments that we wrote.
pub(super) fn flag_value<'t>(arguments: &'t [Text<'_>], name: &str) -> Option<&'t str> {
    arguments.iter().find_map(|argument| {
        argument
            .strip_prefix("--")?
            .strip_prefix(name)?
            .strip_prefix('=')
    })
}

/// The length of a command that does nothing but sleep.
fn pure_sleep(command: &[Text<'_>]) -> Option<Duration> {
    match command {
        [program, seconds] if file_name(program) == "sleep" => sleep_seconds(seconds),
        [shell, option, script]
            if matches!(file_name(shell), "sh" | "bash" | "ash" | "dash") && &**option == "-c" =>
        {
            let mut words = script.split_ascii_whitespace();
            match (words.next(), words.next(), words.next()) {
                (Some(program), Some(seconds), None) if file_name(program) == "sleep" => {
                    sleep_seconds(seconds)
                }
                _ => None,
            }
        }
        _ => None,
    }
}

fn file_name(program: &str) -> &str {
    program.rsplit_once('/').map_or(program, |(_, name)| name)
}

/// `15`, `1.5`, `2m` as sleep(1) reads them; anything it might read in another way is no pure sleep.
fn sleep_seconds(text: &str) -> Option<Duration> {
    let (number, unit) = match text.as_bytes().last()? {
        b's' => (&text[..text.len() - 1], 1.0),
        b'm' => (&text[..text.len() - 1], 60.0),
        b'h' => (&text[..text.len() - 1], 3600.0),
        b'd' => (&text[..text.len() - 1], 86_400.0),
        _ => (text, 1.0),
    };
    if !number
        .bytes()
        .all(|byte| byte.is_ascii_digit() || byte == b'.')
    {
        return None;
    }
    Duration::try_from_secs_f64(number.parse::<f64>().ok()? * unit).ok()
}

/// The hook that a container gets as its preStop.
#[derive(Debug)]
pub(super) struct Hook<'h, 'a> {
    pub(super) container: &'h str,
    pub(super) max_wait: Duration,
    pub(super) fallback_wait: Duration,
    pub(super) min_hold: Duration,
    pub(super) liveness_cap: Option<Duration>,
    pub(super) original: &'h [Text<'a>],
    pub(super) original_first: bool,
}

#[derive(Debug, Serialize)]
pub(super) struct PreStopExec {
    exec: Command,
}

#[derive(Debug, Serialize)]
struct Command {
    command: Vec<String>,
}

impl Hook<'_, '_> {
    /// The whole handler, as the pod carries it.
    pub(super) fn handler(&self) -> PreStopExec {
        let mut command = vec![
            BINARY_PATH.to_owned(),
            flag::HOOK.to_owned(),
            format!("--{}={}", flag::CONTAINER, self.container),
            seconds(flag::MAX_WAIT, self.max_wait),
            seconds(flag::FALLBACK_WAIT, self.fallback_wait),
        ];
        if !self.min_hold.is_zero() {
            command.push(seconds(flag::MIN_HOLD, self.min_hold));
        }
        if let Some(cap) = self.liveness_cap {
            command.push(seconds(flag::LIVENESS_CAP, cap));
        }
        if !self.original.is_empty() {
            if self.original_first {
                command.push(format!("--{}", flag::ORIGINAL_FIRST));
            }
            command.push("--".to_owned());
            command.extend(
                self.original
                    .iter()
                    .map(|argument| String::from(&**argument)),
            );
        }
        PreStopExec {
            exec: Command { command },
        }
    }
}

/// `--name=SECONDS`.
pub(super) fn seconds(name: &str, duration: Duration) -> String {
    format!("--{name}={}", format_seconds(duration))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn with_pre_stop(json: &serde_json::Value, check: impl FnOnce(PreStop<'_>)) {
        let raw = serde_json::value::to_raw_value(json).unwrap();
        check(PreStop::read(Some(&raw)));
    }

    #[test]
    fn pure_sleeps_are_told_from_commands_in_every_usual_spelling() {
        for (command, seconds) in [
            (json!(["sleep", "15"]), 15.0),
            (json!(["/bin/sleep", "15"]), 15.0),
            (json!(["/usr/bin/sleep", "0"]), 0.0),
            (json!(["sleep", "15s"]), 15.0),
            (json!(["sleep", "2m"]), 120.0),
            (json!(["sleep", "1h"]), 3600.0),
            (json!(["sleep", "0.5"]), 0.5),
            (json!(["sh", "-c", "sleep 15"]), 15.0),
            (json!(["/bin/sh", "-c", "  sleep   15s "]), 15.0),
            (json!(["bash", "-c", "/bin/sleep 1.5m"]), 90.0),
            (json!(["/bin/bash", "-c", "sleep 15"]), 15.0),
        ] {
            with_pre_stop(&json!({"exec": {"command": command}}), |pre_stop| {
                assert_eq!(
                    pre_stop,
                    PreStop::Sleep(Duration::from_secs_f64(seconds)),
                    "{command}"
                );
            });
        }
        with_pre_stop(&json!({"sleep": {"seconds": 7}}), |pre_stop| {
            assert_eq!(pre_stop, PreStop::Sleep(Duration::from_secs(7)));
        });
    }

    #[test]
    fn anything_more_than_a_pure_sleep_is_a_command() {
        for command in [
            json!(["sleep"]),
            json!(["sleep", "infinity"]),
            json!(["sleep", "-5"]),
            json!(["sleep", ""]),
            json!(["sleep", "s"]),
            json!(["sleep", "."]),
            json!(["sleep", "1e3"]),
            json!(["sleep", "1", "2"]),
            json!(["sleep", "ä"]),
            json!(["sleep", "99999999999999999999999999999999"]),
            json!(["sh", "-c", "sleep 15; nginx -s quit"]),
            json!(["sh", "-c", "sleep 15 && true"]),
            json!(["sh", "-c", "sleep $DELAY"]),
            json!(["sh", "-ec", "sleep 15"]),
            json!(["sh", "-c"]),
            json!(["sh", "sleep 15"]),
            json!(["python", "-c", "sleep 15"]),
            json!(["/usr/sbin/nginx", "-s", "quit"]),
            json!(["/prestop-gate/bin/waiter"]),
        ] {
            with_pre_stop(&json!({"exec": {"command": command}}), |pre_stop| {
                assert!(
                    matches!(pre_stop, PreStop::Command(_)),
                    "{command}: {pre_stop:?}"
                );
            });
        }
    }

    #[test]
    fn handlers_that_are_not_wholly_understood_are_left_alone() {
        for handler in [
            json!({}),
            json!({"httpGet": {"port": 80}}),
            json!({"tcpSocket": {"port": 80}}),
            json!({"grpc": {"port": 80}}),
            json!({"exec": {"command": ["a"]}, "sleep": {"seconds": 1}}),
            json!({"exec": {"command": ["a"], "user": 0}}),
            json!({"exec": {"command": []}}),
            json!({"exec": {}}),
            json!({"exec": {"command": "a"}}),
            json!({"sleep": {"seconds": 1, "jitter": 2}}),
            json!({"sleep": {"seconds": -1}}),
            json!([]),
            json!("sleep"),
        ] {
            with_pre_stop(&handler, |pre_stop| {
                assert!(
                    matches!(pre_stop, PreStop::LeftAlone(_)),
                    "{handler}: {pre_stop:?}"
                );
            });
        }
    }

    #[test]
    fn our_own_hook_gives_back_what_it_wraps() {
        let original = ["-x", "--min-hold=9", "--", "a b\n\"{{"];
        let json = json!(original).to_string();
        let texts: Vec<Text<'_>> = serde_json::from_str(&json).unwrap();
        let hook = Hook {
            container: "app",
            max_wait: Duration::from_mins(1),
            fallback_wait: Duration::from_secs(15),
            min_hold: Duration::from_millis(1500),
            liveness_cap: None,
            original: &texts,
            original_first: false,
        };
        with_pre_stop(&serde_json::to_value(hook.handler()).unwrap(), |pre_stop| {
            assert_eq!(
                pre_stop,
                PreStop::Ours {
                    min_hold: Duration::from_millis(1500),
                    original: texts.clone()
                }
            );
        });
    }
}

//! What a pod's annotations ask for: the one place that reads them.

use std::time::Duration;

use sidecar::contract::annotation;

use super::config::InjectConfig;
use super::view::Annotations;

/// Keys that mean something on a pod, in the order of the documentation.
const KNOWN: [&str; 8] = [
    annotation::INJECT,
    annotation::MAX_WAIT,
    annotation::FALLBACK_WAIT,
    annotation::SETTLE,
    annotation::QUIET,
    annotation::CONTAINERS,
    annotation::ORIGINAL,
    annotation::STATUS,
];
/// Shortest max-wait: less is no gate at all.
const MIN_MAX_WAIT: Duration = Duration::from_secs(1);
/// Remarks on unknown keys, so that a pod full of them doesn't fill its status.
const MAX_UNKNOWN: usize = 5;
/// Characters of a value that a warning repeats.
const QUOTED_CHARS: usize = 40;

/// A pod's wishes, defaults filled in.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Options<'a> {
    pub(super) max_wait: Duration,
    /// Why, where no annotation says it.
    pub(super) max_wait_because: Option<String>,
    pub(super) fallback_wait: Duration,
    /// The confirmer's default where absent.
    pub(super) settle: Option<Duration>,
    /// The same for the time after the last new connection.
    pub(super) quiet: Option<Duration>,
    /// All main containers where absent.
    pub(super) containers: Option<Vec<&'a str>>,
    /// Whether an existing preStop runs before the wait.
    pub(super) original_first: bool,
}

/// Whether a pod opts in: absent counts as yes, since the API server only sends pods that are opted in by other means.
///
/// # Errors
/// A warning, where the value is neither `true` nor `false`.
pub(super) fn opted_in(annotations: &Annotations<'_>) -> Result<bool, String> {
    match annotations.get(annotation::INJECT) {
        None | Some("true") => Ok(true),
        Some("false") => Ok(false),
        Some(value) => Err(refusal(annotation::INJECT, value, r#""true" or "false""#)),
    }
}

impl<'a> Options<'a> {
    /// Reads all annotations of ours; `auto` is the longest hold of a pod that names none, and why. The second list
    /// has remarks on what is odd but harmless.
    ///
    /// # Errors
    /// One warning for each value that can't be followed.
    pub(super) fn read(
        annotations: &'a Annotations<'_>,
        config: &InjectConfig,
        (auto, because): (Duration, &str),
    ) -> Result<(Self, Vec<String>), Vec<String>> {
        let mut reader = Reader {
            annotations,
            cap: config.max_wait_cap,
            refusals: Vec::new(),
        };
        let max_wait = match annotations.get(annotation::MAX_WAIT) {
            Some("auto") => None,
            _ => reader.duration(annotation::MAX_WAIT, MIN_MAX_WAIT, r#", or "auto""#),
        };
        let fallback_wait = reader.duration(annotation::FALLBACK_WAIT, Duration::ZERO, "");
        let settle = reader.duration(annotation::SETTLE, Duration::ZERO, "");
        let quiet = reader.duration(annotation::QUIET, Duration::ZERO, "");
        let original_first = match annotations.get(annotation::ORIGINAL) {
            None | Some("after") => false,
            Some("before") => true,
            Some(value) => {
                reader.refusals.push(refusal(
                    annotation::ORIGINAL,
                    value,
                    r#""after" or "before""#,
                ));
                false
            }
        };
        if !reader.refusals.is_empty() {
            return Err(reader.refusals);
        }
        let options = Self {
            max_wait: max_wait.unwrap_or(auto),
            max_wait_because: max_wait.is_none().then(|| because.to_owned()),
            fallback_wait: fallback_wait.unwrap_or(config.default_fallback_wait),
            settle,
            quiet,
            containers: annotations.get(annotation::CONTAINERS).map(|list| {
                list.split(',')
                    .map(str::trim)
                    .filter(|name| !name.is_empty())
                    .collect()
            }),
            original_first,
        };
        let remarks = options.remarks(annotations);
        Ok((options, remarks))
    }

    fn remarks(&self, annotations: &Annotations<'_>) -> Vec<String> {
        let unknown = annotations
            .ours
            .iter()
            .filter(|(key, _)| !KNOWN.contains(&&**key))
            .take(MAX_UNKNOWN);
        let mut remarks: Vec<String> = unknown
            .map(|(key, _)| {
                format!(
                    "annotation {} is not known and has no effect; known are {}",
                    quoted(key),
                    known_names()
                )
            })
            .collect();
        if self.settle.is_some_and(|settle| settle >= self.max_wait) {
            remarks.push(format!(
                "{} is not shorter than max-wait ({:?}), so every hold ends unconfirmed",
                annotation::SETTLE,
                self.max_wait
            ));
        }
        remarks
    }
}

/// All known keys without the part that they share.
fn known_names() -> String {
    KNOWN
        .map(|key| key.strip_prefix(annotation::PREFIX).unwrap_or(key))
        .join(", ")
}

struct Reader<'r, 'a> {
    annotations: &'r Annotations<'a>,
    cap: Duration,
    refusals: Vec<String>,
}

impl Reader<'_, '_> {
    fn duration(&mut self, key: &str, min: Duration, or: &str) -> Option<Duration> {
        let value = self.annotations.get(key)?;
        let duration =
            crate::duration::parse(value).filter(|duration| (min..=self.cap).contains(duration));
        if duration.is_none() {
            let allowed = format!(
                r#"a duration such as "90s" or "1m30s", from {} to {}{or}"#,
                go_duration(min),
                go_duration(self.cap)
            );
            self.refusals.push(refusal(key, value, &allowed));
        }
        duration
    }
}

/// A duration as people write it into the annotation.
fn go_duration(duration: Duration) -> String {
    match duration.as_secs() {
        _ if duration.subsec_nanos() > 0 => format!("{duration:?}"),
        seconds if seconds > 0 && seconds % 3600 == 0 => format!("{}h", seconds / 3600),
        seconds if seconds > 0 && seconds % 60 == 0 => format!("{}m", seconds / 60),
        seconds => format!("{seconds}s"),
    }
}

fn refusal(key: &str, value: &str, allowed: &str) -> String {
    format!(
        "not gated: annotation {key} is {}; allowed is {allowed}",
        quoted(value)
    )
}

/// Anybody's text, fit for a warning: short, and without line breaks or control characters.
pub(super) fn quoted(text: &str) -> String {
    match text.char_indices().nth(QUOTED_CHARS) {
        Some((end, _)) => format!("{:?}…", &text[..end]),
        None => format!("{text:?}"),
    }
}

#[cfg(test)]
mod tests;

//! What happened to each pod, and when. Pure: fed with observations, answers with lines worth telling.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::follower::Change;

/// Something that was seen. Times are wall-clock Unix milliseconds of one machine.
#[derive(Debug)]
pub enum Seen {
    /// The pod has a deletion timestamp, for the first time.
    Terminating {
        /// The pod.
        pod: String,
        /// When the watch brought it.
        at: u64,
    },
    /// A line of the app's log.
    Said {
        /// The pod.
        pod: String,
        /// The line.
        event: AppEvent,
    },
    /// The pod's object is gone.
    Gone {
        /// The pod.
        pod: String,
        /// When the watch brought it.
        at: u64,
    },
    /// The load balancer changed.
    Balancer {
        /// What changed.
        change: Change,
        /// When it was in force.
        at: u64,
    },
}

/// A line of the app's log.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct AppEvent {
    /// `started`, `sigterm` or `exit`.
    pub event: String,
    /// When.
    pub unix_ms: u64,
    /// Requests that had reached it.
    pub requests: u64,
    /// When the last of these came.
    pub last_request_unix_ms: Option<u64>,
}

#[derive(Debug, Default)]
struct Record {
    terminating: Option<u64>,
    sigterm: Option<AppEvent>,
    gone: Option<u64>,
    in_balancer: bool,
    left_balancer: Option<u64>,
}

/// All pods of one trial.
#[derive(Debug, Default)]
pub struct Ledger {
    pods: BTreeMap<String, Record>,
}

impl Ledger {
    /// Takes note and answers what to tell, if anything.
    pub fn note(&mut self, seen: Seen) -> Option<String> {
        match seen {
            Seen::Terminating { pod, at } => {
                let record = self.pods.entry(pod.clone()).or_default();
                let first = record.terminating.is_none();
                record.terminating.get_or_insert(at);
                first.then(|| format!("{pod} is terminating"))
            }
            Seen::Said { pod, event } => self.note_said(&pod, event),
            Seen::Gone { pod, at } => {
                self.pods.entry(pod).or_default().gone.get_or_insert(at);
                None
            }
            Seen::Balancer { change, at } => self.note_balancer(change, at),
        }
    }

    /// Pods that were deleted and are gone.
    pub fn gone(&self) -> usize {
        self.pods
            .values()
            .filter(|record| record.terminating.is_some() && record.gone.is_some())
            .count()
    }

    /// Deleted pods that still get requests.
    pub fn still_in_balancer(&self) -> usize {
        self.pods
            .values()
            .filter(|record| record.terminating.is_some() && record.in_balancer)
            .count()
    }

    /// Pods that get requests.
    pub fn in_balancer(&self) -> usize {
        self.pods
            .values()
            .filter(|record| record.in_balancer)
            .count()
    }

    /// Deleted pods whose log never told of SIGTERM.
    pub fn without_sigterm(&self) -> Vec<&str> {
        let missing = self
            .pods
            .iter()
            .filter(|(_, record)| record.terminating.is_some() && record.sigterm.is_none());
        missing.map(|(pod, _)| pod.as_str()).collect()
    }

    /// Pods that were deleted.
    pub fn terminations(&self) -> usize {
        self.pods
            .values()
            .filter(|record| record.terminating.is_some())
            .count()
    }

    /// Seconds from deletion to SIGTERM, of each deleted pod where both are known.
    pub fn holds(&self) -> Vec<f64> {
        self.pods.values().filter_map(Record::hold).collect()
    }

    /// Seconds from the last request that reached a pod to its SIGTERM, of each deleted pod that had one.
    pub fn wastes(&self) -> Vec<f64> {
        self.pods.values().filter_map(Record::waste).collect()
    }

    fn note_said(&mut self, pod: &str, event: AppEvent) -> Option<String> {
        if event.event != "sigterm" {
            return None;
        }
        let record = self.pods.entry(pod.to_owned()).or_default();
        record.sigterm.get_or_insert(event);
        let held = record.hold().map_or_else(String::new, |hold| {
            format!(" {hold:.1} s after its deletion")
        });
        let last = record.waste().map_or_else(String::new, |waste| {
            format!(", {waste:.1} s after its last request")
        });
        Some(format!("{pod} got SIGTERM{held}{last}"))
    }

    fn note_balancer(&mut self, change: Change, at: u64) -> Option<String> {
        match change {
            Change::Add(target) => {
                self.pods.entry(target.pod).or_default().in_balancer = true;
                None
            }
            Change::Leave(_) | Change::Stay(_) => None,
            Change::Remove(target) => {
                let record = self.pods.entry(target.pod.clone()).or_default();
                record.in_balancer = false;
                record.left_balancer = Some(at);
                let relative = record.sigterm.as_ref().map_or_else(String::new, |event| {
                    format!(
                        ", {:.1} s after its SIGTERM",
                        seconds_between(event.unix_ms, at)
                    )
                });
                Some(format!(
                    "{} gets nothing more from the load balancer{relative}",
                    target.pod
                ))
            }
        }
    }
}

impl Record {
    fn hold(&self) -> Option<f64> {
        // The watch may bring the deletion after the kubelet acted on it.
        Some(seconds_between(self.terminating?, self.sigterm.as_ref()?.unix_ms).max(0.0))
    }

    fn waste(&self) -> Option<f64> {
        self.terminating?;
        let event = self.sigterm.as_ref()?;
        Some(seconds_between(event.last_request_unix_ms?, event.unix_ms))
    }
}

/// Seconds from `from` to `to`, negative if `to` is earlier.
fn seconds_between(from: u64, to: u64) -> f64 {
    let milliseconds =
        i64::try_from(to).unwrap_or(i64::MAX) - i64::try_from(from).unwrap_or(i64::MAX);
    // Differences of minutes are exact in a double.
    #[expect(
        clippy::cast_precision_loss,
        reason = "differences of minutes are exact in a double"
    )]
    let seconds = milliseconds as f64 / 1000.0;
    seconds
}

#[cfg(test)]
mod tests;

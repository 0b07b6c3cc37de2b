//! What happened to each pod, and when. Pure: fed with observations, answers with lines worth telling.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use super::balancer::Layer;
use super::schedule::Step;
use super::seen::{AppEvent, Seen};
use super::statistics::seconds_between;

/// What is known of one pod.
#[derive(Debug, Clone, Default)]
pub struct Record {
    /// When its deletion was seen.
    pub terminating: Option<u64>,
    /// What the app said at SIGTERM.
    pub sigterm: Option<AppEvent>,
    /// Whether its object is gone.
    pub gone: bool,
    /// Its address.
    pub ip: Option<IpAddr>,
    /// Group → when its API accepted the deregistration.
    pub deregistered: BTreeMap<usize, u64>,
    /// Group and source → when it ceased to send.
    pub dropped: BTreeMap<(usize, usize), u64>,
}

/// All pods of one run.
#[derive(Debug, Default)]
pub struct Ledger {
    pods: BTreeMap<String, Record>,
    /// What each source sends to.
    sources: BTreeMap<(usize, usize), BTreeSet<IpAddr>>,
}

impl Ledger {
    /// Takes note and answers what to tell, if anything.
    pub fn note(&mut self, seen: Seen) -> Option<String> {
        match seen {
            Seen::Address { pod, ip } => {
                self.pods.entry(pod).or_default().ip = Some(ip);
                None
            }
            Seen::Terminating { pod, at } => {
                let record = self.pods.entry(pod.clone()).or_default();
                let first = record.terminating.is_none();
                record.terminating.get_or_insert(at);
                first.then(|| format!("{pod} is terminating"))
            }
            Seen::Said { pod, event } => self.note_said(&pod, event),
            Seen::Gone { pod } => {
                self.pods.entry(pod).or_default().gone = true;
                None
            }
            Seen::Deregistered { group, ip, at } => {
                let (_, record) = self.find(ip)?;
                record.deregistered.insert(group, at);
                None
            }
            Seen::Source { source, step, at } => self.note_source(source, step, at),
        }
    }

    /// Deleted pods.
    pub fn terminations(&self) -> BTreeMap<String, Record> {
        let deleted = |record: &Record| record.terminating.is_some();
        self.pods
            .iter()
            .filter(|(_, record)| deleted(record))
            .map(|(pod, record)| (pod.clone(), record.clone()))
            .collect()
    }

    /// Deleted pods that are gone, and to which nothing is sent any more.
    pub fn done(&self) -> usize {
        let done = |record: &&Record| {
            record.terminating.is_some() && record.gone && !self.is_sent_to(record)
        };
        self.pods.values().filter(done).count()
    }

    /// Targets of the source that has fewest; none before every one of `sources` has reported.
    pub fn targets(&self, sources: usize) -> usize {
        if self.sources.len() < sources {
            return 0;
        }
        self.sources.values().map(BTreeSet::len).min().unwrap_or(0)
    }

    /// Deleted pods whose log never told of SIGTERM.
    pub fn without_sigterm(&self) -> Vec<&str> {
        let missing = |record: &Record| record.terminating.is_some() && record.sigterm.is_none();
        let pods = self.pods.iter().filter(|(_, record)| missing(record));
        pods.map(|(pod, _)| pod.as_str()).collect()
    }

    /// When `pod` got SIGTERM.
    pub fn sigterm(&self, pod: &str) -> Option<u64> {
        Some(self.pods.get(pod)?.sigterm.as_ref()?.unix_ms)
    }

    /// Addresses of the pods that exist.
    pub fn addresses(&self) -> Vec<IpAddr> {
        let there = self.pods.values().filter(|record| !record.gone);
        there.filter_map(|record| record.ip).collect()
    }

    fn is_sent_to(&self, record: &Record) -> bool {
        let Some(ip) = record.ip else { return false };
        self.sources.values().any(|targets| targets.contains(&ip))
    }

    /// The pod that has an address. A later pod might have it again; in one run there are too few for that.
    fn find(&mut self, ip: IpAddr) -> Option<(&String, &mut Record)> {
        let mut pods = self.pods.iter_mut();
        pods.find(|(_, record)| record.ip == Some(ip))
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
        Some(format!("{pod} got SIGTERM{held}"))
    }

    fn note_source(&mut self, source: (usize, usize), step: Step, at: u64) -> Option<String> {
        let targets = self.sources.entry(source).or_default();
        let address = match step {
            Step::Add(address) => {
                targets.insert(address.ip());
                return None;
            }
            Step::Remove(address) => address,
        };
        targets.remove(&address.ip());
        let sent_by_others = self
            .sources
            .values()
            .any(|targets| targets.contains(&address.ip()));
        let (pod, record) = self.find(address.ip())?;
        record.dropped.insert(source, at);
        if sent_by_others {
            return None;
        }
        let relative = record.sigterm.as_ref().map_or_else(String::new, |event| {
            let seconds = seconds_between(event.unix_ms, at);
            format!(", {seconds:.1} s after its SIGTERM")
        });
        Some(format!(
            "{pod} gets nothing more from the load balancer{relative}"
        ))
    }
}

impl Record {
    /// Seconds from deletion to SIGTERM. The watch may bring the deletion after the kubelet acted on it.
    pub fn hold(&self) -> Option<f64> {
        Some(seconds_between(self.terminating?, self.sigterm.as_ref()?.unix_ms).max(0.0))
    }

    /// Seconds from the last thing that the load balancer sent to SIGTERM: a request, or a new connection where that
    /// is what it balances.
    pub fn waste(&self, layer: Layer) -> Option<f64> {
        self.terminating?;
        let event = self.sigterm.as_ref()?;
        let last = match layer {
            Layer::Requests => event.last_request_unix_ms?,
            Layer::Connections => event.last_connection_unix_ms?,
        };
        Some(seconds_between(last, event.unix_ms))
    }

    /// When the last connection was accepted that is no probe's and no scraper's.
    pub fn last_new(&self) -> Option<u64> {
        let event = self.sigterm.as_ref()?;
        event
            .last_connection_unix_ms
            .max(event.last_cluster_connection_unix_ms)
    }
}

#[cfg(test)]
mod tests;

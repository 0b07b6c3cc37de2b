//! Whether it is quiet at a pod: no new connections but those of probes and scrapes. Pure.
//!
//! Silence can only lengthen a hold. Every rule that ends a settle early because nobody has called for a while drops
//! requests under bursty or pooled traffic, so there is none here.

use std::collections::BTreeMap;
use std::time::Duration;

use sidecar::contract::{TRAFFIC_WINDOW, Traffic, UNKNOWN_PORT};

use super::attachment::Quiet;

/// Where a mesh's proxy takes inbound connections on behalf of the app: Istio's and Linkerd's.
const MESH_PORTS: [u16; 2] = [15006, 4143];

/// Scrapes that any pod may get within one quiet time: Prometheus comes every 15 to 60 s, and mostly over a
/// connection that it keeps.
const SCRAPES: u64 = 1;

/// What a pod's network namespace saw, with what is known of its probers.
#[derive(Debug, Clone, Copy)]
pub struct Inbound<'a> {
    /// The waiter's report.
    pub traffic: &'a Traffic,
    /// How old it is.
    pub age: Duration,
    /// Connections that the kubelet's probes make in a minute, by port.
    pub probes_per_minute: &'a BTreeMap<u16, f64>,
}

impl Inbound<'_> {
    /// Until there were no more new connections for the quiet time than probers make, if nobody else comes from now on.
    ///
    /// Probers are subtracted by count and not by address: a node's address is also where kube-proxy's clients seem
    /// to come from, and a load balancer checks from where it sends.
    pub fn new_left(&self, quiet: &Quiet) -> Duration {
        let seconds = whole_seconds(quiet.time);
        let counts = self.counts(quiet);
        let allowed = self.explained(quiet, seconds).saturating_add(SCRAPES);
        // In `wait` seconds the window has lost that many of its oldest seconds, and has got probes for them.
        let is_quiet = |wait: &usize| {
            let old: u64 = counts.iter().take(seconds - wait).sum();
            old.saturating_add(self.explained(quiet, *wait)) <= allowed
        };
        let wait = (0..=seconds).find(is_quiet).unwrap_or(seconds);
        Duration::from_secs(wait as u64).saturating_sub(self.age)
    }

    /// How long ago the last new connection came that no prober explains, as far back as the report goes.
    pub fn last_new(&self, quiet: &Quiet) -> Option<Duration> {
        let seconds = whole_seconds(quiet.time);
        let counts = self.counts(quiet);
        let allowed = self.explained(quiet, seconds).saturating_add(SCRAPES);
        let last = (0..counts.len()).find(|end| {
            let window: u64 = counts.iter().skip(*end).take(seconds).sum();
            counts[*end] > 0 && window > allowed
        })?;
        Some(self.age + Duration::from_secs(last as u64))
    }

    /// Until the quiet time has passed since the last byte on an open connection.
    pub fn bytes_left(&self, quiet: &Quiet) -> Duration {
        let last = self
            .traffic
            .last_byte_seconds
            .iter()
            .filter(|(port, _)| counts_for(**port, quiet))
            .filter_map(|(_, seconds)| Duration::try_from_secs_f64(*seconds).ok())
            .min();
        last.map_or(Duration::ZERO, |last| {
            quiet.time.saturating_sub(last.saturating_add(self.age))
        })
    }

    /// New connections on the ports where they count, by second, the latest first.
    fn counts(&self, quiet: &Quiet) -> Vec<u64> {
        let mut counts = vec![0; TRAFFIC_WINDOW];
        for (port, seconds) in &self.traffic.new_connections {
            if counts_for(*port, quiet) {
                for (sum, count) in counts.iter_mut().zip(seconds) {
                    *sum += u64::from(*count);
                }
            }
        }
        counts
    }

    /// Connections that probers make on those ports in so many seconds at most.
    fn explained(&self, quiet: &Quiet, seconds: usize) -> u64 {
        let probes = self.probes_per_minute.iter();
        let own = probes.filter(|(port, _)| quiet.ports.contains(port));
        let per_minute =
            quiet.checks_per_minute + own.map(|(_, count)| count.max(0.0)).sum::<f64>();
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_precision_loss,
            clippy::cast_sign_loss,
            reason = "a few thousand at most, and a cast of a float saturates"
        )]
        let explained = (per_minute * seconds as f64 / 60.0).ceil() as u64;
        explained
    }
}

fn counts_for(port: u16, quiet: &Quiet) -> bool {
    port == UNKNOWN_PORT || MESH_PORTS.contains(&port) || quiet.ports.contains(&port)
}

fn whole_seconds(duration: Duration) -> usize {
    let seconds = duration
        .as_secs()
        .saturating_add(u64::from(duration.subsec_nanos() > 0));
    usize::try_from(seconds).map_or(TRAFFIC_WINDOW, |seconds| seconds.min(TRAFFIC_WINDOW))
}

#[cfg(test)]
mod tests {
    use super::*;

    const Q: Duration = Duration::from_secs(10);

    const fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    /// New connections on port 8080 in each second past.
    fn mk_traffic(seconds: &[u32]) -> Traffic {
        Traffic {
            watched_seconds: 60.0,
            new_connections: [(8080, seconds.to_vec())].into(),
            last_byte_seconds: [].into(),
        }
    }

    fn mk_quiet(checks_per_minute: f64) -> Quiet {
        Quiet {
            time: Q,
            ports: [8080].into(),
            checks_per_minute,
            bytes_left: s(0),
        }
    }

    static NO_PROBES: BTreeMap<u16, f64> = BTreeMap::new();

    fn at(traffic: &Traffic, age: Duration) -> Inbound<'_> {
        Inbound {
            traffic,
            age,
            probes_per_minute: &NO_PROBES,
        }
    }

    /// How long ago the last new connection seems to have come, by what is left of the quiet time.
    fn last_new(traffic: &Traffic, probes_per_minute: f64) -> Option<u64> {
        let probes = [(8080, probes_per_minute), (9090, 6_000.0)].into();
        let inbound = Inbound {
            probes_per_minute: &probes,
            ..at(traffic, s(0))
        };
        let left = inbound.new_left(&mk_quiet(0.0));
        (!left.is_zero()).then(|| Q.saturating_sub(left).as_secs())
    }

    #[test]
    fn new_connections_extend_by_the_quiet_time_since_the_last() {
        let traffic = mk_traffic(&[0, 0, 0, 5, 5]);
        assert_eq!(last_new(&traffic, 0.0), Some(3));
        let inbound = at(&traffic, s(2));
        assert_eq!(inbound.new_left(&mk_quiet(0.0)), s(5));
        let inbound = Inbound {
            age: s(7),
            ..inbound
        };
        assert_eq!(inbound.new_left(&mk_quiet(0.0)), s(0));
    }

    #[test]
    fn nothing_new_for_the_quiet_time_is_quiet() {
        let mut seconds = vec![0; 10];
        seconds.extend([50; 20]);
        assert_eq!(last_new(&mk_traffic(&seconds), 0.0), None);
        assert_eq!(last_new(&mk_traffic(&[]), 0.0), None);
    }

    #[test]
    fn probes_are_subtracted_by_count() {
        // A readiness probe each second and a scrape: 11 connections in 10 s.
        let probed = mk_traffic(&[1, 1, 1, 2, 1, 1, 1, 1, 1, 1, 1, 1]);
        assert_eq!(last_new(&probed, 60.0), None);
        // The same count without such a probe is traffic.
        assert!(last_new(&probed, 6.0).is_some_and(|last| last <= 1));
        // One connection a second more than the probe makes.
        assert!(last_new(&mk_traffic(&[2; 12]), 60.0).is_some_and(|last| last <= 1));
        // Traffic that stopped 4 s ago, beside a probe that goes on.
        let stopped = mk_traffic(&[1, 1, 1, 1, 9, 9, 9, 9, 9, 9, 9, 9]);
        assert_eq!(last_new(&stopped, 60.0), Some(4));
    }

    #[test]
    fn lone_connection_may_be_a_scrape() {
        assert_eq!(last_new(&mk_traffic(&[1]), 0.0), None);
        // Of two, one is explained.
        assert_eq!(last_new(&mk_traffic(&[0, 1, 0, 0, 1]), 0.0), Some(4));
    }

    #[test]
    fn only_the_pods_own_ports_and_the_meshs_count() {
        for (port, counts) in [
            (8080, true),
            (9102, false),
            (15006, true),
            (4143, true),
            (UNKNOWN_PORT, true),
        ] {
            let traffic = Traffic {
                new_connections: [(port, vec![4])].into(),
                last_byte_seconds: [(port, 1.0)].into(),
                ..mk_traffic(&[])
            };
            assert_eq!(last_new(&traffic, 0.0).is_some(), counts, "{port}");
            let inbound = at(&traffic, s(0));
            assert_eq!(inbound.bytes_left(&mk_quiet(0.0)) > s(0), counts, "{port}");
        }
    }

    #[test]
    fn bytes_keep_it_busy_until_the_quiet_time_is_over() {
        let traffic = Traffic {
            last_byte_seconds: [(8080, 3.0), (15006, 6.0)].into(),
            ..mk_traffic(&[])
        };
        let inbound = at(&traffic, s(1));
        assert_eq!(inbound.bytes_left(&mk_quiet(0.0)), s(6));
        let inbound = Inbound {
            age: s(20),
            ..inbound
        };
        assert_eq!(inbound.bytes_left(&mk_quiet(0.0)), s(0));
    }

    #[test]
    fn health_checks_of_load_balancers_are_subtracted_too() {
        let traffic = mk_traffic(&[0, 3, 0, 0, 1]);
        assert!(!at(&traffic, s(0)).new_left(&mk_quiet(0.0)).is_zero());
        assert!(at(&traffic, s(0)).new_left(&mk_quiet(18.0)).is_zero());
    }

    #[test]
    fn last_new_connection_is_looked_for_beyond_the_quiet_time() {
        let mut seconds = vec![0; 40];
        seconds.extend([5; 3]);
        let traffic = mk_traffic(&seconds);
        assert_eq!(at(&traffic, s(2)).last_new(&mk_quiet(0.0)), Some(s(42)));
        assert_eq!(at(&mk_traffic(&[1]), s(2)).last_new(&mk_quiet(0.0)), None);
    }

    #[test]
    fn numbers_that_make_no_sense_do_no_harm() {
        let traffic = Traffic {
            new_connections: [(8080, vec![u32::MAX; 100])].into(),
            last_byte_seconds: [(8080, f64::NAN), (15006, -1.0)].into(),
            watched_seconds: f64::INFINITY,
        };
        let probes = [(8080, f64::MAX)].into();
        let inbound = Inbound {
            probes_per_minute: &probes,
            ..at(&traffic, s(0))
        };
        let quiet = Quiet {
            time: Duration::MAX,
            ..mk_quiet(0.0)
        };
        assert_eq!(
            (inbound.new_left(&quiet), inbound.bytes_left(&quiet)),
            (s(0), s(0))
        );
        let probes = [(8080, f64::NAN)].into();
        let inbound = Inbound {
            probes_per_minute: &probes,
            ..inbound
        };
        assert!(!inbound.new_left(&quiet).is_zero());
    }
}

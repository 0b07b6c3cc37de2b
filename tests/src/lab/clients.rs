//! Which clients make up a kind of traffic.

use std::net::SocketAddr;
use std::time::Duration;

use super::balancer::Layer;
use super::cell::Cell;
use super::draw::{Lags, random};
use super::load::{Asks, Client};
use super::pool::Pool;
use super::traffic::Traffic;

/// Requests per second of the client in the cluster.
const CLUSTER_RATE: f64 = 5.0;
/// Endless answers at once.
const STREAMS: usize = 3;
/// Prometheus's usual pause.
const SCRAPES: Duration = Duration::from_secs(15);
/// The slow source's requests per second.
const SLOW_RATE: f64 = 0.5;

/// Where clients find the Deployment.
#[derive(Debug)]
pub struct Doors<'a> {
    /// The load balancer's sources, group after group.
    pub sources: &'a [SocketAddr],
    /// How late each of these is.
    pub lags: &'a [Lags],
    /// The Service's address in the cluster.
    pub service: SocketAddr,
}

/// The clients of `cell`, with `rate` requests per second in all unless its traffic is slow.
pub fn clients(cell: Cell, doors: &Doors<'_>, rate: f64) -> Vec<Client> {
    let sources: Vec<_> = doors.sources.iter().copied().enumerate().collect();
    let sources = &sources[..];
    let through = |purpose: &str, sources: &[(usize, SocketAddr)], pools, asks, path| Client {
        pool: Pool::to_sources(sources.to_vec(), pools, random(cell, purpose)),
        layer: cell.balancer.layer(),
        path,
        asks,
        counts_sources: true,
    };
    let short = |rate| through("short", sources, false, Asks::PerSecond(rate), "/");
    let pooled = |rate| through("keep-alive", sources, true, Asks::PerSecond(rate), "/");
    match cell.traffic {
        Traffic::Short => vec![short(rate)],
        Traffic::KeepAlive => vec![pooled(rate)],
        Traffic::Slow => {
            let asks = Asks::PerSecond(SLOW_RATE);
            vec![through("slow", &[latest(doors)], false, asks, "/")]
        }
        Traffic::Mixed => {
            let half = (rate - CLUSTER_RATE).max(2.0) / 2.0;
            let asks = Asks::Endlessly(STREAMS);
            vec![
                short(half),
                pooled(half),
                through("stream", sources, false, asks, "/stream"),
                Client {
                    pool: Pool::new(vec![doors.service], true, random(cell, "cluster")),
                    // kube-proxy balances connections.
                    layer: Layer::Connections,
                    path: "/cluster",
                    asks: Asks::PerSecond(CLUSTER_RATE),
                    counts_sources: false,
                },
                Client {
                    pool: Pool::new(Vec::new(), false, random(cell, "scraper")),
                    layer: Layer::Connections,
                    path: "/metrics",
                    asks: Asks::EachPodEvery(SCRAPES),
                    counts_sources: false,
                },
            ]
        }
    }
}

/// The source with the longest lag: the one for which neither settle nor quiet time is generous.
fn latest(doors: &Doors<'_>) -> (usize, SocketAddr) {
    let lags = doors.lags.iter().flatten();
    let sources = doors.sources.iter().copied().enumerate().zip(lags);
    let latest = sources.max_by_key(|(_, lag)| **lag);
    latest.expect("a load balancer must have a source").0
}

#[cfg(test)]
mod tests {
    use super::super::balancer::Balancer;
    use super::super::cell::Drawn;
    use super::super::variant::Variant;
    use super::*;

    fn mk_clients(traffic: Traffic) -> Vec<Client> {
        let cell = Cell {
            balancer: Balancer::Alb,
            variant: Variant::Gate,
            traffic,
            seed: 1,
            drawn: Drawn::Within,
        };
        let sources: Vec<_> = (1..=3).map(|port| ([127, 0, 0, 1], port).into()).collect();
        let doors = Doors {
            sources: &sources,
            lags: &[[5, 19, 7].map(Duration::from_secs)],
            service: ([198, 19, 0, 5], 80).into(),
        };
        clients(cell, &doors, 45.0)
    }

    fn rate(clients: &[Client]) -> f64 {
        let rates = clients.iter().map(|client| match client.asks {
            Asks::PerSecond(rate) => rate,
            Asks::Endlessly(_) | Asks::EachPodEvery(_) => 0.0,
        });
        rates.sum()
    }

    #[test]
    fn rate_is_that_of_all_clients_together() {
        for traffic in [Traffic::Short, Traffic::KeepAlive, Traffic::Mixed] {
            assert!(
                (rate(&mk_clients(traffic)) - 45.0).abs() < 1e-9,
                "{traffic:?}"
            );
        }
        assert!((rate(&mk_clients(Traffic::Slow)) - 0.5).abs() < 1e-9);
    }

    #[test]
    fn slow_source_is_the_latest_one_by_its_own_number() {
        let sources = [1, 2, 3].map(|port| ([127, 0, 0, 1], port).into());
        let doors = Doors {
            sources: &sources,
            lags: &[[5, 19, 7].map(Duration::from_secs)],
            service: sources[0],
        };
        assert_eq!(latest(&doors), (1, sources[1]));
    }
}

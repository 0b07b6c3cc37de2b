//! A client that knows pods by their addresses, whatever any load balancer says.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::load::PATIENCE;
use super::pool::Pool;

/// Calls each pod there is, as Prometheus does: for as long as the pod exists.
pub async fn scrape(
    period: Duration,
    path: &'static str,
    pods: impl Fn() -> Vec<SocketAddr>,
    mut stop: watch::Receiver<bool>,
) {
    let mut ticks = tokio::time::interval(period);
    loop {
        tokio::select! {
            _ = stop.changed() => return,
            _ = ticks.tick() => {}
        }
        let mut calls = JoinSet::new();
        for address in pods() {
            let pool = Pool::new(vec![address], false, fastrand::Rng::with_seed(0));
            calls.spawn(timeout(PATIENCE, async move {
                let mut connection = pool.take().await?;
                connection.exchange(path, true).await
            }));
        }
        while calls.join_next().await.is_some() {}
    }
}

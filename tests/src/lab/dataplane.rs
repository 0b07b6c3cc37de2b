//! What brings a target group's traffic to pods: real `HAProxy` sources that obey the fake API, each late by a lag of
//! its own, by the pure [`schedule`](super::schedule).

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};

use super::balancer::Layer;
use super::draw::{Lags, SOURCES};
use super::haproxy::{Haproxy, Runtime};
use super::pods::unix_ms;
use super::schedule::{Schedule, Step};
use super::seen::Seen;
use super::slots::Slots;
use crate::aws::{Change, Kind};

/// Server slots of each source: the replicas, those that linger, and room.
const SLOTS: usize = 32;

/// One target group's data plane; it ends when this is dropped.
#[derive(Debug)]
pub struct DataPlane {
    haproxy: Haproxy,
    frontends: Vec<SocketAddr>,
    group: usize,
    lags: Lags,
    changes: UnboundedReceiver<Change>,
}

impl DataPlane {
    /// Starts it for the run's target group number `group`, whose `changes` it is to obey.
    pub async fn start(
        layer: Layer,
        group: usize,
        lags: Lags,
        changes: UnboundedReceiver<Change>,
    ) -> Result<Self> {
        let (haproxy, frontends) = Haproxy::start_anywhere(layer, SOURCES, SLOTS).await?;
        Ok(Self {
            haproxy,
            frontends,
            group,
            lags,
            changes,
        })
    }

    /// Where its sources listen.
    pub fn frontends(&self) -> &[SocketAddr] {
        &self.frontends
    }

    /// Obeys until something breaks.
    pub async fn run(mut self, tell: UnboundedSender<Seen>) -> Result<()> {
        let mut sources = Vec::new();
        for (number, lag) in self.lags.into_iter().enumerate() {
            sources.push(Source {
                number: (self.group, number),
                runtime: self.haproxy.runtime(),
                schedule: Schedule::new(lag),
                slots: Slots::new(SLOTS),
                tell: tell.clone(),
            });
        }
        loop {
            let next = sources
                .iter()
                .filter_map(|source| source.schedule.next_due());
            let next = next.min().map(tokio::time::Instant::from_std);
            // Nothing is due: wait for the control plane alone.
            let due = async {
                match next {
                    Some(at) => tokio::time::sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = due => {}
                change = self.changes.recv() => {
                    let change = change.context("failed to go on hearing of a target group's changes")?;
                    self.tell_deregistered(&change, &tell);
                    for source in &mut sources {
                        source.obey(&change).await?;
                    }
                }
                ended = self.haproxy.ended() => bail!("HAProxy ended during the run: {ended:?}"),
            }
            for source in &mut sources {
                for step in source.schedule.due(Instant::now()) {
                    source.apply(step).await?;
                }
            }
        }
    }

    fn tell_deregistered(&self, change: &Change, tell: &UnboundedSender<Seen>) {
        if let (Kind::Deregistered, Some(target)) = (&change.kind, change.target) {
            let seen = Seen::Deregistered {
                group: self.group,
                ip: target.ip(),
                at: unix_ms_of(change.at),
            };
            // Nobody listens any more once the run ends.
            let _ = tell.send(seen);
        }
    }
}

struct Source {
    /// Group, and source in it.
    number: (usize, usize),
    runtime: Runtime,
    schedule: Schedule,
    slots: Slots,
    tell: UnboundedSender<Seen>,
}

impl Source {
    async fn obey(&mut self, change: &Change) -> Result<()> {
        match (&change.kind, change.target) {
            (Kind::Registered, Some(target)) => {
                if let Some(step) = self.schedule.registered(target) {
                    self.apply(step).await?;
                }
            }
            (Kind::Deregistered, Some(target)) => self.schedule.deregistered(target, change.at),
            (Kind::GroupDeleted, _) => self.schedule.deleted(change.at),
            (Kind::Registered | Kind::Deregistered, None) => {}
        }
        Ok(())
    }

    async fn apply(&mut self, step: Step) -> Result<()> {
        let (_, source) = self.number;
        match step {
            Step::Add(target) => {
                let slot = self.slots.take(target);
                let slot = slot.context("failed to find a free slot in the load balancer")?;
                self.runtime.add(source, slot, target).await?;
            }
            Step::Remove(target) => {
                let slot = self.slots.release(target);
                let slot = slot.context("failed to find a target's slot")?;
                self.runtime.remove(source, slot).await?;
            }
        }
        let _ = self.tell.send(Seen::Source {
            source: self.number,
            step,
            at: unix_ms(),
        });
        Ok(())
    }
}

/// An instant of the past as wall-clock milliseconds.
pub fn unix_ms_of(instant: Instant) -> u64 {
    let ago = instant.elapsed().min(Duration::from_hours(24));
    unix_ms().saturating_sub(u64::try_from(ago.as_millis()).unwrap_or(u64::MAX))
}

//! The pod's inbound TCP connections while a hold is under way, as its own network namespace shows them.
//!
//! Nothing is open and nothing wakes the process while no hold is. Where the kernel can't be asked there is no report:
//! the hold goes on without, and the log says why.

use std::time::{Duration, Instant};

use self::ledger::Ledger;
use self::netlink::Closed;
use crate::contract::Traffic;
use crate::log;

mod ledger;
mod netlink;
mod snmp;

/// Between two dumps; connections that end in between are heard of. For each the kernel walks the node's whole table
/// of connections, which takes some 5 ms even where this namespace has none.
const DUMP_EVERY: Duration = Duration::from_secs(1);
/// Between two looks at what ended: the kernel's queue of 300 sockets or more then takes 3,000 a second.
const TAKE_EVERY: Duration = Duration::from_millis(100);
/// How old a dump may be for a report: the confirmer decides by it.
const FRESH: Duration = Duration::from_millis(200);
/// A dump may take a twentieth of the time between two: one of 10,000 connections takes 40 ms.
const REST: u32 = 20;
/// The same for reports, which are rarer.
const REST_OF_REPORT: u32 = 4;

/// Failed looks in a row that don't end the watch: one may fail for lack of memory.
const FAILURES: u32 = 3;

/// Why there is no report.
#[derive(Debug, thiserror::Error)]
enum Error {
    #[error("the pod has its node's network")]
    HostNetwork,
    #[error("can't look at the pod's connections")]
    Netlink(#[from] netlink::Error),
    #[error("can't count the pod's connections")]
    Snmp(#[from] snmp::Error),
}

/// Looks at the pod's connections, while there is a hold.
#[derive(Debug)]
pub(super) struct Watcher {
    host_network: bool,
    state: State,
}

#[derive(Debug)]
enum State {
    /// There is no hold.
    Off,
    Watching(Box<Watch>),
    /// There is a hold, and the kernel can't be asked.
    Blind,
}

/// One hold's look.
#[derive(Debug)]
struct Watch {
    ledger: Ledger,
    /// Looks in a row that failed.
    failures: u32,
    closed: Closed,
    /// When the latest dump was begun, and how long it took.
    dumped: (Duration, Duration),
    /// When to look next at what ended.
    take_at: Duration,
}

impl Watcher {
    pub(super) fn new(host_network: bool) -> Self {
        Self {
            host_network,
            state: State::Off,
        }
    }

    /// Begins with a hold, and ends with it.
    pub(super) fn follow(&mut self, holding: bool, now: Duration) {
        match (&self.state, holding) {
            (State::Off, true) => match self.begin(now) {
                Ok(watch) => self.state = State::Watching(Box::new(watch)),
                Err(error) => self.give_up(&error),
            },
            (State::Watching(_) | State::Blind, false) => self.state = State::Off,
            (State::Off, false) | (State::Watching(_) | State::Blind, true) => {}
        }
    }

    /// When [`Self::look`] must be called.
    pub(super) fn wake(&self) -> Option<Duration> {
        match &self.state {
            State::Watching(watch) => Some(watch.take_at.min(watch.dump_at())),
            State::Off | State::Blind => None,
        }
    }

    /// Looks at what is due.
    pub(super) fn look(&mut self, now: Duration) {
        self.watch(|watch| {
            if now >= watch.dump_at() {
                watch.dump(now)
            } else if now >= watch.take_at {
                watch.take(now)
            } else {
                Ok(())
            }
        });
    }

    /// What the confirmer is told, from a fresh dump.
    pub(super) fn report(&mut self, now: Duration) -> Option<Traffic> {
        self.watch(|watch| {
            let (at, took) = watch.dumped;
            if now >= at + FRESH.max(took * REST_OF_REPORT) {
                watch.dump(now)
            } else {
                watch.take(now)
            }
        });
        match &self.state {
            State::Watching(watch) => Some(watch.ledger.report(now)),
            State::Off | State::Blind => None,
        }
    }

    fn begin(&self, now: Duration) -> Result<Watch, Error> {
        if self.host_network {
            return Err(Error::HostNetwork);
        }
        let began = Instant::now();
        let mut ledger = Ledger::new(now);
        ledger.passive_opens(snmp::passive_opens()?, now);
        ledger.dump(netlink::listening()?, netlink::connections(), now)?;
        // After the first dump, so that no word comes of a connection which ended before it.
        let closed = Closed::subscribe()?;
        Ok(Watch {
            ledger,
            closed,
            dumped: (now, began.elapsed()),
            failures: 0,
            take_at: now + TAKE_EVERY,
        })
    }

    fn watch(&mut self, look: impl FnOnce(&mut Watch) -> Result<(), Error>) {
        let State::Watching(watch) = &mut self.state else {
            return;
        };
        match look(watch) {
            Ok(()) => watch.failures = 0,
            // What is missed meanwhile the kernel's counter tells.
            Err(_) if watch.failures < FAILURES => watch.failures += 1,
            Err(error) => self.give_up(&error),
        }
    }

    fn give_up(&mut self, error: &Error) {
        log::line(format_args!(
            "Inbound connections aren't watched in this hold error={:?}",
            log::chain(error)
        ));
        self.state = State::Blind;
    }
}

impl Watch {
    fn dump_at(&self) -> Duration {
        let (at, took) = self.dumped;
        at + DUMP_EVERY.max(took * REST)
    }

    /// The counter first and what ended before what is there: so whatever the counter counted is seen, or on its way.
    fn dump(&mut self, now: Duration) -> Result<(), Error> {
        let began = Instant::now();
        // A look that fails is made again at the next one's time.
        self.dumped.0 = now;
        let passive_opens = snmp::passive_opens()?;
        self.take(now)?;
        self.ledger
            .dump(netlink::listening()?, netlink::connections(), now)?;
        self.take(now)?;
        self.ledger.passive_opens(passive_opens, now);
        self.dumped = (now, began.elapsed());
        Ok(())
    }

    fn take(&mut self, now: Duration) -> Result<(), Error> {
        self.take_at = now + TAKE_EVERY;
        for socket in self.closed.take()? {
            self.ledger.closed(&socket, now);
        }
        Ok(())
    }
}

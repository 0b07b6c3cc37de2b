//! Which connections are new: pure, fed with what the kernel told, and with the time passed in.
//!
//! ```text
//!                        a dump (all there are now)        word of one that ended
//!                                  │                                │
//!                                  ▼                                ▼
//!   inbound? (its local port is a listening one) ─► known? (4-tuple and cookie) ─► counted in its port's second
//!                                                                                                  │
//!   PassiveOpens ── what the kernel counted beyond those ──► counted at UNKNOWN_PORT ──────────────┴─► report
//! ```
//!
//! * **A connection is known by its 4-tuple, and told from an earlier one with the same by the socket's cookie**, which
//!   the kernel never gives twice. What is left of a connection in `TIME_WAIT` is another object with a cookie of its
//!   own: it belongs to the connection that was known by this 4-tuple before it.
//! * **A socket that ended is heard of when its last user let go of it**, which may be long after it was last in a
//!   dump (the peer reset it, the app noticed later). So it is remembered until then.
//! * **What the kernel counted is compared one dump later**: an ended socket's word may be on its way still.
//! * **Memory is bounded** by [`KNOWN`] and [`PORTS`]. A namespace with more inbound connections than that is counted by
//!   `PassiveOpens` alone for the rest of the hold: nothing is missed, but no port is known, and loopback isn't told
//!   apart.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::hash::{BuildHasher as _, RandomState};
use std::net::SocketAddr;
use std::time::Duration;

use crate::contract::{TRAFFIC_WINDOW, Traffic, UNKNOWN_PORT};

/// Most connections that are remembered: as many as a hash table of 32,768 places takes, which is 1.1 MB.
const KNOWN: usize = 28_672;
/// Most ports that are told apart; connections to others count at [`UNKNOWN_PORT`].
const PORTS: usize = 64;
/// How many dumps a connection that ended is remembered after it was last heard of.
const FORGET_AFTER: u32 = 3;
/// Parts of a second in which arrivals are kept: so much younger than it is may one be reported.
const SLOTS_PER_SECOND: u32 = 4;

/// A TCP socket as the kernel shows it; v4 addresses are v4, whatever the socket's family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Socket {
    pub(super) local: SocketAddr,
    pub(super) remote: SocketAddr,
    /// The object's own number, never 0.
    pub(super) cookie: u64,
    pub(super) life: Life,
}

/// What there is of a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Life {
    /// A socket that an app has, or had until just now.
    Whole {
        /// Age of the last byte that came in.
        last_byte: Option<Duration>,
    },
    /// What the kernel keeps of one that was closed from this side first.
    TimeWait,
}

/// An inbound connection that was seen. A cookie of 0 stands for an object that wasn't.
#[derive(Debug, Default)]
struct Known {
    whole: u64,
    time_wait: u64,
    /// The dump in or after which it was last seen.
    seen: u32,
    /// Whether no word of its end is to come.
    ended: bool,
}

/// How a socket was seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sight {
    /// In the first dump: it was there before.
    Before,
    /// In a dump.
    Now,
    /// It ended.
    Ended,
}

/// All that was seen since the first dump. All times are by one monotonic clock.
#[derive(Debug)]
pub(super) struct Ledger {
    started: Duration,
    /// Ports that were listening at the latest dump, and at the one before: a connection that is new since then may
    /// have come to either.
    listening: [BTreeSet<u16>; 2],
    dumps: u32,
    hasher: RandomState,
    /// By the hash of their 4-tuples. `None` once there were too many.
    known: Option<HashMap<u64, Known>>,
    /// Connections that are known to have come since the first dump, from loopback too.
    seen: u64,
    passive: Passive,
    arrivals: BTreeMap<u16, Arrivals>,
    /// Least age of a last byte, and when it was that.
    last_bytes: BTreeMap<u16, (Duration, Duration)>,
}

/// The kernel's counter.
#[derive(Debug, Default)]
struct Passive {
    first: Option<u64>,
    /// The latest reading; it isn't compared yet.
    latest: (u64, Duration),
    /// Connections that were counted at [`UNKNOWN_PORT`].
    missed: u64,
}

/// New connections at a port, by slot of the clock; the latest last.
#[derive(Debug, Default)]
struct Arrivals(VecDeque<(u64, u32)>);

impl Ledger {
    pub(super) fn new(now: Duration) -> Self {
        Self {
            started: now,
            listening: [BTreeSet::new(), BTreeSet::new()],
            dumps: 0,
            hasher: RandomState::new(),
            known: Some(HashMap::new()),
            seen: 0,
            passive: Passive::default(),
            arrivals: BTreeMap::new(),
            last_bytes: BTreeMap::new(),
        }
    }

    /// Takes in the ports that are listened at, and all connections there are. What the first dump has isn't new.
    ///
    /// # Errors
    /// The iterator's first one; what came before it is kept, and nothing is taken for gone.
    pub(super) fn dump<E>(
        &mut self,
        listening: BTreeSet<u16>,
        connections: impl IntoIterator<Item = Result<Socket, E>>,
        now: Duration,
    ) -> Result<(), E> {
        self.listening.swap(0, 1);
        self.listening[0] = listening;
        self.dumps += 1;
        let sight = if self.dumps == 1 {
            Sight::Before
        } else {
            Sight::Now
        };
        let mut last_bytes = BTreeMap::new();
        for socket in connections {
            let socket = socket?;
            if !self.is_inbound(&socket) {
                continue;
            }
            self.see(&socket, sight, now);
            if let Life::Whole {
                last_byte: Some(age),
            } = socket.life
                && !is_own(&socket)
                && (last_bytes.len() < PORTS || last_bytes.contains_key(&socket.local.port()))
            {
                let least = last_bytes.entry(socket.local.port()).or_insert((age, now));
                least.0 = least.0.min(age);
            }
        }
        self.last_bytes = last_bytes;
        self.forget();
        Ok(())
    }

    /// Takes in a socket that ended, of any kind.
    pub(super) fn closed(&mut self, socket: &Socket, now: Duration) {
        if self.is_inbound(socket) {
            self.see(socket, Sight::Ended, now);
        }
    }

    /// Takes in the kernel's count of inbound connections, loopback's too, as it was at `now`. A dump that was begun
    /// after `now`, and all that ended until then, must be taken in already.
    pub(super) fn passive_opens(&mut self, count: u64, now: Duration) {
        let passive = &mut self.passive;
        let Some(first) = passive.first else {
            passive.first = Some(count);
            passive.latest = (count, now);
            return;
        };
        let (compared, at) = std::mem::replace(&mut passive.latest, (count, now));
        let missed = compared
            .saturating_sub(first)
            .saturating_sub(self.seen)
            .saturating_sub(passive.missed);
        if missed > 0 {
            passive.missed += missed;
            self.count(UNKNOWN_PORT, missed, at);
        }
    }

    /// What the confirmer is told.
    pub(super) fn report(&self, now: Duration) -> Traffic {
        Traffic {
            watched_seconds: now.saturating_sub(self.started).as_secs_f64(),
            new_connections: self
                .arrivals
                .iter()
                .map(|(port, arrivals)| (*port, arrivals.by_second(now)))
                .filter(|(_, counts)| !counts.is_empty())
                .collect(),
            last_byte_seconds: self
                .last_bytes
                .iter()
                .map(|(port, (age, at))| (*port, (*age + now.saturating_sub(*at)).as_secs_f64()))
                .collect(),
        }
    }

    /// By the port alone: a mesh's listener takes connections to addresses that aren't its own, and the kernel gives
    /// no outbound connection the port of a listener.
    fn is_inbound(&self, socket: &Socket) -> bool {
        let port = socket.local.port();
        socket.remote.port() != 0 && self.listening.iter().any(|ports| ports.contains(&port))
    }

    fn see(&mut self, socket: &Socket, sight: Sight, now: Duration) {
        let key = self.hasher.hash_one((socket.local, socket.remote));
        let Some(known) = &mut self.known else {
            return;
        };
        let full = known.len() >= KNOWN;
        let is_new = match known.entry(key) {
            Entry::Occupied(entry) => {
                let known = entry.into_mut();
                known.seen = self.dumps;
                known.takes(socket, sight)
            }
            Entry::Vacant(_) if full => {
                self.known = None;
                return;
            }
            Entry::Vacant(entry) => {
                let known = entry.insert(Known::default());
                known.seen = self.dumps;
                known.become_(socket, sight);
                true
            }
        };
        if is_new && sight != Sight::Before {
            self.seen += 1;
            if !is_own(socket) {
                self.count(socket.local.port(), 1, now);
            }
        }
    }

    fn count(&mut self, port: u16, new: u64, now: Duration) {
        let known = self.arrivals.len() < PORTS || self.arrivals.contains_key(&port);
        let port = if known { port } else { UNKNOWN_PORT };
        self.arrivals.entry(port).or_default().add(new, now);
    }

    /// Forgets what ended and isn't in dumps any more.
    fn forget(&mut self) {
        let dumps = self.dumps;
        if let Some(known) = &mut self.known {
            known.retain(|_, known| {
                (known.whole != 0 && !known.ended) || dumps - known.seen < FORGET_AFTER
            });
        }
    }
}

impl Known {
    /// Becomes the connection of this socket.
    fn become_(&mut self, socket: &Socket, sight: Sight) {
        (self.whole, self.time_wait) = match socket.life {
            Life::Whole { .. } => (socket.cookie, 0),
            Life::TimeWait => (0, socket.cookie),
        };
        // Of a socket that was in TIME_WAIT before we listened, no word will come.
        self.ended = sight == Sight::Ended || (sight == Sight::Before && self.whole == 0);
    }

    /// Whether the socket is that of a new connection, which this one then becomes.
    fn takes(&mut self, socket: &Socket, sight: Sight) -> bool {
        let (own, is_missing) = match socket.life {
            Life::Whole { .. } => (
                &mut self.whole,
                // In a dump, TIME_WAIT comes after the socket; word of its end may come after both.
                sight == Sight::Ended && !self.ended,
            ),
            Life::TimeWait => (&mut self.time_wait, true),
        };
        let is_same = *own == socket.cookie || (*own == 0 && is_missing);
        if is_same {
            *own = socket.cookie;
            self.ended |= sight == Sight::Ended;
        } else {
            self.become_(socket, sight);
        }
        !is_same
    }
}

impl Arrivals {
    fn add(&mut self, new: u64, at: Duration) {
        let slot = slot(at);
        let new = u32::try_from(new).unwrap_or(u32::MAX);
        // What the kernel alone counted is found later than it came.
        let place = self.0.partition_point(|(earlier, _)| *earlier < slot);
        match self.0.get_mut(place) {
            Some((same, count)) if *same == slot => *count = count.saturating_add(new),
            _ => self.0.insert(place, (slot, new)),
        }
        let window = TRAFFIC_WINDOW as u64 * u64::from(SLOTS_PER_SECOND);
        while self.0.front().is_some_and(|(old, _)| old + window < slot) {
            self.0.pop_front();
        }
    }

    /// The latest second first. Never older than it was: an arrival is as young as its slot's end.
    fn by_second(&self, now: Duration) -> Vec<u32> {
        let mut counts = Vec::new();
        for (slot, count) in self.0.iter().rev() {
            let end = Duration::from_secs(slot + 1) / SLOTS_PER_SECOND;
            let Ok(second) = usize::try_from(now.saturating_sub(end).as_secs()) else {
                break;
            };
            if second >= TRAFFIC_WINDOW {
                break;
            }
            if counts.len() <= second {
                counts.resize(second + 1, 0_u32);
            }
            counts[second] = counts[second].saturating_add(*count);
        }
        counts
    }
}

fn slot(at: Duration) -> u64 {
    (at * SLOTS_PER_SECOND).as_secs()
}

/// Whether the pod called itself: from loopback, or from the address that it called.
fn is_own(socket: &Socket) -> bool {
    let remote = socket.remote.ip();
    remote.is_loopback() || remote == socket.local.ip()
}

#[cfg(test)]
mod tests;

//! Random lives of a target, as an API tells them: late, throttled, flapping. Whatever comes, nothing is called
//! proven before a data plane has stopped that lags no longer than the settle, and every hold ends.
//!
//! What can't be seen isn't asked of it: a registration that comes and goes between two answers.

use fastrand::Rng;
use sidecar::contract::Progress;

use super::super::tests::{dropped, mk_context, mk_sender, s};
use super::*;
use crate::confirmer::endpoints::Seen;
use crate::confirmer::target_group::{GroupId, Health, Target, TargetGroup};
use crate::confirmer::track::Track;

/// Histories that are tried; each takes some milliseconds.
const HISTORIES: u64 = 500;
/// Longest hold that any of them may need, in seconds.
const LONGEST: u64 = 900;

/// What happens outside, in seconds after the endpoint was dropped.
#[derive(Debug)]
struct Life {
    /// When the controller deregisters the target.
    deregistered: u64,
    /// When it registers it again, and deregisters it for good: after a change of leader, say.
    flap: Option<(u64, u64)>,
    /// How long the API shows it draining.
    delay: u64,
    /// How long the data plane goes on.
    lag: u64,
    /// Whether the controller writes checkpoints.
    checkpoints: bool,
    /// Whether the API's answers are late by up to this.
    latency: u64,
    /// The chance of a question to be throttled, in percent.
    throttled: u64,
    /// Whether it fails its health checks before it is deregistered.
    unhealthy_first: bool,
}

impl Life {
    fn draw(rng: &mut Rng, settle: u64) -> Self {
        let deregistered = if rng.bool() {
            rng.u64(0..3)
        } else {
            rng.u64(0..120)
        };
        let checkpoints = rng.bool();
        let flap = (rng.u64(0..4) == 0).then(|| {
            let again = deregistered + rng.u64(1..15);
            // Without a checkpoint that tells of it, it lasts until somebody asks.
            let unseen = if checkpoints { 0 } else { settle };
            (again, again + unseen + rng.u64(60..120))
        });
        Self {
            deregistered,
            flap,
            delay: [0, 5, 15, 300][rng.usize(0..4)],
            lag: rng.u64(0..=settle),
            checkpoints,
            latency: rng.u64(0..3),
            throttled: [0, 0, 30, 80][rng.usize(0..4)],
            unhealthy_first: rng.u64(0..5) == 0,
        }
    }

    /// What the API says at this second.
    fn health(&self, second: u64) -> Option<Health> {
        let after = |left: u64| (second < left + self.delay).then_some(Health::Draining);
        if second < self.deregistered {
            return Some(if self.unhealthy_first {
                Health::UnhealthyDraining
            } else {
                Health::Registered
            });
        }
        match self.flap {
            Some((_, left)) if second >= left => after(left),
            Some((again, _)) if second >= again => Some(Health::Registered),
            _ => after(self.deregistered),
        }
    }

    /// The checkpoint at this second: since when it has had its value, counted from a hundred seconds before the drop.
    fn checkpoint(&self, second: u64) -> Option<Checkpoint> {
        let steps = [
            Some(self.deregistered),
            self.flap.map(|f| f.0),
            self.flap.map(|f| f.1),
        ];
        let since = steps.into_iter().flatten().filter(|at| *at <= second).max();
        self.checkpoints.then(|| Checkpoint {
            is_blank: false,
            age: since.map_or_else(|| s(second + 100), |since| s(second - since)),
            witnessed: true,
        })
    }

    /// Until when the data plane sends, as far as it could be known at `second`: what is registered again after
    /// the last answer is nobody's fault, and an unhealthy target got nothing new from the beginning.
    fn sends_until(&self, second: u64) -> u64 {
        let left = match self.flap {
            Some((again, left)) if again + self.latency + LEAD.as_secs() <= second => left,
            _ if self.unhealthy_first => 0,
            _ => self.deregistered,
        };
        left + self.lag
    }
}

/// A question under way.
struct Poll {
    asked: u64,
    answered: u64,
    /// `None` where it is throttled.
    targets: Option<Vec<Target>>,
}

/// Runs one life; gives when the hold was over, and whether by proof.
fn run(life: &Life, settle: u64, rng: &mut Rng) -> (u64, bool) {
    let begin = Instant::now() + s(10_000);
    let mut track = Track::default();
    let mut under_way: Option<Poll> = None;
    let mut back_off = 0;
    let ip = "192.0.2.7".parse().expect("the address must be valid");
    let mut bound = Bound {
        binding: "shop/binding".to_owned(),
        group: TargetGroup {
            id: GroupId::Name("tg".to_owned()),
            role: None,
        },
        family: None,
        checkpoint: None,
        is_gone: false,
        manages_rules: false,
    };
    for second in 0..LONGEST {
        let now = begin + s(second);
        if let Some(poll) = under_way.take_if(|poll| poll.answered <= second) {
            if let Some(targets) = poll.targets {
                track.answered(&targets, begin + s(poll.asked), now);
            } else {
                track.failed(Failure::Throttled, now);
                back_off = second + rng.u64(1..8);
            }
        }
        bound.checkpoint = life.checkpoint(second);
        let mut sender = mk_sender(Seen::Registered);
        sender.seen = dropped(second, true);
        let progress = Progress::new();
        let mut context = mk_context(now, &progress);
        context.served = s(second);
        context.settles = context.settles.overridden(Some(s(settle)), None);
        let standing = |dropped| track.standing([ip], None, dropped);
        let (found, ask) = of_group(&sender, &bound, Some(Family::Alb), standing, &context);
        if let State::Settled { proven, .. } = found.state {
            return (second, proven);
        }
        if under_way.is_none() && second >= back_off && ask.is_some_and(|at| at <= now) {
            let is_throttled = rng.u64(0..100) < life.throttled;
            let health = life.health(second);
            let targets = || {
                health
                    .map(|health| Target {
                        ip,
                        port: 8080,
                        health,
                    })
                    .into_iter()
                    .collect()
            };
            under_way = Some(Poll {
                asked: second,
                answered: second + rng.u64(0..=life.latency),
                targets: (!is_throttled).then(targets),
            });
        }
    }
    (LONGEST, false)
}

#[test]
fn nothing_is_proven_before_the_data_plane_has_stopped_and_every_hold_ends() {
    for settle in [0, 5, 20, 180] {
        for seed in 0..HISTORIES {
            let mut rng = Rng::with_seed(seed);
            let life = Life::draw(&mut rng, settle);
            let (over, proven) = run(&life, settle, &mut rng);
            assert!(
                over < LONGEST,
                "settle {settle}, seed {seed}: never over, {life:?}"
            );
            assert!(
                !proven || life.sends_until(over) <= over,
                "settle {settle}, seed {seed}: proven at {over} though it sends until {}, {life:?}",
                life.sends_until(over)
            );
        }
    }
}

/// Where the API can be asked, proof is the rule and not the exception.
#[test]
fn most_holds_are_proven() {
    let is_proven = |seed: &u64| {
        let mut rng = Rng::with_seed(*seed);
        let life = Life::draw(&mut rng, 20);
        run(&life, 20, &mut rng).1
    };
    let proven = (0..HISTORIES).filter(is_proven).map(|_| 1).sum::<u64>();
    assert!(proven > HISTORIES / 2, "{proven} of {HISTORIES}");
}

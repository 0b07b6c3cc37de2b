//! One registration that can bring traffic to a pod, and how far it is from being confirmed. Pure.

use std::time::Duration;

use sidecar::contract::{Evidence, Progress, ReleaseReason};

use super::budget::Waits;
use super::endpoints::{Seen, Sender};

/// Ages of evidence that another replica counted, as the waiter echoed them.
#[derive(Debug, Clone, Copy)]
pub struct Echo<'a> {
    /// The ages when the turn began.
    pub progress: &'a Progress,
    /// How long the turn has lasted.
    pub turn: Duration,
}

impl Echo<'_> {
    fn age(&self, key: &str) -> Duration {
        let at_start = self
            .progress
            .get(key)
            .and_then(|e| Duration::try_from_secs_f64(e.age_seconds).ok());
        at_start.map_or(Duration::ZERO, |age| age.saturating_add(self.turn))
    }
}

/// A registration and its state at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attachment {
    /// Its key in [`Progress`] and its name for people.
    pub key: String,
    /// How far it is.
    pub state: State,
}

/// How far an attachment is from being confirmed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// Traffic still comes.
    Registered,
    /// The evidence is there, the settle runs.
    Settling {
        /// Age of the evidence.
        age: Duration,
        /// Until the settle is over.
        left: Duration,
    },
    /// Evidence and settle are complete.
    Settled {
        /// Age of the evidence.
        age: Duration,
    },
    /// No evidence can come; only time passes.
    Unconfirmable {
        /// Until that time is over.
        left: Duration,
    },
}

impl Attachment {
    /// What a Service's EndpointSlices say, `served` into the hold.
    ///
    /// `echo` counts only where this replica didn't see the endpoint drop itself, so a re-registration that it saw
    /// resets the evidence whatever another replica said before.
    pub fn from_endpoints(
        sender: &Sender,
        seen: Seen,
        waits: &Waits,
        served: Duration,
        echo: Echo<'_>,
    ) -> Self {
        let key = format!("Service {}/{}", sender.namespace, sender.name);
        let state = match seen {
            Seen::Registered => State::Registered,
            Seen::PublishedNotReady => State::Unconfirmable {
                left: waits.settle.max(waits.fallback_wait).saturating_sub(served),
            },
            Seen::Dropped { age, witnessed } => {
                let age = if witnessed {
                    age
                } else {
                    age.max(echo.age(&key))
                };
                match waits.settle.saturating_sub(age) {
                    Duration::ZERO => State::Settled { age },
                    left => State::Settling { age, left },
                }
            }
        };
        Self { key, state }
    }

    /// Until only time is needed, where that is known; zero when nothing is awaited.
    pub fn left(&self) -> Option<Duration> {
        match self.state {
            State::Registered => None,
            State::Settling { left, .. } | State::Unconfirmable { left } => Some(left),
            State::Settled { .. } => Some(Duration::ZERO),
        }
    }

    /// A sentence for people on where it stands.
    pub fn describe(&self) -> String {
        let key = &self.key;
        match self.state {
            State::Registered => format!("{key}: endpoint still ready"),
            State::Settling { age, left } => {
                format!(
                    "{key}: endpoint dropped {:.1} s ago, settling for {:.1} s more",
                    age.as_secs_f64(),
                    left.as_secs_f64()
                )
            }
            State::Settled { age } => {
                format!("{key}: endpoint dropped {:.1} s ago", age.as_secs_f64())
            }
            State::Unconfirmable { .. } => format!(
                "{key}: publishNotReadyAddresses keeps the endpoint ready until the pod is gone, so it can't be confirmed"
            ),
        }
    }

    fn evidence(&self) -> Option<Evidence> {
        match self.state {
            State::Settling { age, .. } | State::Settled { age } => Some(Evidence {
                age_seconds: age.as_secs_f64(),
            }),
            State::Registered | State::Unconfirmable { .. } => None,
        }
    }
}

/// The ages to be echoed.
pub fn progress(attachments: &[Attachment]) -> Progress {
    attachments
        .iter()
        .filter_map(|a| Some((a.key.clone(), a.evidence()?)))
        .collect()
}

/// The reason of a release when every attachment is done.
pub fn reason(attachments: &[Attachment]) -> ReleaseReason {
    if attachments.is_empty() {
        ReleaseReason::NoAttachment
    } else if attachments
        .iter()
        .any(|a| matches!(a.state, State::Unconfirmable { .. }))
    {
        ReleaseReason::Unconfirmable
    } else {
        ReleaseReason::Settled
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    const WAITS: Waits = Waits {
        original_grace: s(30),
        max_wait: s(60),
        min_hold: s(0),
        fallback_wait: s(15),
        settle: s(5),
    };

    fn state(seen: Seen, echoed: Option<f64>) -> State {
        let sender = Sender {
            namespace: "shop".to_owned(),
            name: "web".to_owned(),
        };
        let progress = echoed
            .map(|age_seconds| ("Service shop/web".to_owned(), Evidence { age_seconds }))
            .into_iter()
            .collect();
        let echo = Echo {
            progress: &progress,
            turn: s(0),
        };
        Attachment::from_endpoints(&sender, seen, &WAITS, s(4), echo).state
    }

    const fn dropped(age: u64, witnessed: bool) -> Seen {
        Seen::Dropped {
            age: s(age),
            witnessed,
        }
    }

    #[test]
    fn dropped_endpoint_settles_and_is_then_settled() {
        assert_eq!(state(Seen::Registered, None), State::Registered);
        assert_eq!(
            state(dropped(2, true), None),
            State::Settling {
                age: s(2),
                left: s(3)
            }
        );
        assert_eq!(state(dropped(5, true), None), State::Settled { age: s(5) });
    }

    #[test]
    fn replica_that_did_not_see_the_drop_goes_on_counting_from_the_echo() {
        assert_eq!(
            state(dropped(1, false), Some(4.0)),
            State::Settling {
                age: s(4),
                left: s(1)
            }
        );
        assert_eq!(
            state(dropped(1, false), Some(9.0)),
            State::Settled { age: s(9) }
        );
        assert_eq!(
            state(dropped(3, false), Some(1.0)),
            State::Settling {
                age: s(3),
                left: s(2)
            }
        );
    }

    #[test]
    fn echo_never_overrules_what_this_replica_saw() {
        assert_eq!(
            state(dropped(1, true), Some(9.0)),
            State::Settling {
                age: s(1),
                left: s(4)
            }
        );
        assert_eq!(state(Seen::Registered, Some(9.0)), State::Registered);
    }

    #[test]
    fn echo_that_is_no_duration_is_ignored() {
        assert_eq!(
            state(dropped(1, false), Some(-3.0)),
            State::Settling {
                age: s(1),
                left: s(4)
            }
        );
        assert_eq!(
            state(dropped(1, false), Some(f64::INFINITY)),
            State::Settling {
                age: s(1),
                left: s(4)
            }
        );
    }

    #[test]
    fn echo_ages_with_the_turn() {
        let progress = [("a".to_owned(), Evidence { age_seconds: 3.0 })].into();
        assert_eq!(
            Echo {
                progress: &progress,
                turn: s(2)
            }
            .age("a"),
            s(5)
        );
        assert_eq!(
            Echo {
                progress: &progress,
                turn: s(2)
            }
            .age("b"),
            s(0)
        );
    }

    #[test]
    fn unconfirmable_waits_the_longer_of_settle_and_fallback() {
        assert_eq!(
            state(Seen::PublishedNotReady, None),
            State::Unconfirmable { left: s(11) }
        );
    }
}

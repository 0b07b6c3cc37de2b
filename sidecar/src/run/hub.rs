//! The one place that drives [`crate::step`]: hooks and answers in, messages and the release file out.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::time::{Duration, Instant};

use tokio::sync::mpsc;

use super::backoff::Backoff;
use super::confirmer::{Client, Error};
use super::socket::Event;
use super::traffic::Watcher;
use crate::contract::{
    GoFile, HOLD_PATH, HOLD_TURN, HoldParams, HoldRequest, HoldResponse, ReleaseReason, Verdict,
    WaiterMessage,
};
use crate::paths::Paths;
use crate::step::{Effect, HookId, Limits, Observation, State};
use crate::{go_file, log};

/// How long the first answers may take: the confirmer looks at the pod twice, 1 s apart.
const FIRST_TURN: Duration = Duration::from_secs(5);
/// What a turn may take beyond [`HOLD_TURN`]: a confirmer that freezes is noticed then. One that ends is noticed at
/// once, and one whose host dies after 11 s (see the client).
const TURN_MARGIN: Duration = Duration::from_secs(5);
/// Least time between the starts of two questions: a confirmer that answers at once must not be asked in a circle.
const SPACING: Duration = Duration::from_millis(250);
/// First and longest pause between failures: short, since a hold is under way.
const PAUSE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(2));

/// A question under way; it gives its client back.
type Turn = Pin<Box<dyn Future<Output = (Client, Result<HoldResponse, Error>)>>>;

/// The waiter's state and everybody it speaks to.
pub(super) struct Hub {
    state: State,
    limits: Limits,
    params: HoldParams,
    epoch: String,
    paths: Paths,
    started: Instant,
    hooks: BTreeMap<HookId, mpsc::UnboundedSender<WaiterMessage>>,
    awaiting: Vec<String>,
    asking: Asking,
    traffic: Watcher,
}

/// The conversation with the confirmer.
struct Asking {
    /// Kept for its configuration, and to start a turn with; turns that are cut short lose theirs.
    spare: Client,
    client: Option<Client>,
    turn: Option<Turn>,
    /// When the next question is due, while there is no turn.
    next: Option<Duration>,
    asked_at: Duration,
    backoff: Backoff,
}

impl Hub {
    pub(super) fn new(
        limits: Limits,
        params: HoldParams,
        epoch: String,
        paths: Paths,
        client: Client,
        started: Instant,
    ) -> Self {
        let backoff = Backoff::new(PAUSE.0, PAUSE.1);
        let asking = Asking {
            spare: client,
            client: None,
            turn: None,
            next: None,
            asked_at: Duration::ZERO,
            backoff,
        };
        let state = State::default();
        let traffic = Watcher::new(params.host_network);
        Self {
            state,
            limits,
            params,
            epoch,
            paths,
            started,
            hooks: BTreeMap::new(),
            awaiting: Vec::new(),
            asking,
            traffic,
        }
    }

    /// Runs until there is nobody left to listen to, which is never.
    pub(super) async fn run(mut self, mut incoming: mpsc::Receiver<Event>) {
        loop {
            let wake = self
                .state
                .wake(&self.limits)
                .into_iter()
                .chain(self.asking.next)
                .min();
            let wake = self.instant(wake);
            let look = self.instant(self.traffic.wake());
            tokio::select! {
                event = incoming.recv() => match event {
                    Some(event) => self.heard(event),
                    None => return,
                },
                (client, outcome) = turn(&mut self.asking.turn) => self.answered(client, outcome),
                () = sleep_until(wake) => self.step(Observation::Tick),
                () = sleep_until(look) => self.traffic.look(self.now()),
            }
            self.traffic
                .follow(matches!(self.state, State::Holding(_)), self.now());
            self.ask();
        }
    }

    fn now(&self) -> Duration {
        self.started.elapsed()
    }

    fn instant(&self, at: Option<Duration>) -> Option<tokio::time::Instant> {
        at.map(|at| tokio::time::Instant::from_std(self.started + at))
    }

    fn heard(&mut self, event: Event) {
        match event {
            Event::Hello {
                hook,
                container,
                messages,
            } => {
                // The name comes from inside the pod: quoted, and cut at Kubernetes' own limit.
                let container: String = container.chars().take(63).collect();
                log::line(format_args!(
                    "Hook says hello hook={hook} container={container:?}"
                ));
                self.hooks.insert(hook, messages);
                self.tell(
                    hook,
                    WaiterMessage::Welcome {
                        epoch: self.epoch.clone(),
                    },
                );
                if matches!(self.state, State::Idle) {
                    log::line(format_args!("Hold began"));
                }
                if let State::Released(reason) = self.state {
                    self.tell(hook, WaiterMessage::Go { reason });
                } else if self.state.is_terminating() {
                    self.tell(hook, WaiterMessage::Terminating);
                }
                self.step(Observation::HookArrived(hook));
            }
            Event::Left { hook, done } => {
                self.hooks.remove(&hook);
                log::line(format_args!("Hook left hook={hook} done={done}"));
                self.step(Observation::HookLeft(hook));
            }
        }
    }

    fn answered(&mut self, client: Client, outcome: Result<HoldResponse, Error>) {
        self.asking.turn = None;
        self.asking.client = Some(client);
        match outcome {
            Ok(answer) => {
                self.asking.backoff.succeeded();
                if answer.verdict == Verdict::Hold && answer.awaiting != self.awaiting {
                    log::line(format_args!(
                        "Awaiting {:?} seconds_left={:.0}",
                        answer.awaiting, answer.seconds_left
                    ));
                    self.awaiting.clone_from(&answer.awaiting);
                }
                self.step(Observation::Answered(answer));
                let spaced = self.asking.asked_at + SPACING;
                self.asking.next = self
                    .state
                    .ask_after()
                    .map(|pause| spaced.max(self.now() + pause));
            }
            Err(error) => {
                self.asking.next = Some(self.now() + self.asking.backoff.failed(&error));
                self.step(Observation::Failed);
            }
        }
    }

    /// Starts or ends the conversation with the confirmer, as the state wants it.
    fn ask(&mut self) {
        if !matches!(self.state, State::Holding(_)) {
            self.awaiting.clear();
        }
        if self.state.ask_after().is_none() {
            self.asking.stop();
            return;
        }
        let now = self.now();
        if self.asking.turn.is_some() || now < *self.asking.next.get_or_insert(now) {
            return;
        }
        if let Some(mut request) = self.state.request(&self.epoch, &self.params, now) {
            request.traffic = self.traffic.report(now);
            self.asking.start(request, now);
            self.step(Observation::Asked);
        }
    }

    fn step(&mut self, observation: Observation) {
        let now = self.now();
        for effect in self.state.step(observation, &self.limits, now) {
            self.carry_out(effect);
        }
    }

    fn carry_out(&mut self, effect: Effect) {
        match effect {
            Effect::Terminating => {
                log::line(format_args!("Pod is terminating"));
                self.tell_all(&WaiterMessage::Terminating);
            }
            Effect::LetGo {
                hooks,
                reason,
                held,
            } => {
                for hook in &hooks {
                    self.tell(*hook, WaiterMessage::Go { reason });
                }
                log::line(format_args!(
                    "Let go reason={reason} seconds={:.1} hooks={hooks:?}",
                    held.as_secs_f64()
                ));
            }
            Effect::Release { reason, held } => {
                self.release(reason);
                log::line(format_args!(
                    "Released reason={reason} seconds={:.1}",
                    held.as_secs_f64()
                ));
            }
            Effect::Abandon { held } => {
                log::line(format_args!(
                    "Hold abandoned, no hook is left seconds={:.1}",
                    held.as_secs_f64()
                ));
            }
        }
    }

    /// The file first: a hook that loses its connection on hearing GO must find it.
    fn release(&mut self, reason: ReleaseReason) {
        let go = GoFile {
            epoch: self.epoch.clone(),
            reason,
        };
        if let Err(error) = go_file::write(&self.paths.go(), &go) {
            log::line(format_args!(
                "Failed to write the release file error=\"{error}\""
            ));
        }
        self.tell_all(&WaiterMessage::Go { reason });
    }

    fn tell(&self, hook: HookId, message: WaiterMessage) {
        if let Some(messages) = self.hooks.get(&hook) {
            // A connection that just ended is told by its own event.
            let _ = messages.send(message);
        }
    }

    fn tell_all(&self, message: &WaiterMessage) {
        for hook in self.hooks.keys() {
            self.tell(*hook, message.clone());
        }
    }
}

impl Asking {
    fn start(&mut self, request: HoldRequest, now: Duration) {
        let mut client = self.client.take().unwrap_or_else(|| self.spare.another());
        let within = if request.terminating {
            HOLD_TURN + TURN_MARGIN
        } else {
            FIRST_TURN
        };
        self.asked_at = now;
        self.next = None;
        self.turn = Some(Box::pin(async move {
            let outcome = client.post(HOLD_PATH, &request, within).await;
            (client, outcome)
        }));
    }

    /// Also closes the connection: it costs the confirmer memory.
    fn stop(&mut self) {
        self.turn = None;
        self.client = None;
        self.next = None;
    }
}

async fn turn(turn: &mut Option<Turn>) -> (Client, Result<HoldResponse, Error>) {
    match turn {
        Some(turn) => turn.await,
        None => std::future::pending().await,
    }
}

async fn sleep_until(at: Option<tokio::time::Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

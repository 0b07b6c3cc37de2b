//! The process that owns a cluster: starts it, keeps its components alive, takes requests, and
//! removes everything at the end, however the end comes.

use std::{
    fs::{self, File},
    process::{Child, Command, ExitStatus},
    time::Duration,
};

use anyhow::{Context, Result, bail};
use rustix::process::Signal;
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    net::{UnixListener, UnixStream},
    signal::unix::{SignalKind, signal},
    time::{Instant, interval, sleep, timeout},
};

use crate::{
    cleanup::{self, Claiming},
    control::{Action, Answer, Request},
    layout::Layout,
    netns,
    process::{self, Component},
    start,
};

/// How often children are looked at.
const TICK: Duration = Duration::from_millis(50);
/// How long a command may clean up after itself once it was told to end.
const COMMAND_GRACE: Duration = Duration::from_secs(20);
/// A component that ends more often than this, unasked, ends the cluster.
const MAX_RESTARTS: u32 = 5;

/// A cluster's name, taken. Dropping it removes the cluster, also when a panic unwinds.
#[derive(Debug)]
pub struct Claim {
    layout: Layout,
    _lock: File,
}

impl Claim {
    /// Removes clusters that were left behind, then takes the name of this one.
    ///
    /// # Errors
    /// When a cluster of that name runs, or something left behind can't be removed.
    pub fn take(layout: Layout) -> Result<Self> {
        let claiming = Claiming::begin()?;
        for id in cleanup::remove_left_behind(&claiming)? {
            report(&format!(
                "removed cluster {id}, which an earlier run left behind"
            ));
        }
        if layout.run().exists() {
            bail!(
                "cluster {} runs already (`make cluster-down` ends it)",
                layout.id
            );
        }
        fs::create_dir_all(layout.run())
            .with_context(|| format!("failed to create {}", layout.run().display()))?;
        let lock = File::create(layout.lock()).context("failed to create the cluster's lock")?;
        lock.try_lock().context("failed to lock the cluster")?;
        layout.save()?;
        cleanup::prune_logs(&layout);
        Ok(Self {
            layout,
            _lock: lock,
        })
    }

    /// The names of the claimed cluster.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if let Err(error) = cleanup::remove(&self.layout) {
            report(&format!("{error:#}"));
        }
    }
}

/// How a supervised cluster ended.
#[derive(Debug)]
pub enum End {
    /// The command ended by itself.
    Command(ExitStatus),
    /// SIGINT or SIGTERM came.
    Interrupted,
}

/// Starts the cluster, runs `command` in the outside namespace, or waits for a signal when there is
/// none, and returns how it ended. The claim's drop does the cleaning.
///
/// # Errors
/// When the cluster can't be started, or a component keeps ending.
pub async fn supervise(claim: &Claim, command: Option<Command>) -> Result<End> {
    let layout = claim.layout();
    let begun = Instant::now();
    let mut signals = Signals::new()?;
    start::prepare(layout)?;
    // The clients of this process, and the command, must see the cluster.
    netns::enter(&layout.outside_netns())?;
    let mut components = Vec::new();
    tokio::select! {
        started = start::start(layout, &mut components) => started?,
        () = signals.recv() => return Ok(End::Interrupted),
    }
    report(&format!(
        "Kubernetes {} ready after {:.1} s",
        layout.version,
        begun.elapsed().as_secs_f64()
    ));
    // Its existence tells that the cluster is ready.
    let listener =
        UnixListener::bind(layout.control_socket()).context("failed to listen for requests")?;
    let command = command.map(|mut command| {
        command
            .spawn()
            .with_context(|| format!("failed to run {command:?}"))
    });
    let mut owner = Owner {
        components,
        restarts: 0,
        command: command.transpose()?,
    };
    owner.run(&listener, &mut signals).await
}

struct Owner {
    components: Vec<Component>,
    restarts: u32,
    command: Option<Child>,
}

impl Owner {
    async fn run(&mut self, listener: &UnixListener, signals: &mut Signals) -> Result<End> {
        let mut tick = interval(TICK);
        loop {
            tokio::select! {
                _ = tick.tick() => {
                    if let Some(status) = self.command_ended()? {
                        return Ok(End::Command(status));
                    }
                    self.revive()?;
                }
                connection = listener.accept() => {
                    let (stream, _) = connection.context("failed to accept a request")?;
                    // One that asks nothing must not stop everything else.
                    if let Ok(Err(error)) = timeout(Duration::from_secs(30), self.answer(stream)).await {
                        report(&format!("{error:#}"));
                    }
                }
                () = signals.recv() => {
                    self.end_command().await?;
                    return Ok(End::Interrupted);
                }
            }
        }
    }

    fn command_ended(&mut self) -> Result<Option<ExitStatus>> {
        let Some(command) = &mut self.command else {
            return Ok(None);
        };
        command.try_wait().context("failed to look at the command")
    }

    /// A command in a terminal got the Ctrl-C itself; any other must be told.
    async fn end_command(&mut self) -> Result<()> {
        let Some(pid) = self.command.as_ref().map(Child::id) else {
            return Ok(());
        };
        let deadline = Instant::now() + COMMAND_GRACE;
        process::signal(pid, Signal::TERM)?;
        while self.command_ended()?.is_none() {
            if Instant::now() > deadline {
                // What it started ends with the namespace.
                return process::signal(pid, Signal::KILL);
            }
            sleep(TICK).await;
        }
        Ok(())
    }

    /// Starts again what ended unasked, as an init system would.
    fn revive(&mut self) -> Result<()> {
        for component in &mut self.components {
            let Some(status) = component.ended()? else {
                continue;
            };
            let text = component.explain(&format!("ended unasked ({status})"));
            self.restarts += 1;
            if self.restarts > MAX_RESTARTS {
                bail!("{text}");
            }
            report(&text);
            component.restart()?;
        }
        Ok(())
    }

    async fn answer(&mut self, mut stream: UnixStream) -> Result<()> {
        let mut line = String::new();
        BufReader::new(&mut stream)
            .read_line(&mut line)
            .await
            .context("failed to read a request")?;
        let answer = match serde_json::from_str(&line)
            .context("failed to parse a request")
            .and_then(|it| self.act(it))
        {
            Ok(pid) => Answer { pid, error: None },
            Err(error) => Answer {
                pid: None,
                error: Some(format!("{error:#}")),
            },
        };
        let mut line = serde_json::to_string(&answer)?;
        line.push('\n');
        stream
            .write_all(line.as_bytes())
            .await
            .context("failed to answer a request")
    }

    fn act(&mut self, request: Request) -> Result<Option<u32>> {
        let component = self
            .components
            .iter_mut()
            .find(|it| it.name() == request.component);
        let component =
            component.with_context(|| format!("failed to find {}", request.component.as_str()))?;
        let to_running = |component: &Component, kind| {
            let pid = component
                .pid()
                .context("failed to find its process: it was ended")?;
            process::signal(pid, kind)
        };
        match request.action {
            Action::Kill => component.stop(Signal::KILL)?,
            Action::Pause => to_running(component, Signal::STOP)?,
            Action::Resume => to_running(component, Signal::CONT)?,
            Action::Start => component.restart()?,
        }
        Ok(component.pid())
    }
}

/// The signals that end a cluster.
struct Signals {
    interrupt: tokio::signal::unix::Signal,
    terminate: tokio::signal::unix::Signal,
    hangup: tokio::signal::unix::Signal,
}

impl Signals {
    fn new() -> Result<Self> {
        let listen = |kind| signal(kind).context("failed to listen for signals");
        Ok(Self {
            interrupt: listen(SignalKind::interrupt())?,
            terminate: listen(SignalKind::terminate())?,
            hangup: listen(SignalKind::hangup())?,
        })
    }

    async fn recv(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
            _ = self.hangup.recv() => {}
        }
    }
}

#[expect(clippy::print_stderr, reason = "a command-line tool talks to its user")]
fn report(text: &str) {
    eprintln!("cluster: {text}");
}

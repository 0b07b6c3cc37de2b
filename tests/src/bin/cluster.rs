//! Starts and stops a real single-node Kubernetes cluster in network namespaces of its own.
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command-line tool talks to its user"
)]

use std::{
    ffi::OsString,
    fs::{self, File},
    os::unix::process::ExitStatusExt,
    process::{Command, ExitCode, Stdio},
    time::Duration,
};

use anyhow::{Context, Result, bail};
use clap::{Parser, Subcommand};
use rustix::process::Signal;
use tests::{
    cleanup::{self, Claiming},
    cluster, images,
    layout::{DEFAULT_VERSION, Layout},
    netns, process,
    supervisor::{Claim, End, supervise},
};
use tokio::time::{Instant, sleep};

/// The pause between two looks at something that isn't there yet.
const LOOK: Duration = Duration::from_millis(50);

/// A real Kubernetes for tests.
#[derive(Debug, Parser)]
struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Start a cluster, run a command in its outside namespace, remove the cluster; exits with the command's code.
    Run {
        /// Kubernetes version, as built by `make setup`.
        #[arg(long, default_value = DEFAULT_VERSION)]
        version: String,
        /// The command and its arguments.
        #[arg(last = true, required = true)]
        command: Vec<OsString>,
    },
    /// Start a cluster and leave it running in the background.
    Up(Named),
    /// Remove a cluster that `up` started.
    Down {
        /// The cluster's name.
        #[arg(long, default_value = "dev")]
        name: String,
    },
    /// Start a cluster and keep it until SIGTERM.
    #[command(hide = true)]
    Serve(Named),
}

#[derive(Debug, clap::Args)]
struct Named {
    /// The cluster's name, in namespaces and paths.
    #[arg(long, default_value = "dev")]
    name: String,
    /// Kubernetes version, as built by `make setup`.
    #[arg(long, default_value = DEFAULT_VERSION)]
    version: String,
}

// One thread: entering a network namespace is a property of a thread, and threads inherit it from
// the one that starts them.
#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let ended = match Args::parse().verb {
        Verb::Run { version, command } => run(&version, &command).await,
        Verb::Up(named) => up(&named).await,
        Verb::Down { name } => down(&name).await,
        Verb::Serve(named) => serve(named).await,
    };
    ended.unwrap_or_else(|error| {
        eprintln!("cluster: {error:#}");
        ExitCode::FAILURE
    })
}

async fn run(version: &str, words: &[OsString]) -> Result<ExitCode> {
    let id = format!("r{}", std::process::id());
    let claim = Claim::take(Layout::new(&id, version))?;
    let layout = claim.layout();
    let (program, arguments) = words.split_first().context("failed to find the command")?;
    let mut command = Command::new(program);
    command.args(arguments).envs(environment(layout));
    // A proxy of the machine isn't reachable from in there, and must not be asked for cluster addresses.
    for name in [
        "HTTP_PROXY",
        "HTTPS_PROXY",
        "ALL_PROXY",
        "http_proxy",
        "https_proxy",
        "all_proxy",
    ] {
        command.env_remove(name);
    }
    match supervise(&claim, Some(command)).await? {
        End::Command(status) => {
            let code = status
                .code()
                .unwrap_or_else(|| 128 + status.signal().unwrap_or_default());
            Ok(ExitCode::from(u8::try_from(code).unwrap_or(u8::MAX)))
        }
        End::Interrupted => Ok(ExitCode::from(130)),
    }
}

fn environment(layout: &Layout) -> [(&'static str, OsString); 7] {
    [
        ("KUBECONFIG", layout.kubeconfig().into()),
        (cluster::ID, layout.id.clone().into()),
        ("PRESTOP_GATE_TEST_STATE", layout.state.clone().into()),
        ("PRESTOP_GATE_TEST_VERSION", layout.version.clone().into()),
        ("PRESTOP_GATE_TEST_NODE_NETNS", layout.node_netns().into()),
        (
            "PRESTOP_GATE_TEST_OUTSIDE_NETNS",
            layout.outside_netns().into(),
        ),
        (
            "PRESTOP_GATE_TEST_KUBECTL",
            layout.binaries.join("kubectl").into(),
        ),
    ]
}

async fn serve(named: Named) -> Result<ExitCode> {
    let claim = Claim::take(Layout::new(&named.name, &named.version))?;
    supervise(&claim, None).await?;
    Ok(ExitCode::SUCCESS)
}

async fn up(named: &Named) -> Result<ExitCode> {
    let layout = if cleanup::is_supervised(&named.name)? {
        let layout = Layout::load(&named.name)?;
        while !layout.control_socket().exists() && cleanup::is_supervised(&named.name)? {
            sleep(LOOK).await;
        }
        images::import_all(&layout)?;
        layout
    } else {
        start_in_background(named).await?
    };
    print_usage(&layout);
    Ok(ExitCode::SUCCESS)
}

async fn start_in_background(named: &Named) -> Result<Layout> {
    // Else the socket of a dead one would pass for the new one's.
    cleanup::remove_left_behind(&Claiming::begin()?)?;
    let layout = Layout::new(&named.name, &named.version);
    fs::create_dir_all(&layout.logs)
        .with_context(|| format!("failed to create {}", layout.logs.display()))?;
    let log = layout.log("supervisor");
    let output =
        File::create(&log).with_context(|| format!("failed to create {}", log.display()))?;
    // setsid: it must outlive this terminal.
    let mut child = Command::new("setsid")
        .arg(std::env::current_exe().context("failed to find this program")?)
        .args(["serve", "--name", &named.name, "--version", &named.version])
        .stdin(Stdio::null())
        .stdout(output.try_clone()?)
        .stderr(output)
        .spawn()
        .context("failed to start the supervising process")?;
    while !layout.control_socket().exists() {
        let ended = child
            .try_wait()
            .context("failed to look at the supervising process")?;
        if ended.is_some() {
            let text = process::last_lines(&log);
            bail!("failed to start the cluster:\n{text}");
        }
        sleep(LOOK).await;
    }
    print!("{}", fs::read_to_string(&log).unwrap_or_default());
    Ok(layout)
}

fn print_usage(layout: &Layout) {
    let kubectl = layout.binaries.join("kubectl");
    println!(
        "Cluster {} is up. Use it from its outside namespace, where pod and service addresses work too:",
        layout.id
    );
    println!(
        "  nsenter --net={} env KUBECONFIG={} {} get pods --all-namespaces",
        netns::path(&layout.outside_netns()).display(),
        layout.kubeconfig().display(),
        kubectl.display()
    );
    println!(
        "Or get a shell in there, with `kubectl` set up:\n  nsenter --net={} env KUBECONFIG={} PATH={}:$PATH bash",
        netns::path(&layout.outside_netns()).display(),
        layout.kubeconfig().display(),
        layout.binaries.display()
    );
    println!(
        "Logs are in {}. `make cluster-down` removes it.",
        layout.logs.display()
    );
}

async fn down(name: &str) -> Result<ExitCode> {
    if cleanup::is_supervised(name)? {
        let layout = Layout::load(name)?;
        for pid in supervisors(&layout)? {
            process::signal(pid, Signal::TERM)?;
        }
        let deadline = Instant::now() + Duration::from_mins(1);
        while cleanup::is_supervised(name)? {
            if Instant::now() > deadline {
                bail!("failed to end cluster {name}: its supervising process does not end");
            }
            sleep(LOOK).await;
        }
    }
    cleanup::remove_left_behind(&Claiming::begin()?)?;
    println!("Cluster {name} is gone.");
    Ok(ExitCode::SUCCESS)
}

/// The process that holds the cluster's lock, found by the open file.
fn supervisors(layout: &Layout) -> Result<Vec<u32>> {
    let lock = layout.lock();
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").context("failed to list /proc")? {
        let path = entry?.path();
        let pid = path
            .file_name()
            .and_then(|name| name.to_str())
            .and_then(|name| name.parse().ok());
        let (Some(pid), Ok(files)) = (pid, fs::read_dir(path.join("fd"))) else {
            continue;
        };
        let holds = files
            .flatten()
            .any(|file| fs::read_link(file.path()).is_ok_and(|target| target == lock));
        if holds && pid != std::process::id() {
            found.push(pid);
        }
    }
    Ok(found)
}

//! Wires everything together: the only module that knows all others.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use arc_swap::ArcSwapOption;
use axum::Router;
use certs::Lives;
use kube::Client;
use rustls::ServerConfig;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::{JoinHandle, JoinSet};
use tokio_util::sync::CancellationToken;
use tracing::info;

use crate::args::{LogFormat, Serve};
use crate::confirmer::auth::Verifier;
use crate::confirmer::events::Events;
use crate::confirmer::groups::Groups;
use crate::confirmer::hold::Holds;
use crate::confirmer::memory::Memory;
use crate::confirmer::target_group::AskTargetGroups;
use crate::confirmer::watches::{self, World};
use crate::inject::InjectConfig;
use crate::injection_config::{self, Template};
use crate::metrics::Metrics;
use crate::readiness::Readiness;
use crate::secrets::{self, Keeper, Options};
use crate::server::{Bound, Limits, tls_config};
use crate::{admin, admission, ca_bundle, confirmer};

/// Longest time to write the Events that are queued at shutdown.
const EVENTS_LIMIT: Duration = Duration::from_secs(5);

/// Runs the webhook and the confirmer until SIGTERM or SIGINT.
///
/// # Errors
/// Where an address can't be bound or no API server is configured, and where a background task ends. Whatever else
/// fails later is tried again.
pub async fn serve(args: Serve) -> anyhow::Result<()> {
    args.check()?;
    let mut terminate = signal(SignalKind::terminate()).context("failed to listen for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("failed to listen for SIGINT")?;
    let client = Client::try_default()
        .await
        .context("failed to find the API server")?;
    let webhook = Bound::bind("webhook", args.webhook_listen, Limits::WEBHOOK)?;
    let confirmer = Bound::bind("confirmer", args.confirmer_listen, Limits::CONFIRMER)?;
    let admin = Bound::bind("admin", args.admin_listen, Limits::ADMIN)?;

    let mut process = Process {
        client,
        metrics: Metrics::new(),
        readiness: Readiness::new(),
        shutdown: CancellationToken::new(),
        tasks: JoinSet::new(),
        // A pod may have lost its Service just before a hold that lasts as long as holds may.
        world: World::new(args.max_wait_cap + Duration::from_mins(5)),
    };
    let shutdown = process.shutdown.clone();
    // First of all, so that a replica that waits for something can say for what.
    let router = admin::router(process.readiness.clone(), process.metrics.clone());
    let admin = admin.spawn_plain(router, shutdown.clone());
    let config = admission::SharedConfig::from(ArcSwapOption::empty());
    let (webhook_tls, confirmer_tls) = process.keep_certificates(&args, &config);
    let webhook_router = admission::router(config, process.metrics.clone());
    let (confirmer_router, write_events) = process.confirm(&args);
    let webhook = webhook.spawn_tls(webhook_tls, webhook_router, shutdown.clone());
    let confirmer = confirmer.spawn_tls(confirmer_tls, confirmer_router, shutdown.clone());
    let mut servers = pin!(async { tokio::join!(webhook.join(), confirmer.join(), admin.join()) });

    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
        // None ends by itself: one that did has panicked, and a new process does better than half of this one.
        ended = process.tasks.join_next() => anyhow::bail!("a background task ended: {ended:?}"),
    }
    info!(delay = ?args.shutdown_delay, "Shutting down");
    // prestop-gate can't gate itself: it serves on while Services and proxies let go of it.
    let _unready = process.readiness.register("shutdown");
    tokio::select! {
        () = tokio::time::sleep(args.shutdown_delay) => {}
        _ = interrupt.recv() => {}
    }
    shutdown.cancel();
    servers.as_mut().await;
    process.tasks.shutdown().await;
    // With the servers ended nobody sends any more: what is queued is written, and the writer ends by itself.
    let _ = tokio::time::timeout(EVENTS_LIMIT, write_events).await;
    Ok(())
}

/// What the parts share.
struct Process {
    client: Client,
    metrics: Metrics,
    readiness: Readiness,
    shutdown: CancellationToken,
    tasks: JoinSet<()>,
    world: World,
}

impl Process {
    /// Keeps both Secrets, and what follows from them: the `caBundle`, and what injection writes into pods.
    fn keep_certificates(
        &mut self,
        args: &Serve,
        config: &admission::SharedConfig,
    ) -> (Arc<ServerConfig>, Arc<ServerConfig>) {
        let lives = Lives {
            authority: args.ca_life,
            leaf: args.leaf_life,
        };
        let keeper = |spec, ready| {
            let options = Options {
                lives,
                ..Options::default()
            };
            let ready = self.readiness.register(ready);
            Keeper::new(
                self.client.clone(),
                spec,
                options,
                self.metrics.clone(),
                ready,
            )
        };
        let webhook = keeper(secrets::WEBHOOK, "webhook certificate");
        let confirmer = keeper(secrets::CONFIRMER, "confirmer certificate");
        let tls = (
            tls_config(webhook.resolver()),
            tls_config(confirmer.resolver()),
        );
        let ready = self
            .readiness
            .register("caBundle of the webhook configuration");
        let (client, shutdown) = (self.client.clone(), self.shutdown.clone());
        self.tasks
            .spawn(ca_bundle::keep(client, webhook.trust(), ready, shutdown));
        self.tasks.spawn(injection_config::keep(
            self.client.clone(),
            template(args),
            confirmer.trust(),
            self.world.clone(),
            Arc::clone(config),
            self.readiness.register("injection configuration"),
        ));
        self.tasks.spawn(webhook.keep(self.shutdown.clone()));
        self.tasks.spawn(confirmer.keep(self.shutdown.clone()));
        tls
    }

    /// Starts the watches and gives the confirmer's routes, and the task that writes Events until those are dropped.
    fn confirm(&mut self, args: &Serve) -> (Router, JoinHandle<()>) {
        let verifier = Verifier::new(self.client.clone());
        let keys = Arc::clone(&verifier);
        let ready = self.readiness.register("token keys of the API server");
        self.tasks.spawn(async move { keys.keep(ready).await });
        let world = self.world.clone();
        let ready = self.readiness.register("watches");
        self.tasks
            .spawn(watches::run(self.client.clone(), world.clone(), ready));
        let (events, write_events) = Events::new(self.client.clone(), args.pod_name.clone());
        let write_events = tokio::spawn(write_events);
        let groups = Groups::new(ask_target_groups());
        let polling =
            groups
                .clone()
                .run(world.clone(), self.metrics.clone(), self.shutdown.clone());
        self.tasks.spawn(polling);
        let holds = Holds {
            client: self.client.clone(),
            world,
            events,
            metrics: self.metrics.clone(),
            groups,
            memory: Memory::default(),
            settles: args.settles(),
            node_wait: args.node_wait,
            closing: self.shutdown.clone(),
        };
        let router = confirmer::router(verifier, Arc::new(holds), args.max_wait_cap);
        (router, write_events)
    }
}

/// Who asks for target groups; nobody where AWS support isn't built in.
#[cfg_attr(
    feature = "aws",
    expect(clippy::unnecessary_wraps, reason = "without the feature it is none")
)]
fn ask_target_groups() -> Option<Arc<dyn AskTargetGroups>> {
    #[cfg(feature = "aws")]
    return Some(Arc::new(crate::aws::AwsTargetGroups::from_environment()));
    #[cfg(not(feature = "aws"))]
    None
}

/// The part of the injection's configuration that flags give.
fn template(args: &Serve) -> Template {
    Template(InjectConfig {
        waiter_image: args.waiter_image.clone(),
        confirmer: String::new(),
        server_name: String::new(),
        ca_pem: String::new(),
        default_max_wait: args.max_wait,
        // A cap below it is meant for it too.
        default_max_wait_nlb: args.max_wait_nlb.min(args.max_wait_cap),
        slow: Arc::default(),
        default_fallback_wait: args.fallback_wait,
        max_wait_cap: args.max_wait_cap,
        version: env!("CARGO_PKG_VERSION").to_owned(),
    })
}

/// Starts logging to standard output.
///
/// # Errors
/// Where the filter can't be read.
pub fn log(filter: &str, format: LogFormat) -> anyhow::Result<()> {
    let filter = tracing_subscriber::EnvFilter::try_new(filter).with_context(|| {
        format!("--log-level is {filter:?}; allowed is a level such as info, or target=level pairs")
    })?;
    let builder = tracing_subscriber::fmt().with_env_filter(filter);
    match format {
        LogFormat::Json => builder
            .json()
            .flatten_event(true)
            .with_span_list(false)
            .init(),
        LogFormat::Plain => builder.init(),
    }
    Ok(())
}

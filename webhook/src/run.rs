//! Wires everything together: the only module that knows all others.

use std::sync::Arc;

use anyhow::Context as _;
use arc_swap::ArcSwapOption;
use certs::Lives;
use kube::Client;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::info;

use crate::args::{LogFormat, Serve};
use crate::confirmer::auth::Verifier;
use crate::confirmer::events::Events;
use crate::confirmer::hold::Holds;
use crate::confirmer::watches::{self, World};
use crate::inject::InjectConfig;
use crate::injection_config::{self, Template};
use crate::metrics::Metrics;
use crate::readiness::Readiness;
use crate::secrets::{self, Keeper, Options};
use crate::server::{Bound, Limits, tls_config};
use crate::{admin, admission, ca_bundle, confirmer};

/// Runs the webhook and the confirmer until SIGTERM or SIGINT.
///
/// # Errors
/// Where an address can't be bound or no API server is configured. Whatever fails later is tried again.
pub async fn serve(args: Serve) -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate()).context("failed to listen for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("failed to listen for SIGINT")?;
    let client = Client::try_default()
        .await
        .context("failed to find the API server")?;
    let (metrics, readiness) = (Metrics::new(), Readiness::new());
    let shutdown = CancellationToken::new();
    let webhook = Bound::bind("webhook", args.webhook_listen, Limits::WEBHOOK)?;
    let confirmer = Bound::bind("confirmer", args.confirmer_listen, Limits::CONFIRMER)?;
    let admin = Bound::bind("admin", args.admin_listen, Limits::ADMIN)?;
    // First of all, so that a replica that waits for something can say for what.
    let admin = admin.spawn_plain(
        admin::router(readiness.clone(), metrics.clone()),
        shutdown.clone(),
    );

    let mut tasks = JoinSet::new();
    let lives = Lives {
        authority: args.ca_life,
        leaf: args.leaf_life,
    };
    let keeper = |spec, ready| {
        let options = Options {
            lives,
            ..Options::default()
        };
        Keeper::new(
            client.clone(),
            spec,
            options,
            metrics.clone(),
            readiness.register(ready),
        )
    };
    let webhook_keeper = keeper(secrets::WEBHOOK, "webhook certificate");
    let confirmer_keeper = keeper(secrets::CONFIRMER, "confirmer certificate");
    let webhook_tls = tls_config(webhook_keeper.resolver());
    let confirmer_tls = tls_config(confirmer_keeper.resolver());
    let ready = readiness.register("caBundle of the webhook configuration");
    tasks.spawn(ca_bundle::keep(
        client.clone(),
        webhook_keeper.trust(),
        ready,
        shutdown.clone(),
    ));
    let config = admission::SharedConfig::from(ArcSwapOption::empty());
    tasks.spawn(injection_config::keep(
        client.clone(),
        template(&args),
        confirmer_keeper.trust(),
        Arc::clone(&config),
        readiness.register("injection configuration"),
    ));
    tasks.spawn(webhook_keeper.keep(shutdown.clone()));
    tasks.spawn(confirmer_keeper.keep(shutdown.clone()));

    let verifier = Verifier::new(client.clone());
    let ready = readiness.register("token keys of the API server");
    let keys = Arc::clone(&verifier);
    tasks.spawn(async move { keys.keep(ready).await });
    let world = World::default();
    tasks.spawn(watches::run(
        client.clone(),
        world.clone(),
        readiness.register("watches"),
    ));
    let (events, write_events) = Events::new(client.clone(), args.pod_name.clone());
    tasks.spawn(write_events);
    let holds = Arc::new(Holds {
        client,
        world,
        events,
        metrics: metrics.clone(),
        settle: args.settle,
        node_wait: args.node_wait,
        closing: shutdown.clone(),
    });

    let webhook = webhook.spawn_tls(
        webhook_tls,
        admission::router(config, metrics),
        shutdown.clone(),
    );
    let confirmer = confirmer.spawn_tls(
        confirmer_tls,
        confirmer::router(verifier, holds),
        shutdown.clone(),
    );

    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    info!(delay = ?args.shutdown_delay, "Shutting down");
    // prestop-gate can't gate itself: it serves on while Services and proxies let go of it.
    let _unready = readiness.register("shutdown");
    tokio::select! {
        () = tokio::time::sleep(args.shutdown_delay) => {}
        _ = interrupt.recv() => {}
    }
    shutdown.cancel();
    tokio::join!(webhook.join(), confirmer.join(), admin.join());
    tasks.shutdown().await;
    Ok(())
}

/// The part of the injection's configuration that flags give.
fn template(args: &Serve) -> Template {
    Template(InjectConfig {
        waiter_image: args.waiter_image.clone(),
        confirmer: String::new(),
        server_name: String::new(),
        ca_pem: String::new(),
        default_max_wait: args.max_wait,
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
        LogFormat::Json => builder.json().flatten_event(true).init(),
        LogFormat::Plain => builder.init(),
    }
    Ok(())
}

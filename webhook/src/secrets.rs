//! Keeps our certificates in their Secrets, and serves them from there.
//!
//! There is no leader. Every replica decides by [`certs::plan`] on what is stored; a write names the version that it
//! decided on, so the first one wins, and the loser reads again and finds nothing left to do. What is stored is the
//! truth: a certificate is served only once it is there. A Secret that is deleted or broken is restored from what is
//! being served, so that clients need not learn to trust another authority; only with no replica running is there
//! nothing to restore from.

mod spec;
mod stored;

use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use certs::{Cause, Identity, Lives, Policy, Resolver, Verified};
use futures::StreamExt as _;
use k8s_openapi::api::core::v1::Secret;
use kube::api::PostParams;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::watch_object;
use kube::{Api, Client};
use sidecar::contract;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{Instrument as _, info, info_span, warn};

use crate::error_chain::chain;
use crate::metrics::Metrics;
use crate::readiness::BlockReady;
pub use crate::secrets::spec::{CONFIRMER, Spec, WEBHOOK};

/// How often a write that another replica forestalled is decided anew before we wait.
const ATTEMPTS: u32 = 5;

/// Longest time for one round with the API server.
const ROUND_LIMIT: Duration = Duration::from_secs(30);

/// First pause after a failed round; it doubles up to the time between checks.
const FIRST_RETRY: Duration = Duration::from_secs(1);

/// Shortest time between two writes of ours: replicas whose clocks differ by more than a leaf's life would undo each
/// other's work as fast as they see it.
const WRITE_PAUSE: Duration = Duration::from_secs(10);

/// Tells the time; tests let it jump.
pub type Clock = Arc<dyn Fn() -> SystemTime + Send + Sync>;

/// How certificates are kept.
#[derive(Clone)]
pub struct Options {
    /// How long new certificates hold.
    pub lives: Lives,
    /// Time between two looks at the clock, beside those at every change of the Secret.
    pub check_every: Duration,
    /// The wall clock.
    pub clock: Clock,
}

impl Default for Options {
    /// Five minutes between looks: against a day or more that a renewal has in hand.
    fn default() -> Self {
        Self {
            lives: Lives::default(),
            check_every: Duration::from_mins(5),
            clock: Arc::new(SystemTime::now),
        }
    }
}

impl std::fmt::Debug for Options {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Options")
            .field("lives", &self.lives)
            .field("check_every", &self.check_every)
            .finish_non_exhaustive()
    }
}

/// What clients need in order to accept our leaf.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trust {
    /// The authorities' certificates, PEM.
    pub ca_pem: String,
    /// Key identifier of the current authority, see [`contract::server_name`].
    pub key_id: String,
}

#[derive(Debug, thiserror::Error)]
enum Error {
    #[error("failed to issue a certificate")]
    Issue(#[from] certs::authority::Error),
    #[error("failed to read or write the Secret")]
    Api(#[from] kube::Error),
    #[error("failed to write the Secret: it was changed {ATTEMPTS} times meanwhile")]
    Contended,
    #[error("failed to write the Secret: the last write is less than {WRITE_PAUSE:?} ago")]
    TooSoon,
    #[error("failed to look after the Secret within {ROUND_LIMIT:?}")]
    TimedOut,
}

/// Looks after one Secret.
pub struct Keeper {
    api: Api<Secret>,
    spec: Spec,
    options: Options,
    metrics: Metrics,
    ready: Option<BlockReady>,
    resolver: Arc<Resolver>,
    trust: watch::Sender<Option<Trust>>,
    /// What is stored, as far as we know.
    found: Option<Secret>,
    /// What is being served.
    held: Option<Identity>,
    /// When we last wrote.
    written: Option<Instant>,
}

impl std::fmt::Debug for Keeper {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Keeper")
            .field("spec", &self.spec)
            .finish_non_exhaustive()
    }
}

impl Keeper {
    /// A keeper that hasn't begun; `ready` is released when there is a certificate to serve.
    pub fn new(
        client: Client,
        spec: Spec,
        options: Options,
        metrics: Metrics,
        ready: BlockReady,
    ) -> Self {
        Self {
            api: Api::namespaced(client, contract::NAMESPACE),
            spec,
            options,
            metrics,
            ready: Some(ready),
            resolver: Arc::new(Resolver::new()),
            trust: watch::Sender::new(None),
            found: None,
            held: None,
            written: None,
        }
    }

    /// Chooses the leaf at each handshake; it has one as soon as `ready` is released.
    pub fn resolver(&self) -> Arc<Resolver> {
        Arc::clone(&self.resolver)
    }

    /// What clients must be given; none until there is a certificate, changed whenever the authority changes.
    pub fn trust(&self) -> watch::Receiver<Option<Trust>> {
        self.trust.subscribe()
    }

    /// Keeps the Secret until `shutdown`. Errors are logged and tried again; meanwhile what was served stays.
    pub async fn keep(mut self, shutdown: CancellationToken) {
        let span = info_span!("secret", name = self.spec.secret);
        let run = async {
            tokio::select! {
                () = shutdown.cancelled() => {}
                () = self.run() => {}
            }
        };
        run.instrument(span).await;
    }

    async fn run(&mut self) {
        let mut events = pin!(watch_object(self.api.clone(), self.spec.secret).default_backoff());
        let mut synced = false;
        let mut due = Instant::now() + self.options.check_every;
        let mut retry = FIRST_RETRY;
        loop {
            tokio::select! {
                event = events.next() => match event {
                    Some(Ok(found)) => {
                        self.found = found;
                        synced = true;
                    }
                    Some(Err(error)) => {
                        warn!(%error, "Failed to watch the Secret");
                        continue;
                    }
                    None => return,
                },
                // Without having seen what is stored there is nothing to decide on.
                () = tokio::time::sleep_until(due), if synced => {}
            }
            let round = tokio::time::timeout(ROUND_LIMIT, self.reconcile()).await;
            let pause = match round.unwrap_or(Err(Error::TimedOut)) {
                Ok(()) => {
                    retry = FIRST_RETRY;
                    self.options.check_every
                }
                Err(error) => {
                    warn!(
                        error = chain(&error),
                        "Failed to keep the certificate, trying again"
                    );
                    let pause = retry.min(self.options.check_every);
                    retry = pause * 2;
                    pause
                }
            };
            due = Instant::now() + pause;
        }
    }

    /// Serves what is stored, and writes until there is nothing to be written.
    async fn reconcile(&mut self) -> Result<(), Error> {
        for _ in 0..ATTEMPTS {
            let policy = Policy {
                common_name: self.spec.common_name,
                lives: self.options.lives,
                names: self.spec.names,
            };
            let found = self.found.as_ref().map(stored::read);
            let now = (self.options.clock)();
            let plan = certs::plan(found.as_ref(), self.held.as_ref(), &policy, now)?;
            if let (Some(verified), Some(identity)) = (plan.serve, found) {
                self.serve(identity, &verified);
            }
            let Some((identity, cause)) = plan.write else {
                return Ok(());
            };
            self.write(&identity, &cause).await?;
        }
        Err(Error::Contended)
    }

    fn serve(&mut self, identity: Identity, verified: &Verified) {
        let secret = self.spec.secret;
        if self.held.as_ref() != Some(&identity) {
            let not_after = unix_seconds(verified.leaf.not_after);
            info!(key_id = verified.key_id, not_after, "Serving a certificate");
            self.resolver.serve(&[verified]);
            self.held = Some(identity);
            for (kind, validity) in [("ca", verified.authority), ("leaf", verified.leaf)] {
                let labels = [("secret", secret), ("kind", kind)];
                let gauge = self
                    .metrics
                    .certificate_not_after_seconds
                    .get_or_create(&labels);
                gauge.set(unix_seconds(validity.not_after));
            }
        }
        let trust = Trust {
            ca_pem: verified.trust_pem.clone(),
            key_id: verified.key_id.clone(),
        };
        self.trust.send_if_modified(|current| {
            let changed = current.as_ref() != Some(&trust);
            *current = Some(trust);
            changed
        });
        self.ready = None;
    }

    /// Stores an identity if what is stored is still what we decided on; otherwise reads what is stored now.
    async fn write(&mut self, identity: &Identity, cause: &Cause) -> Result<(), Error> {
        if self
            .written
            .is_some_and(|written| written.elapsed() < WRITE_PAUSE)
        {
            return Err(Error::TooSoon);
        }
        match cause {
            Cause::Missing if self.held.is_some() => warn!("The Secret is gone, restoring it"),
            Cause::Missing => info!("Creating the Secret"),
            Cause::Due => info!("Renewing the certificate"),
            Cause::Broken(error) => {
                warn!(
                    error = chain(error),
                    "The stored certificate can't be served, repairing it"
                );
            }
        }
        let secret = stored::with_identity(self.found.as_ref(), &self.spec, identity);
        let params = PostParams::default();
        let written = match self.found {
            None => self.api.create(&params, &secret).await,
            Some(_) => self.api.replace(self.spec.secret, &params, &secret).await,
        };
        match written {
            Ok(secret) => {
                self.metrics
                    .certificates_issued
                    .get_or_create(&[("secret", self.spec.secret)])
                    .inc();
                self.found = Some(secret);
                self.written = Some(Instant::now());
            }
            Err(kube::Error::Api(status))
                if status.is_conflict() || status.is_already_exists() || status.is_not_found() =>
            {
                info!(
                    reason = status.reason,
                    "Somebody else changed the Secret first, reading it again"
                );
                self.found = self.api.get_opt(self.spec.secret).await?;
            }
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }
}

fn unix_seconds(time: SystemTime) -> f64 {
    time.duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default()
        .as_secs_f64()
}

#[cfg(test)]
mod tests;

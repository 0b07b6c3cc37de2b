//! A stand-in for AWS that speaks its real wire protocol: target groups with a life of their own, roles,
//! throttling, faults on demand, and an account of every call.
//!
//! ```text
//! confirmer, controller, boto3 ──HTTP──► server ─► api ─┬─► elbv2 ─► target_group   what the API says
//!                                                       ├─► sts, ec2                when it is asked
//!                                                       ├─► calls                   for budgets
//!                                                       └─► changes ──► data plane, with a lag of its own
//! ```
//!
//! The API says what the control plane knows. How late a data plane follows is decided by whoever
//! [subscribes](FakeAws::subscribe) and can't be seen through the API; the fake in turn knows nothing
//! of prestop-gate. Signatures are not verified, only whose key they name and for what.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use aws_config::{BehaviorVersion, Region, SdkConfig};
use aws_credential_types::Credentials;
use aws_credential_types::provider::SharedCredentialsProvider;
use aws_smithy_async::rt::sleep::default_async_sleep;
use aws_smithy_async::time::SystemTimeSource;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::task::JoinHandle;

mod api;
mod bucket;
pub mod controller;
pub mod crds;
mod ec2;
mod elbv2;
mod failure;
mod faults;
mod health;
mod identity;
mod request;
mod server;
mod sts;
mod target_group;
mod vpc;
mod xml;

pub use api::{ANONYMOUS, Call, Outcome, Settings};
pub use bucket::Rate;
pub use faults::{Effect, Fault, Lasting};
pub use health::Health;
pub use identity::{Caller, Role};
pub use target_group::{ACCOUNT, Change, HealthCheck, Kind, TargetGroup, VPC};
pub use vpc::{Range, Vpc};

use api::Api;

/// Why the fake could not be started.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The address can't be listened on.
    #[error("failed to listen on {0}")]
    Listen(SocketAddr, #[source] io::Error),
}

/// A running fake; it ends when this is dropped, its connections with it.
#[derive(Debug)]
pub struct FakeAws {
    api: Arc<Mutex<Api>>,
    address: SocketAddr,
    server: Mutex<Option<JoinHandle<()>>>,
}

impl Drop for FakeAws {
    fn drop(&mut self) {
        if let Some(server) = self.server().take() {
            server.abort();
        }
    }
}

impl FakeAws {
    /// Starts one on `listen`; port 0 takes a free port.
    ///
    /// # Errors
    /// When the address can't be listened on.
    pub async fn start(listen: SocketAddr, settings: Settings) -> Result<Self, Error> {
        let listener = server::bind(listen)
            .await
            .map_err(|error| Error::Listen(listen, error))?;
        let address = listener
            .local_addr()
            .map_err(|error| Error::Listen(listen, error))?;
        let api = Arc::new(Mutex::new(Api::new(settings)));
        let server = tokio::spawn(server::serve(listener, Arc::clone(&api)));
        Ok(Self {
            api,
            address,
            server: Mutex::new(Some(server)),
        })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What `AWS_ENDPOINT_URL` must be.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Makes a caller's keys known.
    pub fn add_caller(&self, caller: Caller) {
        self.api().identities.add_caller(caller);
    }

    /// Makes a role known and answers with its ARN.
    pub fn add_role(&self, role: Role) -> String {
        self.api().identities.add_role(role)
    }

    /// From now on `caller`, a user or a role, may not do `action`, such as `elasticloadbalancing:DescribeTargetHealth`.
    pub fn deny(&self, caller: &str, action: &str) {
        self.api().identities.deny(caller, action);
    }

    /// From now on `caller` may do `action` again.
    pub fn allow(&self, caller: &str, action: &str) {
        self.api().identities.allow(caller, action);
    }

    /// Ends all credentials that were handed out for `role`.
    pub fn expire_credentials(&self, role: &str) {
        self.api().identities.expire(role, server::now());
    }

    /// The SDK's configuration for `caller`, who must have been added.
    pub fn sdk_config(&self, caller: &Caller) -> SdkConfig {
        let keys = Credentials::new(&caller.access_key, &caller.secret_key, None, None, "tests");
        let mut config = SdkConfig::builder();
        // Clients find these by themselves, the providers of roles' credentials don't.
        config.set_sleep_impl(default_async_sleep());
        config
            .time_source(SystemTimeSource::new())
            .behavior_version(BehaviorVersion::latest())
            .region(Region::new(self.api().settings.region.clone()))
            .endpoint_url(self.url())
            .credentials_provider(SharedCredentialsProvider::new(keys))
            .http_client(aws_smithy_http_client::Builder::new().build_http())
            .build()
    }

    /// Makes a target group and answers with its ARN.
    pub fn create_target_group(&self, group: TargetGroup) -> String {
        self.api().create(group)
    }

    /// Deletes a target group with all its targets.
    pub fn delete_target_group(&self, arn: &str) {
        self.api().delete(arn, server::now());
    }

    /// Registers a target as if by the API, uncounted.
    pub fn register(&self, arn: &str, target: SocketAddr) {
        self.api()
            .register(arn, &target.ip().to_string(), target, server::now());
    }

    /// Deregisters a target as if by the API, uncounted.
    pub fn deregister(&self, arn: &str, target: SocketAddr) {
        self.api().deregister(arn, target, server::now());
    }

    /// Lets a listed target say `health` until it is deregistered or registered anew; none ends that.
    pub fn script(&self, arn: &str, target: SocketAddr, health: Option<Health>) {
        if let Some(group) = self.api().groups.get_mut(arn) {
            group.script(target, health);
        }
    }

    /// What the API would say about a target; none when it would not list it.
    pub fn health(&self, arn: &str, target: SocketAddr) -> Option<Health> {
        self.api().groups.get(arn)?.health(target, server::now())
    }

    /// Changes how late `DeregisterTargets` shows.
    pub fn set_control_plane_lag(&self, arn: &str, lag: Duration) {
        if let Some(group) = self.api().groups.get_mut(arn) {
            group.settings.control_plane_lag = lag;
        }
    }

    /// Every change of a group's targets at the moment that the API accepts it, beginning with the
    /// targets that are registered already.
    pub fn subscribe(&self, arn: &str) -> UnboundedReceiver<Change> {
        self.api().subscribe(arn, server::now())
    }

    /// From now on others of `account` make so many `Describe*` calls a second.
    pub fn set_foreign_load(&self, account: &str, calls_per_second: f64) {
        self.api()
            .set_foreign_load(account, calls_per_second, server::now());
    }

    /// Makes calls go wrong.
    pub fn inject(&self, fault: Fault) {
        self.api().faults.inject(fault, server::now());
    }

    /// Ends all injected faults, but not what they did to calls that are under way.
    pub fn clear_faults(&self) {
        self.api().faults.clear();
    }

    /// Every call so far, oldest first.
    pub fn calls(&self) -> Vec<Call> {
        self.api().calls.clone()
    }

    /// Stops to listen and cuts all connections, as if the region were gone.
    pub async fn go_dark(&self) {
        let server = self.server().take();
        if let Some(server) = server {
            server.abort();
            // Cancelled, as it should be.
            let _ = server.await;
        }
    }

    /// Listens again where it did.
    ///
    /// # Errors
    /// When the address was taken meanwhile.
    pub async fn come_back(&self) -> Result<(), Error> {
        let listen = self.address;
        let listener = server::bind(listen)
            .await
            .map_err(|error| Error::Listen(listen, error))?;
        let server = tokio::spawn(server::serve(listener, Arc::clone(&self.api)));
        if let Some(before) = self.server().replace(server) {
            before.abort();
        }
        Ok(())
    }

    fn api(&self) -> MutexGuard<'_, Api> {
        self.api.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn server(&self) -> MutexGuard<'_, Option<JoinHandle<()>>> {
        self.server.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

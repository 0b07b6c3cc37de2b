//! What all tests of this file share: one AWS, and a prestop-gate that asks it.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt};
use serde_json::json;
use sidecar::contract::{NAMESPACE, annotation};
use tests::aws::crds::{Group, binding, install};
use tests::aws::{ACCOUNT, Caller, FakeAws, Settings};
use tests::gate::{SOON, mk_app, mk_service, namespace};
use tests::layout::OUTSIDE_IP;
use tests::{gate, process};
use tokio::sync::{OnceCell, RwLock, RwLockReadGuard, RwLockWriteGuard, oneshot};
use tokio::time::{Instant, sleep};

/// How often prestop-gate looks for kinds that weren't there.
const LOOK_EVERY: Duration = Duration::from_secs(30);

static WORLD: OnceCell<World> = OnceCell::const_new();
static BINDINGS_KNOWN: OnceCell<()> = OnceCell::const_new();

/// Held for writing by tests that disturb prestop-gate, for reading by all others.
static PEACE: RwLock<()> = RwLock::const_new(());

/// An AWS in which prestop-gate has keys.
pub(crate) struct World {
    pub(crate) fake: FakeAws,
    /// When the kinds of bindings were there.
    installed: Instant,
}

/// The world, made by the first test that asks.
pub(crate) async fn world() -> &'static World {
    // Boxed: every test's future would be as large.
    WORLD.get_or_try_init(|| Box::pin(make())).await.unwrap()
}

/// While this is held, nobody disturbs prestop-gate.
pub(crate) async fn peace() -> RwLockReadGuard<'static, ()> {
    PEACE.read().await
}

/// While this is held, no other test runs.
pub(crate) async fn solitude() -> RwLockWriteGuard<'static, ()> {
    PEACE.write().await
}

async fn make() -> Result<World> {
    let cluster = gate::cluster().await?;
    let fake = start_fake().await?;
    let caller = Caller::new("prestop-gate", ACCOUNT);
    fake.add_caller(caller.clone());
    let client = cluster.client().await?;
    let variables = [
        ("AWS_ENDPOINT_URL", fake.url()),
        ("AWS_REGION", Settings::default().region),
        ("AWS_ACCESS_KEY_ID", caller.access_key),
        ("AWS_SECRET_ACCESS_KEY", caller.secret_key),
        ("AWS_EC2_METADATA_DISABLED", "true".to_owned()),
    ];
    set_environment(&client, &variables).await?;
    let mut kubectl = cluster.kubectl();
    kubectl.args(["--namespace", NAMESPACE, "rollout", "status", "--timeout"]);
    process::output(kubectl.args(["120s", "deployment", NAMESPACE]))?;
    // Not before: they have to be found by a prestop-gate that runs.
    install(&client, &Group::ALL).await?;
    Ok(World {
        fake,
        installed: Instant::now(),
    })
}

/// Tests have a runtime each, and the fake has to outlive all of them.
async fn start_fake() -> Result<FakeAws> {
    let (sender, started) = oneshot::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        let runtime = runtime.expect("a thread must get a runtime");
        runtime.block_on(async {
            let listen = SocketAddr::from((OUTSIDE_IP, 0));
            let fake = FakeAws::start(listen, Settings::default()).await;
            drop(sender.send(fake));
            std::future::pending::<()>().await;
        });
    });
    Ok(started.await.context("failed to start the fake AWS")??)
}

async fn set_environment(client: &Client, variables: &[(&str, String)]) -> Result<()> {
    let variables: Vec<_> = variables
        .iter()
        .map(|(name, value)| json!({"name": name, "value": value}))
        .collect();
    let container = json!({"name": NAMESPACE, "env": variables});
    let patch = json!({"spec": {"template": {"spec": {"containers": [container]}}}});
    let deployments = Api::<Deployment>::namespaced(client.clone(), NAMESPACE);
    let patched = deployments
        .patch(NAMESPACE, &PatchParams::default(), &Patch::Strategic(patch))
        .await;
    patched.context("failed to give prestop-gate an environment")?;
    Ok(())
}

/// Waits until every replica of prestop-gate knows of bindings, of which it had none when it began.
pub(crate) async fn wait_bindings_known() {
    BINDINGS_KNOWN
        .get_or_try_init(|| Box::pin(see_bindings_known()))
        .await
        .unwrap();
}

/// A pod behind an NLB gets a longer hold at admission; what isn't spread over the replicas by chance is so by time.
async fn see_bindings_known() -> Result<()> {
    let world = world().await;
    let namespace = namespace("aws-probe").await?;
    namespace.apply(mk_service("probe")).await?;
    let mut probe = binding(
        Group::LoadBalancerController,
        "probe",
        "probe",
        80,
        "arn:aws:elasticloadbalancing:eu-central-1:111122223333:targetgroup/probe/0",
    );
    probe.data["spec"]["targetGroupProtocol"] = "TCP".into();
    namespace.apply(serde_json::to_value(&probe)?).await?;
    let pod: Pod = serde_json::from_value(mk_app("probe"))?;
    let params = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    let deadline = Instant::now() + SOON;
    let mut in_a_row = 0;
    while in_a_row < 5 {
        let made = namespace.api::<Pod>().create(&params, &pod).await?;
        let status = made.annotations().get(annotation::STATUS);
        let is_slow = status.is_some_and(|status| status.contains(r#""maxWait":"240s""#));
        in_a_row = if is_slow { in_a_row + 1 } else { 0 };
        ensure!(
            Instant::now() < deadline,
            "failed to see bindings known: {status:?}"
        );
        sleep(Duration::from_millis(200)).await;
    }
    tokio::time::sleep_until(world.installed + LOOK_EVERY + Duration::from_secs(2)).await;
    Ok(())
}

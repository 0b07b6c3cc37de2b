//! A Service with pods, in target groups of its own.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};
use sidecar::contract::annotation;
use tests::TestNamespace;
use tests::aws::controller::{self, Controller, Options};
use tests::aws::crds::{self, Group};
use tests::aws::{ACCOUNT, Caller, FakeAws, Kind, TargetGroup};
use tests::gate::{GatedPod, SOON, mk_app, mk_service, namespace, unix_ms};
use tokio::sync::RwLockReadGuard;
use tokio::time::sleep;

use super::s;
use super::world::{peace, wait_bindings_known, world};

/// The port that the pods listen on.
const PORT: u16 = 8080;

/// A namespace of its own, and the world around it.
pub(crate) struct Scene {
    pub(crate) namespace: TestNamespace,
    pub(crate) fake: &'static FakeAws,
    _peace: Option<RwLockReadGuard<'static, ()>>,
}

impl Scene {
    /// One that nobody disturbs.
    pub(crate) async fn begin(prefix: &str) -> Self {
        let peace = peace().await;
        Self {
            _peace: Some(peace),
            ..Self::begin_alone(prefix).await
        }
    }

    /// One whose test sees to that itself.
    pub(crate) async fn begin_alone(prefix: &str) -> Self {
        let fake = &world().await.fake;
        let namespace = namespace(prefix).await.unwrap();
        Self {
            namespace,
            fake,
            _peace: None,
        }
    }

    /// Makes a target group and binds it to Service `web`; `edit` changes the binding's spec.
    pub(crate) async fn bind(
        &self,
        kind: Group,
        settings: TargetGroup,
        edit: impl FnOnce(&mut Value),
    ) -> String {
        let name = settings.name.clone();
        let arn = self.fake.create_target_group(settings);
        let mut binding = crds::binding(kind, &name, "web", 80, &arn);
        edit(&mut binding.data["spec"]);
        self.namespace
            .apply(serde_json::to_value(&binding).unwrap())
            .await
            .unwrap();
        arn
    }

    /// [`Self::bind`] of an ALB's group, by the AWS Load Balancer Controller's kind.
    pub(crate) async fn bind_alb(&self, name: &str) -> String {
        self.bind(Group::LoadBalancerController, self.alb(name), |spec| {
            spec["targetGroupProtocol"] = "HTTP".into();
        })
        .await
    }

    /// An ALB's group whose targets are healthy at once; its name is unique.
    pub(crate) fn alb(&self, name: &str) -> TargetGroup {
        at_once(TargetGroup::alb(&self.unique(name)))
    }

    /// The same of an NLB.
    pub(crate) fn nlb(&self, name: &str) -> TargetGroup {
        at_once(TargetGroup::nlb(&self.unique(name)))
    }

    /// A name for something of this scene in the AWS that all share.
    pub(crate) fn unique(&self, name: &str) -> String {
        format!("{name}-{}", self.namespace.name())
    }

    /// A stand-in controller for this namespace alone.
    pub(crate) fn control(&self) -> Controller {
        let caller = Caller::new(&self.unique("controller"), ACCOUNT);
        self.fake.add_caller(caller.clone());
        let options = Options {
            namespaces: vec![self.namespace.name().to_owned()],
            max_backoff: s(5),
            ..Options::default()
        };
        let client = self.namespace.client().clone();
        controller::start(client, self.fake.sdk_config(&caller), options)
    }

    /// Two pods behind Service `web`, of which the first is to go; both replicas of prestop-gate know all bindings.
    pub(crate) async fn pair(&self, annotations: Value) -> (GatedPod<'_>, GatedPod<'_>) {
        self.namespace.apply(mk_service("web")).await.unwrap();
        for name in ["web-0", "web-1"] {
            let pod = mk_pod(name, annotations.clone());
            self.namespace.apply(pod).await.unwrap();
        }
        wait_bindings_known().await;
        let pods = (self.find("web-0").await, self.find("web-1").await);
        for pod in [&pods.0, &pods.1] {
            pod.wait_endpoint().await.unwrap();
        }
        pods
    }

    async fn find(&self, name: &str) -> GatedPod<'_> {
        GatedPod::find(&self.namespace, name).await.unwrap()
    }

    /// Registers by hand, for tests without a controller.
    pub(crate) fn register(&self, arn: &str, pods: [&GatedPod<'_>; 2]) {
        for pod in pods {
            self.fake.register(arn, address(&pod.pod));
        }
    }

    /// Waits until the group says that the pod is healthy.
    pub(crate) async fn wait_healthy(&self, arn: &str, pod: &Pod) {
        let deadline = Instant::now() + SOON;
        let target = address(pod);
        loop {
            let health = self.fake.health(arn, target);
            if health.as_ref().is_some_and(|it| it.state == "healthy") {
                break;
            }
            assert!(Instant::now() < deadline, "{target} is {health:?}");
            sleep(Duration::from_millis(100)).await;
        }
    }

    /// Waits until somebody deregisters the pod from now on, and returns when that was, in milliseconds of the wall
    /// clock.
    pub(crate) fn deregistered(&self, arn: &str, pod: &Pod) -> impl Future<Output = u64> + use<> {
        let mut changes = self.fake.subscribe(arn);
        let target = Some(address(pod));
        async move {
            loop {
                let change = changes.recv().await.unwrap();
                if change.target == target && change.kind == Kind::Deregistered {
                    return unix_ms_of(change.at);
                }
            }
        }
    }
}

fn at_once(settings: TargetGroup) -> TargetGroup {
    TargetGroup {
        registering: Duration::ZERO,
        first_checks: Duration::ZERO,
        ..settings
    }
}

/// A pod of Service `web`.
pub(crate) fn mk_pod(name: &str, annotations: Value) -> Value {
    let mut pod = mk_app(name);
    pod["metadata"]["labels"] = json!({"app": "web"});
    pod["metadata"]["annotations"] = annotations;
    pod
}

/// Annotations that keep a test short: a settle of so many seconds, and traffic doesn't count.
pub(crate) fn mk_settle(seconds: u64) -> Value {
    json!({annotation::SETTLE: format!("{seconds}s"), annotation::QUIET: "0s", annotation::MAX_WAIT: "80s"})
}

/// What a pod is registered by.
pub(crate) fn address(pod: &Pod) -> SocketAddr {
    let status = pod.status.as_ref().unwrap();
    let ip = status.pod_ip.as_ref().unwrap().parse().unwrap();
    SocketAddr::new(ip, PORT)
}

pub(crate) fn unix_ms_of(at: Instant) -> u64 {
    unix_ms() - u64::try_from(at.elapsed().as_millis()).unwrap()
}

/// The pod's Event of its release, and the seconds of the hold by it.
pub(crate) async fn released(pod: &GatedPod<'_>) -> (String, f64) {
    let released = pod.event("Released").await;
    let told = released.map_err(|error| format!("{error}: {:?}", pod.waiter.lines()));
    let released = told.unwrap();
    let seconds = released.split(' ').nth(2).unwrap().parse().unwrap();
    (released, seconds)
}

/// Seconds from one time of the wall clock to another; negative if they come the other way round.
#[expect(clippy::cast_precision_loss, reason = "a few minutes at most")]
pub(crate) fn seconds_between(earlier_ms: u64, later_ms: u64) -> f64 {
    let seconds = |from: u64, to: u64| to.saturating_sub(from) as f64 / 1000.0;
    seconds(earlier_ms, later_ms) - seconds(later_ms, earlier_ms)
}

/// Asserts that evidence was waited for, and nothing else ended the hold. `settled` will do: beside all the other tests
/// a group's last answer may not fit into the budget in time.
pub(crate) fn assert_settled(released: &str) {
    let is_settled = released.contains(": confirmed (") || released.contains(": settled (");
    assert!(is_settled, "{released}");
}

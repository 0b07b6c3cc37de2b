//! Everything that the webhook and the waiter must agree on: keys, names, paths, arguments and wire types.
//!
//! The webhook writes these into a pod that may then run for months, so versions N and N−1 meet here: unknown
//! fields are ignored, an unknown verdict means the fallback, and nothing is ever given a second meaning.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Version of both wire protocols (socket and HTTPS); raised only when an older peer could misread us.
pub const PROTOCOL: u32 = 1;

/// Namespace, Deployment and `ServiceAccount` of prestop-gate itself.
pub const NAMESPACE: &str = "prestop-gate";
/// Service of the admission webhook.
pub const WEBHOOK_SERVICE: &str = "prestop-gate-webhook";
/// Service of the confirmer, which the waiters call.
pub const CONFIRMER_SERVICE: &str = "prestop-gate-confirmer";

/// Namespace label that opts a namespace in: [`INJECTION_ENABLED`] or [`INJECTION_ALL`].
pub const LABEL_INJECTION: &str = "prestop-gate.dev/injection";
/// [`LABEL_INJECTION`]: pods that carry [`annotation::INJECT`].
pub const INJECTION_ENABLED: &str = "enabled";
/// [`LABEL_INJECTION`]: every pod that doesn't opt out.
pub const INJECTION_ALL: &str = "all";
/// Label on gated pods, so that watches can select them; its value is `"true"`.
pub const LABEL_INJECTED: &str = "prestop-gate.dev/injected";

/// Pod annotations.
pub mod annotation {
    /// What all our keys begin with.
    pub const PREFIX: &str = "prestop-gate.dev/";
    /// `"true"` or `"false"`.
    pub const INJECT: &str = "prestop-gate.dev/inject";
    /// Longest hold, a duration.
    pub const MAX_WAIT: &str = "prestop-gate.dev/max-wait";
    /// Hold when nothing can be confirmed, a duration.
    pub const FALLBACK_WAIT: &str = "prestop-gate.dev/fallback-wait";
    /// Time after the evidence, a duration.
    pub const SETTLE: &str = "prestop-gate.dev/settle";
    /// Time after the last new connection, a duration.
    pub const QUIET: &str = "prestop-gate.dev/quiet";
    /// Comma list of the containers to gate.
    pub const CONTAINERS: &str = "prestop-gate.dev/containers";
    /// Existing preStop `after` (default) or `before` the wait.
    pub const ORIGINAL: &str = "prestop-gate.dev/original";
    /// Written back: what was injected or why not, as JSON.
    pub const STATUS: &str = "prestop-gate.dev/status";
}

/// Name of the injected container.
pub const CONTAINER: &str = "prestop-gate-waiter";
/// Name of the injected emptyDir volume.
pub const VOLUME: &str = "prestop-gate";
/// Name of the injected projected volume with the waiter's own token.
pub const TOKEN_VOLUME: &str = "prestop-gate-token";
/// Where the emptyDir is mounted: read-write in the waiter, read-only in the mains.
pub const MOUNT_PATH: &str = "/prestop-gate";
/// The waiter's binary, as the mains' hooks run it.
pub const BINARY_PATH: &str = "/prestop-gate/bin/waiter";
/// Unix socket between hook and waiter.
pub const SOCKET_PATH: &str = "/prestop-gate/sock";
/// The release file, a [`GoFile`].
pub const GO_PATH: &str = "/prestop-gate/go";
/// The waiter's binary inside its own image.
pub const IMAGE_BINARY_PATH: &str = "/waiter";
/// Where the token volume is mounted: over the API token's own place, so that none of those leaks in.
pub const TOKEN_MOUNT_PATH: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
/// The waiter's token, with audience [`TOKEN_AUDIENCE`].
pub const TOKEN_PATH: &str = "/var/run/secrets/kubernetes.io/serviceaccount/token";
/// Audience of the waiter's projected token.
pub const TOKEN_AUDIENCE: &str = "prestop-gate.dev";
/// Life of the waiter's token in seconds: the kubelet refreshes at 80 %, so ≥ 4.8 h are always left.
pub const TOKEN_EXPIRATION_SECONDS: u32 = 86_400;
/// Environment variable: comma list of `host:port` of the confirmer, `ClusterIP` first, then the DNS name.
pub const ENV_CONFIRMER: &str = "PRESTOP_GATE_CONFIRMER";
/// Environment variable: the confirmer's CA certificates, PEM.
pub const ENV_CA: &str = "PRESTOP_GATE_CA";

/// Path of the hello: `POST`, [`HelloRequest`] → [`HelloResponse`].
pub const HELLO_PATH: &str = "/v1/hello";
/// Path of the hold: `POST`, [`HoldRequest`] → [`HoldResponse`].
pub const HOLD_PATH: &str = "/v1/hold";
/// Path of the hold for those who can't inject: `GET` with the query `max-wait=DURATION`, answered once the pod may get
/// SIGTERM.
pub const DRAIN_DELAY_PATH: &str = "/v1/drain-delay";
/// Longest turn of a hold's long-poll.
pub const HOLD_TURN: Duration = Duration::from_secs(25);

/// What the hook's and the waiter's own monotonic caps add to max(max-wait, minimum hold).
pub const CAP_MARGIN: Duration = Duration::from_secs(5);
/// What the grace period grows by beyond max(max-wait, minimum hold).
pub const GRACE_MARGIN: Duration = Duration::from_secs(10);

/// TLS server name by which a waiter asks for a leaf of the CA it was given.
///
/// `key_id` is the CA's key identifier in lower-case hex (at most 63 characters: it is one DNS label).
pub fn server_name(key_id: &str) -> String {
    format!("{key_id}.{CONFIRMER_SERVICE}.{NAMESPACE}.svc")
}

/// Arguments of `waiter run`, `waiter hook` and the flags' names. Durations are decimal seconds (`60`, `1.5`).
pub mod flag {
    /// The sidecar's own process.
    pub const RUN: &str = "run";
    /// postStart of the sidecar: waits ≤ 5 s for [`RUN`] to listen, always succeeds.
    pub const READY: &str = "ready";
    /// The mains' preStop: `waiter hook --container … -- ORIGINAL…`.
    pub const HOOK: &str = "hook";
    /// `run`: terminationGracePeriodSeconds before us.
    pub const ORIGINAL_GRACE: &str = "original-grace";
    /// `run`, `hook`: longest hold.
    pub const MAX_WAIT: &str = "max-wait";
    /// `run`, `hook`: shortest hold (a pure sleep that we replaced), default 0.
    pub const MIN_HOLD: &str = "min-hold";
    /// `run`, `hook`: hold when nothing can be confirmed.
    pub const FALLBACK_WAIT: &str = "fallback-wait";
    /// `run`: time after the evidence; the confirmer's default where absent.
    pub const SETTLE: &str = "settle";
    /// `run`: time after the last new connection; the confirmer's default where absent.
    pub const QUIET: &str = "quiet";
    /// `run`: the pod has its node's network (it takes no value).
    pub const HOST_NETWORK: &str = "host-network";
    /// `run`, repeated: `PORT:PER_MINUTE`, connections that the kubelet's readiness probes make.
    pub const PROBES: &str = "probes";
    /// `run`: TLS server name of the confirmer, see [`super::server_name`].
    pub const SERVER_NAME: &str = "server-name";
    /// `hook`: name of its container.
    pub const CONTAINER: &str = "container";
    /// `hook`: longest wait while it isn't known whether the pod is terminating (half the smallest
    /// liveness or startup grace of the container); absent where the container has no such probe.
    pub const LIVENESS_CAP: &str = "liveness-cap";
    /// `hook`: run the original before the wait (it takes no value).
    pub const ORIGINAL_FIRST: &str = "original-first";
}

/// A duration as an argument: decimal seconds.
pub fn format_seconds(duration: Duration) -> String {
    if duration.subsec_nanos() == 0 {
        duration.as_secs().to_string()
    } else {
        duration.as_secs_f64().to_string()
    }
}

/// Reads what [`format_seconds`] wrote.
///
/// # Errors
/// A sentence that names the value, where it isn't a decimal number of seconds ≥ 0.
pub fn parse_seconds(text: &str) -> Result<Duration, String> {
    text.parse::<f64>()
        .ok()
        .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
        .ok_or_else(|| format!("{text:?} is not a number of seconds; allowed is a decimal number of 0 or more, such as 60 or 1.5"))
}

/// Why a hook was let go: the closed list that Events, metrics and logs share.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ReleaseReason {
    /// Every attachment was seen deregistered by proof, then settled.
    Confirmed,
    /// The endpoint was seen dropped from every slice, then settled; no load balancer could be asked.
    Settled,
    /// Nothing sends traffic to this pod.
    NoAttachment,
    /// A controller that we can't ask sends traffic to this pod; settled by time.
    UnknownController,
    /// An attachment can't be confirmed (named in an Event); settled by time.
    Unconfirmable,
    /// The longest hold was over.
    MaxWait,
    /// The container is being restarted, the pod isn't terminating.
    Restart,
    /// The node is shutting down or under pressure: the kubelet ends the pod without telling the API.
    Node,
    /// The deletion's own grace left no more time (`--now`, `--force`), or the pod object is gone.
    Forced,
    /// The confirmer couldn't be asked.
    Fallback,
}

impl ReleaseReason {
    /// Every reason, in the order of the documentation.
    pub const ALL: [Self; 10] = [
        Self::Confirmed,
        Self::Settled,
        Self::NoAttachment,
        Self::UnknownController,
        Self::Unconfirmable,
        Self::MaxWait,
        Self::Restart,
        Self::Node,
        Self::Forced,
        Self::Fallback,
    ];

    /// The reason as every output spells it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Confirmed => "confirmed",
            Self::Settled => "settled",
            Self::NoAttachment => "no-attachment",
            Self::UnknownController => "unknown-controller",
            Self::Unconfirmable => "unconfirmable",
            Self::MaxWait => "max-wait",
            Self::Restart => "restart",
            Self::Node => "node",
            Self::Forced => "forced",
            Self::Fallback => "fallback",
        }
    }
}

impl fmt::Display for ReleaseReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The release file at [`GO_PATH`]: one JSON object, written to a temporary name and renamed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GoFile {
    /// The waiter's process that wrote it; a new one draws a new epoch and removes the file.
    pub epoch: String,
    /// Why the hooks may go.
    pub reason: ReleaseReason,
}

/// What a hook says over the socket: one JSON object a line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "kebab-case")]
pub enum HookMessage {
    /// First line: this container's preStop runs and waits.
    Hello {
        /// [`PROTOCOL`].
        protocol: u32,
        /// The container's name.
        container: String,
    },
    /// Last line: the hook is about to exec the original, or to exit.
    Done,
    /// From a newer hook; ignored.
    #[serde(other)]
    Unknown,
}

/// What the waiter says to a hook: one JSON object a line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "kebab-case")]
pub enum WaiterMessage {
    /// Answer to [`HookMessage::Hello`].
    Welcome {
        /// The waiter's epoch: only a [`GoFile`] of this epoch counts.
        epoch: String,
    },
    /// The pod is known to be terminating: the liveness cap no longer applies.
    Terminating,
    /// The hook may go.
    Go {
        /// Why.
        reason: ReleaseReason,
    },
    /// From a newer waiter; ignored.
    #[serde(other)]
    Unknown,
}

/// Says to the confirmer, at start and daily, that the path works.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HelloRequest {
    /// [`PROTOCOL`].
    pub protocol: u32,
    /// The waiter's version.
    pub version: String,
}

/// Answer to [`HelloRequest`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HelloResponse {
    /// [`PROTOCOL`] of the confirmer.
    pub protocol: u32,
    /// The confirmer's version.
    pub version: String,
}

/// One turn of a hold's long-poll. Who asks is told by the token alone.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HoldRequest {
    /// [`PROTOCOL`].
    pub protocol: u32,
    /// The waiter's epoch.
    pub epoch: String,
    /// What this pod was injected with.
    pub params: HoldParams,
    /// Seconds since the first hook said hello, by the waiter's monotonic clock.
    pub elapsed_seconds: f64,
    /// Whether an earlier answer of this hold was [`Verdict::Hold`]: then a turn lasts up to [`HOLD_TURN`],
    /// otherwise the answer comes as soon as the pod is classified.
    #[serde(default)]
    pub terminating: bool,
    /// Evidence that an earlier answer told, aged by the time since, so that any replica goes on counting.
    #[serde(default)]
    pub progress: Progress,
    /// Inbound connections up to now; absent where the waiter can't look (hostNetwork, no `sock_diag`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traffic: Option<Traffic>,
}

/// How far back [`Traffic`] reaches, in seconds: longer than any quiet time that a load balancer needs.
pub const TRAFFIC_WINDOW: usize = 60;

/// Inbound TCP connections of the pod, as its own network namespace saw them since the first hook's hello.
///
/// Counted by local port, which was a listening one. Connections from loopback (a mesh proxy's to the app, an app's
/// to itself) and the waiter's own are left out.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Traffic {
    /// How long it has been looked at; what came earlier isn't known.
    pub watched_seconds: f64,
    /// Local port → new connections in each second past, the latest first, [`TRAFFIC_WINDOW`] at most; a second
    /// that is absent at the end had none. [`UNKNOWN_PORT`] counts those that nobody saw but the kernel's counter.
    #[serde(default)]
    pub new_connections: BTreeMap<u16, Vec<u32>>,
    /// Local port → seconds since the last byte came in on a connection that is still open.
    #[serde(default)]
    pub last_byte_seconds: BTreeMap<u16, f64>,
}

/// In [`Traffic`]: connections that the kernel counted (`PassiveOpens`) and nobody saw.
pub const UNKNOWN_PORT: u16 = 0;

/// A pod's waits, fixed at admission.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HoldParams {
    /// terminationGracePeriodSeconds before us.
    pub original_grace_seconds: f64,
    /// Longest hold.
    pub max_wait_seconds: f64,
    /// Shortest hold, 0 where no sleep was replaced.
    #[serde(default)]
    pub min_hold_seconds: f64,
    /// Hold when nothing can be confirmed.
    pub fallback_wait_seconds: f64,
    /// Time after the evidence; the confirmer's default where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub settle_seconds: Option<f64>,
    /// Time after the last new connection; the confirmer's default where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quiet_seconds: Option<f64>,
    /// Whether the pod has its node's network: its address is then the node's, and only its exact port is its own.
    #[serde(default)]
    pub host_network: bool,
    /// New connections that the kubelet's readiness probes make in a minute, by port.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub probes_per_minute: BTreeMap<u16, f64>,
}

/// Attachment → its evidence.
pub type Progress = BTreeMap<String, Evidence>;

/// How old a piece of evidence is.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Evidence {
    /// Seconds since a replica first saw the attachment gone.
    pub age_seconds: f64,
}

/// What a waiter does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// The pod is terminating: hold and ask again; go with [`ReleaseReason::MaxWait`] after `seconds_left`, and one second
    /// more for the answer that says so itself.
    Hold,
    /// Nothing more can be learned: hold for `seconds_left`, then go with `reason`.
    Wait,
    /// Go now with `reason`.
    Go,
    /// The pod isn't terminating: let the waiting hooks go over the socket, without a release file.
    Restart,
    /// From a newer confirmer: as if it couldn't be reached.
    #[serde(other)]
    Unknown,
}

/// Answer to [`HoldRequest`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HoldResponse {
    /// [`PROTOCOL`] of the confirmer.
    pub protocol: u32,
    /// What to do.
    pub verdict: Verdict,
    /// Why, with every verdict but [`Verdict::Hold`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<ReleaseReason>,
    /// What is still awaited, a sentence each, for people.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub awaiting: Vec<String>,
    /// Seconds until the waiter must go whatever is awaited, from the sending of this answer.
    #[serde(default)]
    pub seconds_left: f64,
    /// To be echoed, aged, in the next turn.
    #[serde(default, skip_serializing_if = "Progress::is_empty")]
    pub progress: Progress,
}

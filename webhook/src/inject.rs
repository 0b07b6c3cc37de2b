//! Decides whether and how a pod is gated: raw JSON in, a JSON Patch out. Pure: no I/O, no clock, no API calls.
//!
//! ```text
//!  raw pod ──► view (borrowed, slim) ──► options (annotations) ──► skip? ──► plan (per container) ──► edit ──► patch
//! ```
//!
//! What happens to which pod is in `skip` and `plan`, what a pod gets in `waiter` and `hooks`, how long it waits in
//! `waits`. Running it on its own output changes nothing, and a container that others add in between is gated then.

use serde_json::value::RawValue;
use sidecar::contract::NAMESPACE;

use self::options::Options;
use self::plan::{Plan, Waiter};
use self::view::{Annotations, PodView};

pub mod config;
mod edit;
mod hooks;
mod inbound;
mod options;
mod patch;
mod plan;
mod quantity;
mod skip;
mod status;
mod view;
mod waiter;
mod waits;

pub use self::config::{InjectConfig, SlowSelector, SlowSelectors};

/// Namespaces whose pods are never touched, whatever selectors say: a cluster must start without us.
const SYSTEM_NAMESPACES: [&str; 2] = [NAMESPACE, "kube-system"];
/// Bytes of all annotations together above which the API server refuses a pod.
const MAX_ANNOTATION_BYTES: usize = 256 * 1024;

/// What went wrong with a pod that can't be read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The object isn't a pod as the API server writes it.
    #[error("failed to decode the pod")]
    Decode(#[source] serde_json::Error),
}

/// A pod, as far as injection looks at it; borrows from the JSON text.
#[derive(Debug)]
pub struct Pod<'a>(PodView<'a>);

impl<'a> Pod<'a> {
    /// Reads a pod's JSON.
    ///
    /// # Errors
    /// Where a field that matters here is missing or has another type.
    pub fn parse(object: &'a RawValue) -> Result<Self, Error> {
        serde_json::from_str(object.get())
            .map(Self)
            .map_err(Error::Decode)
    }

    /// Its name, or what its name will begin with.
    pub fn name(&self) -> &str {
        let metadata = &self.0.metadata;
        metadata
            .name
            .as_deref()
            .filter(|name| !name.is_empty())
            .or(metadata.generate_name.as_deref())
            .unwrap_or_default()
    }
}

/// Why a pod is gated or not: the closed list that the status annotation and the metric share.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reason {
    /// It is gated now.
    Injected,
    /// It was gated before.
    AlreadyInjected,
    /// It says `prestop-gate.dev/inject: "false"`.
    OptedOut,
    /// It runs in a namespace that is never touched.
    SystemNamespace,
    /// An annotation's value can't be followed.
    InvalidAnnotation,
    /// It mirrors a static pod.
    MirrorPod,
    /// It runs on Windows.
    Windows,
    /// Its grace period is 0.
    NoGrace,
    /// None of its containers is to be gated, or can be.
    NoContainer,
    /// It has something of a name or at a place that we need.
    Collision,
    /// It has no room for our annotations.
    AnnotationsFull,
}

impl Reason {
    /// The reason as every output spells it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Injected => "injected",
            Self::AlreadyInjected => "already-injected",
            Self::OptedOut => "opted-out",
            Self::SystemNamespace => "system-namespace",
            Self::InvalidAnnotation => "invalid-annotation",
            Self::MirrorPod => "mirror-pod",
            Self::Windows => "windows",
            Self::NoGrace => "no-grace",
            Self::NoContainer => "no-container",
            Self::Collision => "collision",
            Self::AnnotationsFull => "annotations-full",
        }
    }
}

/// What becomes of a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// Nothing changes.
    Unchanged {
        /// Why.
        reason: Reason,
        /// A sentence each, without a prefix, free of control characters.
        warnings: Vec<String>,
    },
    /// The pod changes: it is gated, or (any other reason) its status annotation says why not.
    Patched {
        /// Why.
        reason: Reason,
        /// A JSON Patch with at least one operation.
        patch: String,
        /// As with [`Outcome::Unchanged`].
        warnings: Vec<String>,
    },
}

impl Outcome {
    fn new(reason: Reason, patch: Option<String>, warnings: Vec<String>) -> Self {
        match patch {
            Some(patch) => Self::Patched {
                reason,
                patch,
                warnings,
            },
            None => Self::Unchanged { reason, warnings },
        }
    }

    /// Why the pod is gated or not.
    pub const fn reason(&self) -> Reason {
        match self {
            Self::Unchanged { reason, .. } | Self::Patched { reason, .. } => *reason,
        }
    }
}

/// Decides on a pod that is created in `namespace` (the request's: the pod's own may be empty).
pub fn inject(pod: &Pod<'_>, namespace: &str, config: &InjectConfig) -> Outcome {
    let Pod(pod) = pod;
    let none = Annotations::default();
    let annotations = pod.metadata.annotations.as_ref().unwrap_or(&none);
    let outcome = match decide(pod, annotations, namespace, config) {
        Ok((plan, options)) => {
            let patch = edit::gate(pod, &plan, &options, config);
            let reason = if patch.is_some() {
                Reason::Injected
            } else {
                Reason::AlreadyInjected
            };
            Outcome::new(reason, patch, plan.warnings)
        }
        Err(Skip {
            reason: reason @ (Reason::OptedOut | Reason::SystemNamespace),
            warnings,
        }) => Outcome::new(reason, None, warnings),
        // A pod that is gated already stays so, and its status must go on saying it.
        Err(Skip { warnings, .. }) if plan::find_waiter(pod).is_some() => {
            Outcome::new(Reason::AlreadyInjected, None, warnings)
        }
        Err(Skip { reason, warnings }) => {
            let patch = edit::say(pod, &status::skipped(reason, &warnings, &config.version));
            Outcome::new(reason, patch, warnings)
        }
    };
    match outcome {
        Outcome::Patched { patch, .. }
            if annotations.bytes + patch.len() > MAX_ANNOTATION_BYTES =>
        {
            let warning =
                "not gated: the annotations leave no room for ours; the API server allows 256 KiB"
                    .to_owned();
            Outcome::new(Reason::AnnotationsFull, None, vec![warning])
        }
        outcome => outcome,
    }
}

/// A pod that isn't gated.
struct Skip {
    reason: Reason,
    warnings: Vec<String>,
}

impl Skip {
    fn new(reason: Reason, warning: String) -> Self {
        Self {
            reason,
            warnings: vec![warning],
        }
    }
}

fn decide<'p>(
    pod: &'p PodView<'p>,
    annotations: &'p Annotations<'p>,
    namespace: &str,
    config: &InjectConfig,
) -> Result<(Plan<'p>, Options<'p>), Skip> {
    if SYSTEM_NAMESPACES.contains(&namespace) {
        return Err(Skip {
            reason: Reason::SystemNamespace,
            warnings: Vec::new(),
        });
    }
    let opted_in = options::opted_in(annotations)
        .map_err(|warning| Skip::new(Reason::InvalidAnnotation, warning))?;
    if !opted_in {
        return Err(Skip {
            reason: Reason::OptedOut,
            warnings: Vec::new(),
        });
    }
    let found = plan::find_waiter(pod);
    if found.is_none() {
        skip::check_pod(pod, annotations)?;
    }
    let labels = pod.metadata.labels.as_ref();
    let auto = config.auto_max_wait(namespace, |key| labels?.get(key));
    let (options, remarks) = Options::read(annotations, config, auto).map_err(|warnings| Skip {
        reason: Reason::InvalidAnnotation,
        warnings,
    })?;
    let mut plan = plan::plan(pod, &options, found, remarks);
    if matches!(plan.waiter, Waiter::Missing) {
        skip::check_paths(&plan)?;
    }
    if plan.gated.is_empty() {
        plan.warnings
            .push("not gated: no container is left that could be".to_owned());
        return Err(Skip {
            reason: Reason::NoContainer,
            warnings: plan.warnings,
        });
    }
    Ok((plan, options))
}

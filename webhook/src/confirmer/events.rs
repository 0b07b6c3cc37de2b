//! Events on held pods, for `kubectl describe pod`. Written in the background: an Event never delays a release.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use sidecar::contract::ReleaseReason;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tracing::{debug, warn};

use super::auth::PodIdentity;
use super::trouble::Trouble;

/// Events that may wait to be written; a mass deletion beyond that loses Events, not releases.
const QUEUE: usize = 4096;
/// Events written at once.
const CONCURRENCY: usize = 8;
/// Longest wait for the API server to take one.
const WRITE_TIMEOUT: Duration = Duration::from_secs(5);
/// The API's limit on an Event's note, in bytes.
const NOTE_LIMIT: usize = 1024;

/// Takes Events; cloning shares the queue.
#[derive(Debug, Clone)]
pub struct Events(mpsc::Sender<(PodIdentity, Note)>);

#[derive(Debug)]
struct Note {
    warning: bool,
    reason: &'static str,
    /// Tells Events of one reason apart: the recorder counts those of one action up, and keeps the first one's text.
    action: &'static str,
    text: String,
}

impl Events {
    /// The queue, and the task that writes from it until every [`Events`] is dropped.
    pub fn new(
        client: Client,
        instance: Option<String>,
    ) -> (Self, impl Future<Output = ()> + Send) {
        let (sender, receiver) = mpsc::channel(QUEUE);
        (Self(sender), write(client, instance, receiver))
    }

    /// A hold began.
    pub fn hold_began(&self, pod: &PodIdentity, awaiting: &[String], left: Duration) {
        let text = format!(
            "Holding back SIGTERM, for {:.0} s at most; awaiting {}",
            left.as_secs_f64(),
            sentence(awaiting)
        );
        self.send(
            pod,
            Note {
                warning: false,
                reason: "HoldBegan",
                action: "Hold",
                text,
            },
        );
    }

    /// Something that sends to the pod can't be confirmed.
    pub fn unconfirmable(&self, pod: &PodIdentity, trouble: &Trouble) {
        self.send(
            pod,
            Note {
                warning: true,
                reason: "Unconfirmable",
                action: trouble.word(),
                text: trouble.text(),
            },
        );
    }

    /// A hold ended, or ends after `pause`.
    pub fn released(
        &self,
        pod: &PodIdentity,
        reason: ReleaseReason,
        held: Duration,
        pause: Duration,
        because: &[String],
    ) {
        let mut text = if pause.is_zero() {
            format!("Released after {:.1} s: {reason}", held.as_secs_f64())
        } else {
            // The kubelet may end it before: nothing keeps a forced deletion or a failing node.
            format!("Held on for {:.1} s at most: {reason}", pause.as_secs_f64())
        };
        if !because.is_empty() {
            text = format!("{text} ({})", because.join("; "));
        }
        let text = format!("{text}. {}", explain(reason));
        self.send(
            pod,
            Note {
                warning: is_warning(reason),
                reason: "Released",
                action: reason.as_str(),
                text,
            },
        );
    }

    fn send(&self, pod: &PodIdentity, note: Note) {
        if self.0.try_send((pod.clone(), note)).is_err() {
            warn!(
                namespace = pod.namespace,
                pod = pod.name,
                "Dropped an Event: the queue is full or closed"
            );
        }
    }
}

/// What a reason means and what to do about it, in one sentence.
pub fn explain(reason: ReleaseReason) -> &'static str {
    match reason {
        ReleaseReason::Confirmed => "Every load balancer was seen to let go of the pod.",
        ReleaseReason::Settled => {
            "Its endpoints were seen dropped, and the settle time has passed."
        }
        ReleaseReason::NoAttachment => "No Service sends traffic to it.",
        ReleaseReason::UnknownController => "A controller that can't be asked sends traffic to it.",
        ReleaseReason::Unconfirmable => {
            "Deregistration can't be confirmed, so only time was waited for."
        }
        ReleaseReason::MaxWait => {
            "The longest hold is over: raise prestop-gate.dev/max-wait if traffic still came."
        }
        ReleaseReason::Restart => {
            "Nobody deleted the pod: the kubelet restarts a container, or ends the pod (activeDeadlineSeconds) unknown to the API."
        }
        ReleaseReason::Node => {
            "Its node is shutting down, under pressure or not ready, and the API knows of no deletion."
        }
        ReleaseReason::Forced => {
            "The deletion left no more time (--now, --force or a short grace period)."
        }
        ReleaseReason::Fallback => "Nothing could be confirmed.",
    }
}

fn is_warning(reason: ReleaseReason) -> bool {
    match reason {
        ReleaseReason::Confirmed
        | ReleaseReason::Settled
        | ReleaseReason::NoAttachment
        | ReleaseReason::Restart => false,
        ReleaseReason::UnknownController
        | ReleaseReason::Unconfirmable
        | ReleaseReason::MaxWait
        | ReleaseReason::Node
        | ReleaseReason::Forced
        | ReleaseReason::Fallback => true,
    }
}

fn sentence(awaiting: &[String]) -> String {
    if awaiting.is_empty() {
        "nothing".to_owned()
    } else {
        awaiting.join("; ")
    }
}

fn clip(mut text: String) -> String {
    if text.len() > NOTE_LIMIT {
        let mut end = NOTE_LIMIT - '…'.len_utf8();
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        text.truncate(end);
        text.push('…');
    }
    text
}

async fn write(
    client: Client,
    instance: Option<String>,
    mut queue: mpsc::Receiver<(PodIdentity, Note)>,
) {
    let reporter = Reporter {
        controller: "prestop-gate".to_owned(),
        instance,
    };
    let recorder = Arc::new(Recorder::new(client, reporter));
    let notes = futures::stream::poll_fn(move |context| queue.poll_recv(context));
    notes
        .for_each_concurrent(CONCURRENCY, |(pod, note)| {
            let recorder = Arc::clone(&recorder);
            async move {
                let event = Event {
                    type_: if note.warning { EventType::Warning } else { EventType::Normal },
                    reason: note.reason.to_owned(),
                    note: Some(clip(note.text)),
                    action: note.action.to_owned(),
                    secondary: None,
                };
                let about = reference(&pod);
                match timeout(WRITE_TIMEOUT, recorder.publish(&event, &about)).await {
                    Ok(Ok(())) => {}
                    // Usual where the namespace is terminating: no Events may be created there.
                    Ok(Err(kube::Error::Api(status))) if status.is_forbidden() || status.is_not_found() => {
                        debug!(error = %status, namespace = pod.namespace, pod = pod.name, "No Event may be written");
                    }
                    Ok(Err(error)) => warn!(%error, namespace = pod.namespace, pod = pod.name, "Failed to write an Event"),
                    Err(error) => warn!(%error, namespace = pod.namespace, pod = pod.name, "Failed to write an Event"),
                }
            }
        })
        .await;
}

fn reference(pod: &PodIdentity) -> ObjectReference {
    ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("Pod".to_owned()),
        name: Some(pod.name.clone()),
        namespace: Some(pod.namespace.clone()),
        uid: Some(pod.uid.clone()),
        ..ObjectReference::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_note_is_clipped_at_a_character() {
        let clipped = clip("é".repeat(NOTE_LIMIT));
        assert!(clipped.len() <= NOTE_LIMIT && clipped.ends_with("é…"));
        assert_eq!(clip("short".to_owned()), "short");
    }
}

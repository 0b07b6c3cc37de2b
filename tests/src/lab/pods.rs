//! Watches a run's pods and reads their logs, so that what they said is known before they are gone.

use std::collections::BTreeSet;
use std::mem;
use std::net::IpAddr;
use std::pin::pin;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Result, bail};
use futures::{AsyncBufReadExt, StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::Pod;
use kube::api::LogParams;
use kube::runtime::watcher::{self, Event};
use kube::runtime::{WatchStreamExt, watcher as watch};
use kube::{Api, Client, ResourceExt};
use tokio::sync::mpsc::UnboundedSender;
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::seen::{AppEvent, Seen};
use super::workload::CONTAINER;

/// Pause before a log that broke off is asked for again.
const LOG_PAUSE: Duration = Duration::from_millis(300);
/// Tries to read one pod's log: a pod that is gone has none, and that must end.
const LOG_TRIES: usize = 10;

/// Wall-clock milliseconds, to be compared with the app's own; both are on this machine.
pub fn unix_ms() -> u64 {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// Follows the pods of `namespace` until something breaks.
pub async fn follow(client: Client, namespace: String, tell: UnboundedSender<Seen>) -> Result<()> {
    let pods = Api::<Pod>::namespaced(client, &namespace);
    let mut events = pin!(watch(pods.clone(), watcher::Config::default()).default_backoff());
    let mut roll = Roll::default();
    let mut addressed = BTreeSet::new();
    let mut terminating = BTreeSet::new();
    let mut read = BTreeSet::new();
    let mut logs = JoinSet::new();
    while let Some(event) = events.next().await {
        for pod in event
            .as_ref()
            .map(|event| roll.call(event))
            .unwrap_or_default()
        {
            let _ = tell.send(Seen::Gone { pod });
        }
        match event {
            Ok(Event::Apply(pod) | Event::InitApply(pod)) => {
                let name = pod.name_any();
                if let Some(ip) = address(&pod)
                    && addressed.insert(name.clone())
                {
                    let _ = tell.send(Seen::Address {
                        pod: name.clone(),
                        ip,
                    });
                }
                if pod.metadata.deletion_timestamp.is_some() && terminating.insert(name.clone()) {
                    let _ = tell.send(Seen::Terminating {
                        pod: name.clone(),
                        at: unix_ms(),
                    });
                }
                if is_app_running(&pod) && read.insert(name.clone()) {
                    logs.spawn(read_log(pods.clone(), name, tell.clone()));
                }
            }
            // The watch begins again by itself.
            Ok(Event::Delete(_) | Event::Init | Event::InitDone) | Err(_) => {}
        }
        while logs.try_join_next().is_some() {}
    }
    bail!("failed to go on watching the pods of {namespace}")
}

/// Which pods there are, so that one that went while the watch was broken is missed.
#[derive(Debug, Default)]
struct Roll {
    there: BTreeSet<String>,
    /// Those of the list that is coming in.
    listed: BTreeSet<String>,
}

impl Roll {
    /// Takes note of `event` and answers with the pods that are gone.
    fn call(&mut self, event: &Event<Pod>) -> Vec<String> {
        match event {
            Event::Init => self.listed.clear(),
            Event::InitApply(pod) => {
                self.listed.insert(pod.name_any());
            }
            Event::Apply(pod) => {
                self.there.insert(pod.name_any());
            }
            Event::Delete(pod) => {
                self.there.remove(&pod.name_any());
                return vec![pod.name_any()];
            }
            Event::InitDone => {
                let before = mem::replace(&mut self.there, mem::take(&mut self.listed));
                return before.difference(&self.there).cloned().collect();
            }
        }
        Vec::new()
    }
}

fn address(pod: &Pod) -> Option<IpAddr> {
    pod.status.as_ref()?.pod_ip.as_ref()?.parse().ok()
}

fn is_app_running(pod: &Pod) -> bool {
    let statuses = pod
        .status
        .iter()
        .flat_map(|status| status.container_statuses.iter().flatten());
    let mut app = statuses.filter(|status| status.name == CONTAINER);
    app.any(|status| {
        status
            .state
            .as_ref()
            .is_some_and(|state| state.running.is_some())
    })
}

/// Reads the log to its end, which is the container's end. The whole of it is read again if the stream breaks:
/// to be told something twice does no harm.
async fn read_log(pods: Api<Pod>, name: String, tell: UnboundedSender<Seen>) {
    for _ in 0..LOG_TRIES {
        let options = LogParams {
            container: Some(CONTAINER.to_owned()),
            follow: true,
            ..LogParams::default()
        };
        if let Ok(stream) = pods.log_stream(&name, &options).await {
            let mut lines = stream.lines();
            while let Ok(Some(line)) = lines.try_next().await {
                let Ok(event) = serde_json::from_str::<AppEvent>(&line) else {
                    continue;
                };
                let last = event.event == "exit";
                let _ = tell.send(Seen::Said {
                    pod: name.clone(),
                    event,
                });
                if last {
                    return;
                }
            }
        }
        sleep(LOG_PAUSE).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mk_pod(name: &str) -> Pod {
        let mut pod = Pod::default();
        pod.metadata.name = Some(name.to_owned());
        pod
    }

    #[test]
    fn pod_that_went_while_the_watch_was_broken_is_gone() {
        let mut roll = Roll::default();
        let mut call = |event| roll.call(&event);
        for event in [
            Event::Init,
            Event::InitApply(mk_pod("a")),
            Event::InitApply(mk_pod("b")),
            Event::InitDone,
            Event::Apply(mk_pod("c")),
            Event::Apply(mk_pod("d")),
        ] {
            assert_eq!(call(event), Vec::<String>::new());
        }
        assert_eq!(call(Event::Delete(mk_pod("d"))), ["d"]);
        assert_eq!(call(Event::Init), Vec::<String>::new());
        call(Event::InitApply(mk_pod("b")));
        assert_eq!(call(Event::InitDone), ["a", "c"]);
    }
}

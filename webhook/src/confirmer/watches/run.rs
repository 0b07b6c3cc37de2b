//! The watches themselves: how they begin, and what becomes of them where a kind is missing or may not be looked at.

use std::fmt::Debug;
use std::pin::pin;
use std::time::Duration;

use futures::StreamExt as _;
use k8s_openapi::api::core::v1::{Pod, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::networking::v1::{Ingress, IngressClass};
use kube::api::{ApiResource, DynamicObject};
use kube::core::{GroupVersionKind, PartialObjectMeta, Status};
use kube::runtime::watcher::{self, Error, Event};
use kube::runtime::{WatchStreamExt, watcher as watch};
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;
use sidecar::contract::LABEL_INJECTED;
use tokio::time::{Instant, sleep};
use tracing::{info, warn};

use super::{Progress, Source, World};
use crate::confirmer::bindings::Origin;
use crate::readiness::BlockReady;

/// Longest life of one watch, in seconds: one that has silently died is noticed as late as that.
const WATCH_SECONDS: u32 = 30;

/// How often what left long ago is forgotten.
const PRUNE_EVERY: Duration = Duration::from_mins(1);

/// How often a kind that was missing, or that we might not look at, is looked for again: a controller may be installed
/// later, and a missing permission be given. One or two cheap requests each time.
const LOOK_EVERY: Duration = Duration::from_secs(30);

/// Watches everything into `world` until dropped; `ready` is released when all that can be known is.
pub async fn run(client: Client, world: World, ready: BlockReady) {
    let slices = keep(
        Api::<EndpointSlice>::all(client.clone()),
        config(),
        Source::EndpointSlices,
        (&client, &world),
        |event, now| world.on_endpoint_slice(event, now),
    );
    let pods = keep(
        Api::<PartialObjectMeta<Pod>>::all(client.clone()),
        config().labels(&format!("{LABEL_INJECTED}=true")),
        Source::Pods,
        (&client, &world),
        |event, now| world.on_pod(event, now),
    );
    let services = keep(
        Api::<Service>::all(client.clone()),
        config(),
        Source::Services,
        (&client, &world),
        |event, now| world.on_service(event, now),
    );
    let ingresses = keep(
        Api::<Ingress>::all(client.clone()),
        config(),
        Source::Ingresses,
        (&client, &world),
        |event, now| world.on_ingress(event, now),
    );
    let classes = keep(
        Api::<IngressClass>::all(client.clone()),
        config(),
        Source::IngressClasses,
        (&client, &world),
        |event, now| world.on_ingress_class(event, now),
    );
    let housekeeping = async {
        let mut synced = world.synced();
        // The sender lives in `world`, so this ends with the watches and not before.
        let _ = synced.wait_for(Option::is_some).await;
        drop(ready);
        loop {
            sleep(PRUNE_EVERY).await;
            world.prune(Instant::now());
        }
    };
    tokio::join!(
        slices,
        pods,
        services,
        ingresses,
        classes,
        bindings(&client, &world, Origin::Controller),
        bindings(&client, &world, Origin::AutoMode),
        housekeeping
    );
}

fn config() -> watcher::Config {
    watcher::Config::default().timeout(WATCH_SECONDS)
}

async fn bindings(client: &Client, world: &World, origin: Origin) {
    let kind = GroupVersionKind::gvk(origin.group(), origin.version(), "TargetGroupBinding");
    let api = Api::<DynamicObject>::all_with(client.clone(), &ApiResource::from_gvk(&kind));
    let source = Source::Bindings(origin);
    keep(api, config(), source, (client, world), |event, now| {
        world.on_binding(origin, event, now);
    })
    .await;
}

/// Feeds a watch's events to `take`, and begins it anew whenever the kind isn't there or may not be looked at.
async fn keep<K>(
    api: Api<K>,
    config: watcher::Config,
    source: Source,
    (client, world): (&Client, &World),
    take: impl Fn(Event<K>, Instant),
) where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    loop {
        let mut events = pin!(watch(api.clone(), config.clone()).default_backoff());
        while let Some(event) = events.next().await {
            let error = match event {
                Ok(event) => {
                    take(event, Instant::now());
                    continue;
                }
                Err(error) => error,
            };
            let Some(why) = unavailable(&error, client, source).await else {
                warn!(resource = source.resource(), %error, "Watch failed");
                continue;
            };
            // Each of these stays as it is for long; once is enough to say it.
            if world.progress(source) != Some(why) {
                say(source, why);
            }
            // Pods and slices are always there; without them nothing can be told, so that we don't become ready.
            if Source::OPTIONAL.contains(&source) {
                world.on_unavailable(source, why, Instant::now());
            }
            break;
        }
        sleep(LOOK_EVERY).await;
    }
}

fn say(source: Source, why: Progress) {
    let resource = source.resource();
    if why == Progress::Forbidden {
        warn!(
            resource,
            "May not watch: the ClusterRole prestop-gate must allow list and watch on it; until then what it would tell is unknown"
        );
    } else {
        info!(
            resource,
            "The cluster has no such kind; looking again now and then"
        );
    }
}

/// Whether there is no such kind. Of a group that it has never heard of the API server says so in plain text, which
/// is no `Status` with a reason.
fn is_absent(status: &Status) -> bool {
    status.code == 404
}

/// Why a watch can't be had, where another try at once would fail just so.
async fn unavailable(error: &Error, client: &Client, source: Source) -> Option<Progress> {
    let status: &Status = match error {
        Error::InitialListFailed(kube::Error::Api(status))
        | Error::WatchStartFailed(kube::Error::Api(status))
        | Error::WatchError(status) => status,
        _ => return None,
    };
    if is_absent(status) {
        return Some(Progress::Absent);
    }
    if !status.is_forbidden() {
        return None;
    }
    // Permissions are looked at before kinds: a forbidden one may not even be there. Discovery is open to everybody.
    let Source::Bindings(origin) = source else {
        return Some(Progress::Forbidden);
    };
    let group_version = format!("{}/{}", origin.group(), origin.version());
    match client.list_api_group_resources(&group_version).await {
        Ok(found)
            if found
                .resources
                .iter()
                .any(|r| r.name == "targetgroupbindings") =>
        {
            Some(Progress::Forbidden)
        }
        Ok(_) => Some(Progress::Absent),
        Err(kube::Error::Api(status)) if is_absent(&status) => Some(Progress::Absent),
        Err(error) => {
            warn!(%error, "Failed to find out whether there are TargetGroupBindings");
            None
        }
    }
}

//! Watches, the queue, and one reconcile after the other.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use aws_config::SdkConfig;
use futures::stream::{SelectAll, select_all};
use futures::{Stream, StreamExt};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::DynamicObject;
use kube::runtime::watcher::{self, Event};
use kube::runtime::{WatchStreamExt, watcher as watch};
use kube::{Api, Client, ResourceExt};
use tokio::time::{sleep_until, timeout};

use super::binding::{Binding, Key};
use super::queue::Queue;
use super::sync::Syncer;
use super::{Options, Outcome, Reconcile, Shared, now};
use crate::aws::crds::Group;

/// Longest time for one reconcile: a call may hang, and the others must have their turn.
const PATIENCE: Duration = Duration::from_mins(1);
/// The label that names a slice's Service.
const SERVICE_NAME: &str = "kubernetes.io/service-name";

/// Leads, again and again, until it is dropped.
pub(super) async fn run(kube: Client, aws: SdkConfig, options: Options, shared: Arc<Shared>) {
    loop {
        let (generation, paused) = {
            let knobs = shared.knobs();
            (knobs.generation, knobs.paused_until)
        };
        let lead = async {
            if let Some(until) = paused {
                sleep_until(until.into()).await;
            }
            Leader::new(&kube, &aws, &options, &shared).lead().await;
        };
        let restarted = async {
            while shared.knobs().generation == generation {
                shared.turned.notified().await;
            }
        };
        tokio::select! {
            () = lead => {}
            () = restarted => {}
        }
    }
}

enum News {
    Binding(Group, Event<DynamicObject>),
    Slice(Event<EndpointSlice>),
    /// The watch is tried again by itself.
    Trouble,
}

/// One term of leading, with all that is remembered during it.
struct Leader<'a> {
    news: SelectAll<futures::stream::BoxStream<'static, News>>,
    options: &'a Options,
    shared: &'a Shared,
    syncer: Syncer,
    queue: Queue,
    bindings: BTreeMap<Key, Binding>,
    /// Deleted bindings whose targets are still to be deregistered.
    deleted: BTreeMap<Key, Binding>,
    slices: BTreeMap<(String, String), EndpointSlice>,
    /// What a list that isn't complete yet has brought.
    listed_bindings: BTreeMap<Group, BTreeSet<Key>>,
    listed_slices: BTreeSet<(String, String)>,
    /// Before the first list is complete, an endpoint that is missing is one that isn't known yet.
    has_slices: bool,
}

impl<'a> Leader<'a> {
    fn new(kube: &Client, aws: &SdkConfig, options: &'a Options, shared: &'a Shared) -> Self {
        let mut news = Vec::new();
        for group in Group::ALL {
            let api = Api::<DynamicObject>::all_with(kube.clone(), &group.resource());
            // A kind that isn't there is an error like others, and found when it appears.
            let stream = watch(api, watcher::Config::default()).default_backoff();
            news.push(tell(stream, move |event| News::Binding(group, event)));
        }
        let slices = Api::<EndpointSlice>::all(kube.clone());
        let stream = watch(slices, watcher::Config::default()).default_backoff();
        news.push(tell(stream, News::Slice));
        Self {
            news: select_all(news),
            options,
            shared,
            syncer: Syncer::new(kube.clone(), aws.clone()),
            queue: Queue::new(options.max_backoff),
            bindings: BTreeMap::new(),
            deleted: BTreeMap::new(),
            slices: BTreeMap::new(),
            listed_bindings: BTreeMap::new(),
            listed_slices: BTreeSet::new(),
            has_slices: false,
        }
    }

    /// Works until the watches end, which they don't.
    async fn lead(mut self) {
        loop {
            // Events that are there already come first, as they do in the real one's caches.
            let next = self.queue.next().filter(|_| self.has_slices);
            let due = async {
                match next {
                    Some(at) => sleep_until(at.into()).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                news = self.news.next() => match news {
                    Some(news) => self.note(news),
                    None => return,
                },
                () = due => {
                    if let Some(key) = self.queue.take(now()) {
                        self.reconcile(key).await;
                    }
                }
            }
        }
    }

    async fn reconcile(&mut self, key: Key) {
        let outcome = if self.takes_a_skip() {
            Ok(Outcome::Skipped)
        } else {
            let done = timeout(PATIENCE, self.sync(&key)).await;
            let late = || anyhow::anyhow!("failed to reconcile within {PATIENCE:?}");
            done.unwrap_or_else(|_| Err(late()))
        };
        let outcome = match outcome {
            Ok(outcome) => {
                self.queue.succeeded(&key);
                outcome
            }
            Err(error) => {
                self.queue.failed(key.clone(), now());
                Outcome::Failed(format!("{error:#}"))
            }
        };
        self.shared.knobs().reconciles.push(Reconcile {
            at: now(),
            namespace: key.namespace,
            binding: key.name,
            outcome,
        });
    }

    async fn sync(&mut self, key: &Key) -> anyhow::Result<Outcome> {
        if let Some(binding) = self.bindings.get_mut(key) {
            let service = &binding.spec.service_ref.name;
            let is_of = |slice: &&EndpointSlice| {
                slice.namespace().as_ref() == Some(&key.namespace)
                    && slice.labels().get(SERVICE_NAME) == Some(service)
            };
            let slices: Vec<EndpointSlice> = self.slices.values().filter(is_of).cloned().collect();
            return self.syncer.sync(key, binding, &slices).await;
        }
        let Some(binding) = self.deleted.get(key) else {
            return Ok(Outcome::Unchanged);
        };
        let outcome = self.syncer.clean_up(key, binding).await?;
        self.deleted.remove(key);
        Ok(outcome)
    }

    fn takes_a_skip(&self) -> bool {
        let mut knobs = self.shared.knobs();
        let takes = knobs.skips > 0;
        knobs.skips = knobs.skips.saturating_sub(1);
        takes
    }

    fn note(&mut self, news: News) {
        match news {
            News::Binding(group, event) => self.note_binding(group, event),
            News::Slice(event) => self.note_slice(event),
            News::Trouble => {}
        }
    }

    fn note_binding(&mut self, group: Group, event: Event<DynamicObject>) {
        match event {
            Event::Init => drop(self.listed_bindings.insert(group, BTreeSet::new())),
            Event::InitApply(object) => {
                let key = Key::of(group, &object);
                self.listed_bindings
                    .entry(group)
                    .or_default()
                    .insert(key.clone());
                self.put(key, &object);
            }
            Event::InitDone => {
                let listed = self.listed_bindings.remove(&group).unwrap_or_default();
                let known = self.bindings.keys();
                let gone = known.filter(|key| key.group == group && !listed.contains(key));
                let gone: Vec<Key> = gone.cloned().collect();
                for key in gone {
                    self.remove(key);
                }
            }
            Event::Apply(object) => self.put(Key::of(group, &object), &object),
            Event::Delete(object) => self.remove(Key::of(group, &object)),
        }
    }

    fn put(&mut self, key: Key, object: &DynamicObject) {
        let namespaces = &self.options.namespaces;
        if !namespaces.is_empty() && !namespaces.contains(&key.namespace) {
            return;
        }
        let Some(binding) = Binding::read(object) else {
            return;
        };
        let before = self.bindings.insert(key.clone(), binding);
        // Its own annotations are no news.
        if before.is_none_or(|before| before.generation != object.metadata.generation) {
            self.enqueue(key);
        }
    }

    fn remove(&mut self, key: Key) {
        if let Some(binding) = self.bindings.remove(&key) {
            self.deleted.insert(key.clone(), binding);
            self.enqueue(key);
        }
    }

    fn note_slice(&mut self, event: Event<EndpointSlice>) {
        let name =
            |slice: &EndpointSlice| (slice.namespace().unwrap_or_default(), slice.name_any());
        match event {
            Event::Init => self.listed_slices.clear(),
            Event::InitApply(slice) => {
                self.listed_slices.insert(name(&slice));
                self.enqueue_for(&slice);
                self.slices.insert(name(&slice), slice);
            }
            Event::InitDone => {
                self.has_slices = true;
                let listed = std::mem::take(&mut self.listed_slices);
                let gone = self.slices.extract_if(.., |name, _| !listed.contains(name));
                let gone: Vec<EndpointSlice> = gone.map(|(_, slice)| slice).collect();
                for slice in &gone {
                    self.enqueue_for(slice);
                }
            }
            Event::Apply(slice) => {
                self.enqueue_for(&slice);
                self.slices.insert(name(&slice), slice);
            }
            Event::Delete(slice) => {
                self.slices.remove(&name(&slice));
                self.enqueue_for(&slice);
            }
        }
    }

    /// Queues the bindings of a slice's Service.
    fn enqueue_for(&mut self, slice: &EndpointSlice) {
        let (namespace, service) = (slice.namespace(), slice.labels().get(SERVICE_NAME));
        let is_of = |(key, binding): &(&Key, &Binding)| {
            namespace.as_ref() == Some(&key.namespace)
                && service == Some(&binding.spec.service_ref.name)
        };
        let keys: Vec<Key> = self
            .bindings
            .iter()
            .filter(is_of)
            .map(|(key, _)| key.clone())
            .collect();
        for key in keys {
            self.enqueue(key);
        }
    }

    fn enqueue(&mut self, key: Key) {
        let delay = self.shared.knobs().delay;
        self.queue.add(key, delay, now());
    }
}

fn tell<T: 'static>(
    stream: impl Stream<Item = watcher::Result<Event<T>>> + Send + 'static,
    what: impl Fn(Event<T>) -> News + Send + 'static,
) -> futures::stream::BoxStream<'static, News> {
    stream
        .map(move |event| event.map_or(News::Trouble, &what))
        .boxed()
}

//! An API server for unit tests: objects with versions, watches, and faults on request. It records every call.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use futures::StreamExt as _;
use http::{Method, Request, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::{Bytes, Frame};
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::Instant;

type Answer = Response<UnsyncBoxBody<Bytes, Infallible>>;
type Interference = Box<dyn FnOnce(&FakeApi) + Send>;

/// Shared by the test and its clients.
#[derive(Clone, Default)]
pub(crate) struct FakeApi {
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    /// By collection path, then name.
    objects: BTreeMap<String, BTreeMap<String, Value>>,
    version: u64,
    calls: Vec<Call>,
    /// Every event with its collection, in the order of versions.
    events: Vec<(String, Value)>,
    watches: Vec<(String, mpsc::UnboundedSender<Value>)>,
    /// The next calls of a method fail so.
    faults: Vec<(Method, u16, &'static str)>,
    /// What somebody else does just before the next call of a method.
    interferences: Vec<(Method, Interference)>,
}

/// One call as it came.
#[derive(Debug, Clone)]
pub(crate) struct Call {
    pub(crate) method: Method,
    pub(crate) path: String,
    pub(crate) query: String,
    pub(crate) body: Value,
    pub(crate) at: Instant,
}

impl FakeApi {
    pub(crate) fn client(&self) -> Client {
        let api = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let api = api.clone();
            async move { Ok::<_, Infallible>(api.answer(request).await) }
        });
        Client::new(service, "default")
    }

    /// Calls other than reads.
    pub(crate) fn writes(&self) -> Vec<Call> {
        let calls = self.calls();
        calls
            .into_iter()
            .filter(|call| call.method != Method::GET)
            .collect()
    }

    /// Whole seconds between one write and the next.
    pub(crate) fn write_pauses(&self) -> Vec<u64> {
        let writes = self.writes();
        writes
            .windows(2)
            .map(|pair| (pair[1].at - pair[0].at).as_secs())
            .collect()
    }

    pub(crate) fn calls(&self) -> Vec<Call> {
        self.state.lock().unwrap().calls.clone()
    }

    pub(crate) fn fail_next(&self, method: Method, code: u16, reason: &'static str) {
        self.state
            .lock()
            .unwrap()
            .faults
            .push((method, code, reason));
    }

    /// Lets somebody else act after the next caller of `method` has decided and before it is heard.
    pub(crate) fn before_next(&self, method: Method, act: impl FnOnce(&Self) + Send + 'static) {
        self.state
            .lock()
            .unwrap()
            .interferences
            .push((method, Box::new(act)));
    }

    pub(crate) fn object(&self, collection: &str, name: &str) -> Option<Value> {
        self.state
            .lock()
            .unwrap()
            .objects
            .get(collection)?
            .get(name)
            .cloned()
    }

    /// Stores an object as somebody else would, with a new version.
    pub(crate) fn put(&self, collection: &str, object: Value) {
        self.state.lock().unwrap().store(collection, object);
    }

    /// Changes a stored object as somebody else would.
    pub(crate) fn change(&self, collection: &str, name: &str, change: impl FnOnce(&mut Value)) {
        let mut object = self.object(collection, name).unwrap();
        change(&mut object);
        self.put(collection, object);
    }

    pub(crate) fn delete(&self, collection: &str, name: &str) {
        let mut state = self.state.lock().unwrap();
        let mut object = state
            .objects
            .get_mut(collection)
            .unwrap()
            .remove(name)
            .unwrap();
        state.version += 1;
        object["metadata"]["resourceVersion"] = state.version.to_string().into();
        state.tell(collection, "DELETED", &object);
    }

    async fn answer(&self, request: Request<Body>) -> Answer {
        let (head, body) = request.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        let call = Call {
            method: head.method,
            path: head.uri.path().to_owned(),
            query: head.uri.query().unwrap_or_default().to_owned(),
            body: serde_json::from_slice(&body).unwrap_or_default(),
            at: Instant::now(),
        };
        let interference = {
            let mut state = self.state.lock().unwrap();
            state.calls.push(call.clone());
            let index = state
                .interferences
                .iter()
                .position(|(method, _)| *method == call.method);
            index.map(|index| state.interferences.remove(index).1)
        };
        if let Some(act) = interference {
            act(self);
        }
        let mut state = self.state.lock().unwrap();
        let is_watch = call.query.contains("watch=true");
        if let Some(index) = state
            .faults
            .iter()
            .position(|(method, ..)| *method == call.method)
        {
            let (_, code, reason) = state.faults.remove(index);
            return failure(code, reason);
        }
        if is_watch {
            return state.watch(&call);
        }
        match state.apply(&call) {
            Ok(object) => full(StatusCode::OK, &object),
            Err((code, reason)) => failure(code, reason),
        }
    }
}

impl State {
    fn apply(&mut self, call: &Call) -> Result<Value, (u16, &'static str)> {
        let is_collection = ["/secrets", "/mutatingwebhookconfigurations"]
            .iter()
            .any(|plural| call.path.ends_with(plural));
        if is_collection {
            let name = call
                .query
                .split('&')
                .find_map(|pair| pair.strip_prefix("fieldSelector=metadata.name%3D"));
            let objects = self.objects.entry(call.path.clone()).or_default();
            if call.method == Method::POST {
                let name = call.body["metadata"]["name"].as_str().unwrap();
                if objects.contains_key(name) {
                    return Err((409, "AlreadyExists"));
                }
                return Ok(self.store(&call.path, call.body.clone()));
            }
            // Our role allows to list by name only.
            let items: Vec<_> = objects
                .get(name.ok_or((403, "Forbidden"))?)
                .into_iter()
                .collect();
            return Ok(
                json!({"metadata": {"resourceVersion": self.version.to_string()}, "items": items}),
            );
        }
        let (collection, name) = call.path.rsplit_once('/').unwrap();
        let found = self
            .objects
            .entry(collection.to_owned())
            .or_default()
            .get(name)
            .cloned();
        let mut object = found.ok_or((404, "NotFound"))?;
        if call.method == Method::PUT {
            let versions =
                [&object, &call.body].map(|object| object["metadata"]["resourceVersion"].clone());
            if versions[0] != versions[1] {
                return Err((409, "Conflict"));
            }
            return Ok(self.store(collection, call.body.clone()));
        }
        if call.method == Method::PATCH {
            let patch: json_patch::Patch =
                serde_json::from_value(call.body.clone()).map_err(|_| (400, "BadRequest"))?;
            json_patch::patch(&mut object, &patch).map_err(|_| (422, "Invalid"))?;
            return Ok(self.store(collection, object));
        }
        Ok(object)
    }

    fn store(&mut self, collection: &str, mut object: Value) -> Value {
        let name = object["metadata"]["name"].as_str().unwrap().to_owned();
        self.version += 1;
        object["metadata"]["resourceVersion"] = self.version.to_string().into();
        let objects = self.objects.entry(collection.to_owned()).or_default();
        let before = objects.insert(name, object.clone());
        let kind = if before.is_some() {
            "MODIFIED"
        } else {
            "ADDED"
        };
        self.tell(collection, kind, &object);
        object
    }

    fn tell(&mut self, collection: &str, kind: &str, object: &Value) {
        let event = json!({"type": kind, "object": object});
        self.events.push((collection.to_owned(), event.clone()));
        self.watches.retain(|(watched, events)| {
            watched != collection || events.send(event.clone()).is_ok()
        });
    }

    /// Everything after the version that the caller has, then what comes.
    fn watch(&mut self, call: &Call) -> Answer {
        let since = call
            .query
            .split('&')
            .find_map(|pair| pair.strip_prefix("resourceVersion="));
        let since: u64 = since.unwrap().parse().unwrap();
        let (sender, receiver) = mpsc::unbounded_channel();
        for (collection, event) in &self.events {
            let version: u64 = event["object"]["metadata"]["resourceVersion"]
                .as_str()
                .unwrap()
                .parse()
                .unwrap();
            if *collection == call.path && version > since {
                sender.send(event.clone()).unwrap();
            }
        }
        self.watches.push((call.path.clone(), sender));
        let lines = futures::stream::unfold(receiver, async |mut receiver| {
            let event: Value = receiver.recv().await?;
            Some((event, receiver))
        });
        let frames = lines.map(|event| Ok(Frame::data(Bytes::from(format!("{event}\n")))));
        Response::new(StreamBody::new(frames).boxed_unsync())
    }
}

fn failure(code: u16, reason: &str) -> Answer {
    let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason,
        "message": "as the test wants it"});
    full(StatusCode::from_u16(code).unwrap(), &status)
}

fn full(status: StatusCode, body: &Value) -> Answer {
    let body = Full::new(Bytes::from(body.to_string())).boxed_unsync();
    Response::builder().status(status).body(body).unwrap()
}

//! Which Services have a load balancer whose controller can't be asked, or one that lags, from Services, Ingresses and
//! `IngressClasses`. Pure.
//!
//! Gateways (`gateway.networking.k8s.io`) are not looked at yet: what only they refer to counts as an ordinary Service.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::networking::v1::{Ingress, IngressBackend, IngressClass};
use kube::ResourceExt as _;
use kube::runtime::watcher::Event;
use tokio::time::Instant;

use super::endpoints::Sender;
use super::remembered::Remembered;
use super::target_group::Family;

/// Classes of the controllers that make NLBs: the AWS Load Balancer Controller's own (its `service.beta` guide) and
/// EKS Auto Mode's. What they register is told by their bindings.
const NLB_CLASSES: [&str; 2] = ["service.k8s.aws/nlb", "eks.amazonaws.com/nlb"];

/// By which Services asked for an NLB before there were classes; all three values make one.
const AWS_TYPE: &str = "service.beta.kubernetes.io/aws-load-balancer-type";

/// What an NLB shall send to: `ip` or `instance`.
const AWS_TARGET_TYPE: &str = "service.beta.kubernetes.io/aws-load-balancer-nlb-target-type";

/// Controllers of Ingresses whose data plane we know; theirs are the names that they put into `IngressClasses`.
const KNOWN_CONTROLLERS: [&str; 12] = [
    // ALBs: what they register is told by their bindings.
    "ingress.k8s.aws/alb",
    "eks.amazonaws.com/alb",
    // Proxies in the cluster that watch EndpointSlices themselves and reload within seconds: to them a pod is as to
    // kube-proxy.
    "k8s.io/ingress-nginx",
    "nginx.org/ingress-controller",
    "traefik.io/ingress-controller",
    "haproxy.org/ingress-controller",
    "haproxy-ingress.github.io/controller",
    "projectcontour.io/ingress-controller",
    "projectcontour.io/contour",
    "ingress-controllers.konghq.com/kong",
    "istio.io/ingress-controller",
    "cilium.io/ingress-controller",
];

/// What the old annotation says where no `IngressClass` explains it: the defaults of the same controllers.
const KNOWN_CLASSES: [&str; 8] = [
    "alb", "nginx", "traefik", "haproxy", "contour", "kong", "istio", "cilium",
];

/// The class of an Ingress before there was `ingressClassName`.
const CLASS_ANNOTATION: &str = "kubernetes.io/ingress.class";

/// Marks the `IngressClass` of Ingresses that name none.
const DEFAULT_CLASS: &str = "ingressclass.kubernetes.io/is-default-class";

/// What is kept of a Service.
#[derive(Debug, PartialEq, Eq)]
struct Facts {
    selector: BTreeMap<String, String>,
    /// Whether it asks for an NLB of AWS.
    is_nlb: bool,
    /// Whether that shall send to pods rather than to nodes.
    is_nlb_to_pods: bool,
    /// Of type `LoadBalancer`: a class that isn't on our list.
    unknown_class: Option<String>,
    publishes_not_ready: bool,
}

/// What is kept of an Ingress.
#[derive(Debug)]
struct Route {
    class: Option<String>,
    backends: BTreeSet<String>,
}

/// What is kept of an `IngressClass`.
#[derive(Debug)]
struct Class {
    controller: String,
    is_default: bool,
}

/// Services, and the Ingresses that refer to them.
#[derive(Debug, Default)]
pub struct Services {
    known: Remembered<Sender, Facts>,
    ingresses: Remembered<Sender, Route>,
    classes: Remembered<String, Class>,
    /// Service → Ingresses that refer to it, or did so of late.
    referring: HashMap<Sender, BTreeSet<Sender>>,
}

impl Services {
    /// Knows nothing yet; objects that went are remembered for `memory`: their load balancer may go on sending.
    pub fn new(memory: Duration) -> Self {
        Self {
            known: Remembered::new(memory),
            ingresses: Remembered::new(memory),
            classes: Remembered::new(memory),
            referring: HashMap::new(),
        }
    }

    /// Takes an event of the watch on Services.
    pub fn on_service(&mut self, event: Event<Service>, now: Instant) {
        match event {
            Event::Init => self.known.list_begins(),
            Event::InitApply(service) | Event::Apply(service) => {
                self.known.apply(key(&service), Facts::of(service));
            }
            Event::Delete(service) => self.known.delete(&key(&service), now),
            Event::InitDone => self.known.list_ends(now),
        }
    }

    /// Takes an event of the watch on Ingresses.
    pub fn on_ingress(&mut self, event: Event<Ingress>, now: Instant) {
        match event {
            Event::Init => self.ingresses.list_begins(),
            Event::InitApply(ingress) | Event::Apply(ingress) => {
                let (key, route) = (key(&ingress), Route::of(&ingress));
                for name in &route.backends {
                    let service = Sender {
                        namespace: key.namespace.clone(),
                        name: name.clone(),
                    };
                    self.referring
                        .entry(service)
                        .or_default()
                        .insert(key.clone());
                }
                self.ingresses.apply(key, route);
            }
            Event::Delete(ingress) => self.ingresses.delete(&key(&ingress), now),
            Event::InitDone => self.ingresses.list_ends(now),
        }
    }

    /// Takes an event of the watch on `IngressClasses`.
    pub fn on_ingress_class(&mut self, event: Event<IngressClass>, now: Instant) {
        match event {
            Event::Init => self.classes.list_begins(),
            Event::InitApply(class) | Event::Apply(class) => {
                let kept = Class {
                    is_default: class
                        .annotations()
                        .get(DEFAULT_CLASS)
                        .is_some_and(|v| v == "true"),
                    controller: class
                        .spec
                        .as_ref()
                        .and_then(|spec| spec.controller.clone())
                        .unwrap_or_default(),
                };
                self.classes.apply(class.name_any(), kept);
            }
            Event::Delete(class) => self.classes.delete(&class.name_any(), now),
            Event::InitDone => self.classes.list_ends(now),
        }
    }

    /// The family of the target groups that this Service's own controller makes.
    pub fn family(&self, service: &Sender) -> Option<Family> {
        self.known.get(service)?.is_nlb.then_some(Family::Nlb)
    }

    /// Whether the Service asks for an NLB that sends to pods. Its binding comes minutes later, with the NLB, and pods
    /// that are made together with the Service must not be gated as if there were none.
    pub fn asks_for_nlb_to_pods(&self, service: &Sender) -> bool {
        let facts = self.known.get(service);
        facts.is_some_and(|facts| facts.is_nlb_to_pods)
    }

    /// A controller that we can't ask and that sends by this Service, as people know it.
    pub fn unknown_controller(&self, service: &Sender) -> Option<String> {
        let class = self
            .known
            .get(service)
            .and_then(|facts| facts.unknown_class.as_ref());
        if let Some(class) = class {
            return Some(format!("loadBalancerClass {class}"));
        }
        let ingresses = self.referring.get(service).into_iter().flatten();
        ingresses
            .filter_map(|ingress| self.ingresses.get(ingress))
            .filter(|route| route.backends.contains(&service.name))
            .find_map(|route| self.unknown_class(route.class.as_deref()))
    }

    /// Whether the Service publishes endpoints that aren't ready.
    pub fn publishes_not_ready(&self, service: &Sender) -> bool {
        self.known
            .get(service)
            .is_some_and(|facts| facts.publishes_not_ready)
    }

    /// All Services that are there and select pods, with their selectors.
    pub fn selectors(&self) -> impl Iterator<Item = (&Sender, &BTreeMap<String, String>)> {
        let present = self.known.present();
        // The API reads an empty selector as "whoever writes the endpoints", not as "all pods".
        present
            .map(|(service, facts)| (service, &facts.selector))
            .filter(|(_, selector)| !selector.is_empty())
    }

    /// Forgets what no hold can still ask for.
    pub fn prune(&mut self, now: Instant) {
        self.known.prune(now);
        self.ingresses.prune(now);
        self.classes.prune(now);
        let ingresses = &self.ingresses;
        self.referring.retain(|service, referring| {
            referring.retain(|ingress| {
                ingresses
                    .get(ingress)
                    .is_some_and(|route| route.backends.contains(&service.name))
            });
            !referring.is_empty()
        });
    }

    /// A class of Ingress whose controller we don't know.
    fn unknown_class(&self, name: Option<&str>) -> Option<String> {
        let default = || {
            let mut classes = self.classes.present();
            classes.find(|(_, class)| class.is_default)
        };
        let class = match name {
            None => default().map(|(name, class)| (name.as_str(), Some(class))),
            Some(name) => Some((name, self.classes.get(&name.to_owned()))),
        };
        match class {
            // Whose it is depends on controllers' flags; on GKE it is the load balancer's.
            None => Some("Ingress without a class".to_owned()),
            Some((name, None)) => {
                (!KNOWN_CLASSES.contains(&name)).then(|| format!("ingress class {name}"))
            }
            Some((name, Some(Class { controller, .. }))) => (!is_known(controller))
                .then(|| format!("ingress class {name}, controller {controller}")),
        }
    }
}

/// Some controllers' instances tell themselves apart by a path after the name.
fn is_known(controller: &str) -> bool {
    KNOWN_CONTROLLERS.iter().any(|known| {
        controller
            .strip_prefix(known)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    })
}

fn key(object: &impl kube::ResourceExt) -> Sender {
    Sender {
        namespace: object.namespace().unwrap_or_default(),
        name: object.name_any(),
    }
}

impl Facts {
    fn of(mut service: Service) -> Self {
        let spec = service.spec.take().unwrap_or_default();
        let is_load_balancer = spec.type_.as_deref() == Some("LoadBalancer");
        let class = spec.load_balancer_class.filter(|_| is_load_balancer);
        let aws_type = service.annotations().get(AWS_TYPE).map(String::as_str);
        let is_nlb_class = class
            .as_deref()
            .is_some_and(|class| NLB_CLASSES.contains(&class));
        let is_nlb = is_nlb_class
            || is_load_balancer && matches!(aws_type, Some("nlb" | "nlb-ip" | "external"));
        let target_type = service.annotations().get(AWS_TARGET_TYPE);
        Self {
            is_nlb_to_pods: is_nlb
                && (target_type.is_some_and(|target| target == "ip") || aws_type == Some("nlb-ip")),
            is_nlb,
            selector: spec.selector.unwrap_or_default(),
            unknown_class: class.filter(|_| !is_nlb_class),
            publishes_not_ready: spec.publish_not_ready_addresses.unwrap_or(false),
        }
    }
}

impl Route {
    fn of(ingress: &Ingress) -> Self {
        let spec = ingress.spec.as_ref();
        let annotated = ingress.annotations().get(CLASS_ANNOTATION);
        let rules = spec
            .and_then(|spec| spec.rules.as_ref())
            .into_iter()
            .flatten();
        let paths = rules
            .filter_map(|rule| rule.http.as_ref())
            .flat_map(|http| &http.paths);
        let default = spec.and_then(|spec| spec.default_backend.as_ref());
        let backends = paths.map(|path| &path.backend).chain(default);
        let name = |backend: &IngressBackend| Some(backend.service.as_ref()?.name.clone());
        Self {
            // Where both are there, controllers go by the annotation.
            class: annotated
                .filter(|class| !class.is_empty())
                .or_else(|| spec?.ingress_class_name.as_ref())
                .cloned(),
            backends: backends.filter_map(name).collect(),
        }
    }
}

#[cfg(test)]
mod tests;

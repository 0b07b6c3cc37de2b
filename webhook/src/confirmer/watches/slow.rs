//! What injection is told of: the Services whose pods leave their load balancer slowly.

use super::{Inner, Progress, Sender, Source, World};
use crate::inject::{SlowSelector, SlowSelectors};

impl World {
    /// What something slow sends to: target groups of NLBs, and controllers that can't be asked.
    pub fn slow_selectors(&self) -> SlowSelectors {
        let inner = self.lock();
        let selectors = inner
            .services
            .selectors()
            .filter_map(|(service, selector)| {
                Some(SlowSelector {
                    namespace: service.namespace.clone(),
                    selector: selector.clone(),
                    because: inner.slow_because(service)?,
                })
            });
        let slow = SlowSelectors::new(selectors);
        let blind: Vec<_> = Source::OPTIONAL
            .into_iter()
            .filter(|source| inner.progress.get(source) == Some(&Progress::Forbidden))
            .map(Source::resource)
            .collect();
        if blind.is_empty() {
            slow
        } else {
            slow.incomplete(&format!("{} can't be watched", blind.join(", ")))
        }
    }
}

impl Inner {
    /// Why a Service's pods leave their load balancer slowly, if they do.
    fn slow_because(&self, service: &Sender) -> Option<String> {
        let Sender { namespace, name } = service;
        let of_service = self.services.family(service);
        if let Some((binding, family)) = self.bindings.slow(service, of_service) {
            return Some(match family {
                Some(_) => format!(
                    "Service {namespace}/{name} is behind an NLB (TargetGroupBinding {binding})"
                ),
                None => format!(
                    "Service {namespace}/{name} may be behind an NLB (TargetGroupBinding {binding} names no protocol)"
                ),
            });
        }
        if self.services.asks_for_nlb_to_pods(service) {
            return Some(format!("Service {namespace}/{name} asks for an NLB"));
        }
        let unknown = self.services.unknown_controller(service)?;
        Some(format!(
            "Service {namespace}/{name} is behind a controller that can't be asked ({unknown})"
        ))
    }
}

//! Whose fault it is that a client didn't get what it asked for: the rule of `failed` and `flows_cut`.
//!
//! A load balancer of connections (an NLB; kube-proxy in front of clients in the cluster) leaves a connection open for
//! as long as both ends do, whatever its API says, and any balancer does so with an endless answer. Only SIGTERM ends
//! these, and no wait before it helps. So:
//!
//! 1. An endless answer that ends is a **cut flow** if its pod had got SIGTERM by then, otherwise a failure.
//! 2. A request on a connection that had been used before, through a balancer of connections, is a **cut flow** if the
//!    connection's pod had got SIGTERM by then, otherwise a failure.
//!
//!    Both only if nothing more came, be it that the connection was closed or that it fell silent. An answer with
//!    another status is the pod's or the balancer's own word, and a failure.
//! 3. Everything else is a **failure**: whatever came over a newly opened connection, and every request through a
//!    balancer of requests.
//!
//! A pooled connection that was closed while nobody used it costs nobody anything, and is neither.

use super::balancer::Layer;
use super::failure::Failure;

/// Clocks are the same machine's, but both times are rounded to milliseconds, and the app writes its line first.
const ROUNDING_MS: u64 = 50;

/// Something that a client asked for and didn't get.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Miss {
    /// When it knew, in Unix milliseconds.
    pub at: u64,
    /// How it looked.
    pub failure: Failure,
    /// What the client asks through.
    pub layer: Layer,
    /// What it was on.
    pub on: On,
}

/// What a client's request was on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum On {
    /// A connection that was opened for it.
    NewConnection,
    /// A connection that had brought an answer of this pod before.
    OpenConnection {
        /// The pod.
        pod: String,
    },
    /// An endless answer of this pod.
    EndlessAnswer {
        /// The pod.
        pod: String,
    },
}

/// What it counts as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// A failed request.
    Failed,
    /// A flow that the load balancer itself left open, cut by SIGTERM.
    FlowCut,
}

/// The rule, given when each pod got SIGTERM in Unix milliseconds.
pub fn judge(miss: &Miss, sigterm: impl Fn(&str) -> Option<u64>) -> Verdict {
    let pod = match (&miss.on, miss.layer) {
        (On::EndlessAnswer { pod }, _) | (On::OpenConnection { pod }, Layer::Connections) => pod,
        (On::OpenConnection { .. }, Layer::Requests) | (On::NewConnection, _) => {
            return Verdict::Failed;
        }
    };
    let is_cut = match miss.failure {
        Failure::Closed | Failure::Timeout => true,
        Failure::Connect | Failure::Status(_) | Failure::Other => false,
    };
    match sigterm(pod) {
        Some(at) if is_cut && at <= miss.at + ROUNDING_MS => Verdict::FlowCut,
        Some(_) | None => Verdict::Failed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(layer: Layer, on: On, sigterm: Option<u64>) -> Verdict {
        let miss = Miss {
            at: 10_000,
            failure: Failure::Closed,
            layer,
            on,
        };
        judge(&miss, |pod| sigterm.filter(|_| pod == "a"))
    }

    fn open(pod: &str) -> On {
        On::OpenConnection { pod: pod.into() }
    }

    fn endless(pod: &str) -> On {
        On::EndlessAnswer { pod: pod.into() }
    }

    #[test]
    fn only_what_the_load_balancer_left_open_is_a_cut_flow() {
        use Layer::{Connections, Requests};
        use Verdict::{Failed, FlowCut};
        for (layer, on, expected) in [
            (Requests, On::NewConnection, Failed),
            (Requests, open("a"), Failed),
            (Requests, endless("a"), FlowCut),
            (Connections, On::NewConnection, Failed),
            (Connections, open("a"), FlowCut),
            (Connections, endless("a"), FlowCut),
        ] {
            assert_eq!(
                judged(layer, on.clone(), Some(9_990)),
                expected,
                "{layer:?} {on:?}"
            );
        }
    }

    #[test]
    fn only_what_ended_without_a_word_is_a_cut_flow() {
        use Verdict::{Failed, FlowCut};
        for (failure, expected) in [
            (Failure::Closed, FlowCut),
            (Failure::Timeout, FlowCut),
            (Failure::Connect, Failed),
            (Failure::Status(500), Failed),
            (Failure::Status(503), Failed),
            (Failure::Other, Failed),
        ] {
            for on in [open("a"), endless("a")] {
                let miss = Miss {
                    at: 10_000,
                    failure,
                    layer: Layer::Connections,
                    on,
                };
                assert_eq!(judge(&miss, |_| Some(9_990)), expected, "{miss:?}");
            }
        }
    }

    #[test]
    fn flow_that_ended_before_its_pod_got_sigterm_failed() {
        for on in [open("a"), endless("a")] {
            let before = judged(Layer::Connections, on.clone(), Some(10_100));
            assert_eq!(before, Verdict::Failed);
            assert_eq!(judged(Layer::Connections, on, None), Verdict::Failed);
        }
        let others = judged(Layer::Connections, open("b"), Some(9_990));
        assert_eq!(others, Verdict::Failed);
    }
}

//! Every Prometheus series that prestop-gate exports. Labels come from closed enums, but for the names of target groups,
//! of which an account has some hundreds.

use std::sync::atomic::AtomicU64;

use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};

/// One label with a value from a closed enum.
pub type Label = [(&'static str, &'static str); 1];

type SecondsByName = Family<[(&'static str, String); 1], Histogram, fn() -> Histogram>;
type SecondsByLabel = Family<Label, Histogram, fn() -> Histogram>;

/// The process's metrics; cloning shares them.
#[derive(Debug, Clone)]
pub struct Metrics {
    /// Reviews by outcome.
    pub injections: Family<Label, Counter>,
    /// Seconds spent on a review, body read included.
    pub review_seconds: Histogram,
    /// Hellos by result, `ok` or `refused`.
    pub hellos: Family<Label, Counter>,
    /// Holds that this replica is answering now.
    pub holds_in_progress: Gauge,
    /// Seconds from the first hook's hello to the release, by reason.
    pub hold_seconds: SecondsByLabel,
    /// Calls of load balancers' APIs, by operation and result.
    pub load_balancer_calls: Family<[(&'static str, &'static str); 2], Counter>,
    /// Seconds from a target's first sign of deregistration to the last new connection, by target group.
    pub lb_lag_seconds: SecondsByName,
    /// Expiry of each served certificate and its CA, Unix seconds, by secret and kind.
    pub certificate_not_after_seconds:
        Family<[(&'static str, &'static str); 2], Gauge<f64, AtomicU64>>,
    /// Certificates issued by this replica, by secret.
    pub certificates_issued: Family<Label, Counter>,
    registry: std::sync::Arc<Registry>,
}

impl Metrics {
    /// Registers every series.
    pub fn new() -> Self {
        let mut registry = Registry::with_prefix("prestop_gate");
        let injections = Family::default();
        registry.register(
            "injections",
            "Admission reviews by outcome",
            injections.clone(),
        );
        let review_seconds = Histogram::new([
            0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.05, 0.25, 1.0,
        ]);
        registry.register_with_unit(
            "review",
            "Time spent on an admission review",
            Unit::Seconds,
            review_seconds.clone(),
        );
        let hellos = Family::default();
        registry.register("hellos", "Hellos of waiters by result", hellos.clone());
        let holds_in_progress = Gauge::default();
        registry.register(
            "holds_in_progress",
            "Holds that this replica is answering now",
            holds_in_progress.clone(),
        );
        let hold_seconds: SecondsByLabel = Family::new_with_constructor(hold_histogram);
        registry.register_with_unit(
            "hold",
            "Time from the first hook's hello to the release, once per answer",
            Unit::Seconds,
            hold_seconds.clone(),
        );
        let load_balancer_calls = Family::default();
        registry.register(
            "load_balancer_calls",
            "Calls of load balancers' APIs by operation and result",
            load_balancer_calls.clone(),
        );
        let lb_lag_seconds: SecondsByName = Family::new_with_constructor(lag_histogram);
        registry.register_with_unit(
            "lb_lag",
            "Time from a target's first sign of deregistration to the last new connection to its pod",
            Unit::Seconds,
            lb_lag_seconds.clone(),
        );
        let certificate_not_after_seconds = Family::default();
        registry.register_with_unit(
            "certificate_not_after",
            "Expiry of a certificate, Unix time",
            Unit::Seconds,
            certificate_not_after_seconds.clone(),
        );
        let certificates_issued = Family::default();
        registry.register(
            "certificates_issued",
            "Certificates issued by this replica",
            certificates_issued.clone(),
        );
        Self {
            injections,
            review_seconds,
            hellos,
            holds_in_progress,
            hold_seconds,
            load_balancer_calls,
            lb_lag_seconds,
            certificate_not_after_seconds,
            certificates_issued,
            registry: std::sync::Arc::new(registry),
        }
    }

    /// The `OpenMetrics` text of all series.
    ///
    /// # Errors
    /// Only where formatting into a string fails, which it doesn't.
    pub fn encode(&self) -> Result<String, std::fmt::Error> {
        let mut text = String::new();
        encode(&mut text, &self.registry)?;
        Ok(text)
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

/// Buckets around the settles (5, 20, 180 s) and the default longest holds (60, 240 s).
fn hold_histogram() -> Histogram {
    Histogram::new([
        1.0, 2.0, 5.0, 7.5, 10.0, 15.0, 20.0, 30.0, 45.0, 60.0, 120.0, 180.0, 240.0, 600.0, 1800.0,
    ])
}

/// Buckets around the lags of the field: 17 s behind an ALB, 120 to 300 s behind an NLB.
fn lag_histogram() -> Histogram {
    Histogram::new([
        0.5, 1.0, 2.0, 5.0, 7.5, 10.0, 15.0, 20.0, 30.0, 45.0, 60.0, 90.0, 120.0, 150.0, 180.0,
        240.0, 300.0,
    ])
}

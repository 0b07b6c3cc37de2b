//! Admission webhook and confirmer.

pub mod metrics;

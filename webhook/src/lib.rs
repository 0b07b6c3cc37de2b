//! Admission webhook and confirmer.

pub mod admission;
pub mod inject;
pub mod metrics;

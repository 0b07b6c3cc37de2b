//! Certificates of prestop-gate.

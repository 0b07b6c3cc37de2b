//! Harness of the tests.

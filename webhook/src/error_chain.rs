//! An error with its causes on one line, for a log field.

use std::error::Error;

/// `failed to …: because …: because …`.
pub(crate) fn chain(error: &dyn Error) -> String {
    std::iter::successors(error.source(), |&error| error.source())
        .fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}

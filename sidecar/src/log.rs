//! Plain log lines on stderr: time in RFC 3339, then a message, then fields.

use std::error::Error;
use std::fmt::{self, Write as _};
use std::io::{self, Write as _};

use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// Writes one line. That stderr is closed or full is nobody's concern here: the gate works on without a log.
pub(crate) fn line(message: fmt::Arguments<'_>) {
    let _ = writeln!(io::stderr(), "{} {message}", now());
}

fn now() -> String {
    let now = OffsetDateTime::now_utc();
    // Rfc3339 prints as many digits as there are; milliseconds are enough to read along with the kubelet's log.
    let now = now.replace_millisecond(now.millisecond()).unwrap_or(now);
    now.format(&Rfc3339).unwrap_or_default()
}

/// An error and all its causes in one line.
pub(crate) fn chain(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let _ = write!(text, ": {cause}");
        source = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_in_utc_with_no_more_than_milliseconds() {
        let now = now();
        assert!(now.ends_with('Z'), "{now}");
        assert!((20..=24).contains(&now.len()), "{now}");
    }

    #[test]
    fn chain_names_every_cause_once() {
        #[derive(Debug, thiserror::Error)]
        #[error("failed to open the door")]
        struct Outer(#[source] io::Error);
        let error = Outer(io::Error::other("no key"));
        assert_eq!(chain(&error), "failed to open the door: no key");
    }
}

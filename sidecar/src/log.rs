//! Plain log lines on stderr: time in RFC 3339, then a message, then fields.

use std::error::Error;
use std::fmt::{self, Write as _};
use std::io::{self, Write as _};
use std::num::NonZeroU8;

use time::OffsetDateTime;
use time::format_description::well_known::iso8601::{Config, Iso8601, TimePrecision};

/// RFC 3339 with milliseconds, to read along with the kubelet's log.
const FORMAT: Iso8601<
    {
        Config::DEFAULT
            .set_year_is_six_digits(false)
            .set_time_precision(TimePrecision::Second {
                decimal_digits: NonZeroU8::new(3),
            })
            .encode()
    },
> = Iso8601;

/// Writes one line. That stderr is closed or full is nobody's concern here: the gate works on without a log.
pub(crate) fn line(message: fmt::Arguments<'_>) {
    let _ = writeln!(io::stderr(), "{} {message}", now());
}

fn now() -> String {
    OffsetDateTime::now_utc()
        .format(&FORMAT)
        .unwrap_or_default()
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
    fn times_are_rfc_3339_in_utc_with_milliseconds() {
        let now = now();
        let shape: String = now
            .chars()
            .map(|c| if c.is_ascii_digit() { '0' } else { c })
            .collect();
        assert_eq!(shape, "0000-00-00T00:00:00.000Z");
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

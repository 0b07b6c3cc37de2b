//! How a request can fail, as its client sees it.

use std::error::Error;
use std::fmt;
use std::io;

use http::StatusCode;

/// The kind of a failed request. Anything but a whole answer with 200 is one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Failure {
    /// No connection to the load balancer.
    Connect,
    /// The connection ended before the answer did.
    Closed,
    /// No whole answer in time.
    Timeout,
    /// The answer had another status; 502, 503 and 504 are the load balancer's own.
    Status(u16),
    /// None of these.
    Other,
}

impl Failure {
    /// What an answer's status says; nothing for 200.
    pub fn of_status(status: StatusCode) -> Option<Self> {
        (status != StatusCode::OK).then(|| Self::Status(status.as_u16()))
    }

    /// What an error while the answer was awaited or read says.
    pub fn of_error(error: &(dyn Error + 'static)) -> Self {
        let mut next = Some(error);
        while let Some(cause) = next {
            if let Some(failure) = Self::of_cause(cause) {
                return failure;
            }
            next = cause.source();
        }
        Self::Other
    }

    fn of_cause(cause: &(dyn Error + 'static)) -> Option<Self> {
        if let Some(error) = cause.downcast_ref::<hyper_util::client::legacy::Error>() {
            return error.is_connect().then_some(Self::Connect);
        }
        if let Some(error) = cause.downcast_ref::<hyper::Error>() {
            let ended = error.is_incomplete_message() || error.is_canceled() || error.is_closed();
            return ended.then_some(Self::Closed);
        }
        match cause.downcast_ref::<io::Error>()?.kind() {
            io::ErrorKind::ConnectionReset
            | io::ErrorKind::ConnectionAborted
            | io::ErrorKind::BrokenPipe
            | io::ErrorKind::UnexpectedEof => Some(Self::Closed),
            io::ErrorKind::TimedOut => Some(Self::Timeout),
            _ => None,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connect => formatter.write_str("connect"),
            Self::Closed => formatter.write_str("closed"),
            Self::Timeout => formatter.write_str("timeout"),
            Self::Status(status) => write!(formatter, "{status}"),
            Self::Other => formatter.write_str("other"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct Wrapped(io::Error);

    impl fmt::Display for Wrapped {
        fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
            formatter.write_str("failed to read the body")
        }
    }

    impl Error for Wrapped {
        fn source(&self) -> Option<&(dyn Error + 'static)> {
            Some(&self.0)
        }
    }

    #[test]
    fn only_200_is_a_success() {
        assert_eq!(Failure::of_status(StatusCode::OK), None);
        for status in [204, 302, 404, 502, 503, 504] {
            let code = StatusCode::from_u16(status).unwrap();
            assert_eq!(Failure::of_status(code), Some(Failure::Status(status)));
        }
    }

    #[test]
    fn kind_is_found_below_what_wraps_it() {
        let of = |kind: io::ErrorKind| Failure::of_error(&Wrapped(kind.into()));
        assert_eq!(of(io::ErrorKind::ConnectionReset), Failure::Closed);
        assert_eq!(of(io::ErrorKind::TimedOut), Failure::Timeout);
        assert_eq!(of(io::ErrorKind::AddrInUse), Failure::Other);
    }
}

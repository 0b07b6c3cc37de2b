//! JSON lines over the socket, with a bound: whoever talks there may be anything that runs in the pod.

use serde::{Serialize, de::DeserializeOwned};

/// Longest line in bytes, with its line feed; our own stay below 300.
pub const LIMIT: usize = 4096;

/// Why a line can't be read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No line feed within [`LIMIT`].
    #[error("failed to read a line of more than {LIMIT} bytes")]
    TooLong,
    /// Not the message that was expected.
    #[error("failed to parse a line")]
    Parse(#[source] serde_json::Error),
}

/// Collects bytes until they are lines.
#[derive(Debug, Default)]
pub struct Lines {
    bytes: Vec<u8>,
}

impl Lines {
    /// Adds what was read.
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Takes the next whole line, `None` while there is none.
    ///
    /// # Errors
    /// The line is too long or isn't a `T`; the caller should give up on the peer.
    pub fn take<T: DeserializeOwned>(&mut self) -> Result<Option<T>, Error> {
        let Some(end) = self.bytes.iter().position(|byte| *byte == b'\n') else {
            return if self.bytes.len() >= LIMIT {
                Err(Error::TooLong)
            } else {
                Ok(None)
            };
        };
        if end >= LIMIT {
            return Err(Error::TooLong);
        }
        let message = serde_json::from_slice(&self.bytes[..end]).map_err(Error::Parse);
        self.bytes.drain(..=end);
        message.map(Some)
    }
}

/// A message as one line.
pub fn encode(message: &impl Serialize) -> Vec<u8> {
    let mut line =
        serde_json::to_vec(message).expect("a message of the contract must be valid JSON");
    line.push(b'\n');
    line
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contract::{HookMessage, ReleaseReason, WaiterMessage};

    #[test]
    fn messages_survive_being_cut_anywhere() {
        let messages = [
            WaiterMessage::Welcome {
                epoch: "e".to_owned(),
            },
            WaiterMessage::Terminating,
            WaiterMessage::Go {
                reason: ReleaseReason::Confirmed,
            },
        ];
        let bytes: Vec<u8> = messages.iter().flat_map(encode).collect();
        for cut in 0..bytes.len() {
            let mut lines = Lines::default();
            let mut seen = Vec::new();
            for part in [&bytes[..cut], &bytes[cut..]] {
                lines.push(part);
                while let Some(message) = lines.take::<WaiterMessage>().unwrap() {
                    seen.push(message);
                }
            }
            assert_eq!(seen, messages, "cut at {cut}");
        }
    }

    #[test]
    fn messages_of_a_newer_peer_are_unknown_and_their_fields_ignored() {
        let mut lines = Lines::default();
        lines.push(b"{\"type\":\"sing\",\"song\":[1]}\n{\"type\":\"done\",\"more\":{}}\n");
        assert_eq!(
            lines.take::<HookMessage>().unwrap(),
            Some(HookMessage::Unknown)
        );
        assert_eq!(
            lines.take::<HookMessage>().unwrap(),
            Some(HookMessage::Done)
        );
    }

    #[test]
    fn lines_beyond_the_limit_are_refused_with_and_without_their_end() {
        let mut lines = Lines::default();
        lines.push(&[b' '; LIMIT - 1]);
        assert!(lines.take::<HookMessage>().unwrap().is_none());
        lines.push(b" ");
        assert!(matches!(lines.take::<HookMessage>(), Err(Error::TooLong)));
        lines.push(b"\n");
        assert!(matches!(lines.take::<HookMessage>(), Err(Error::TooLong)));
    }

    #[test]
    fn anything_else_is_an_error() {
        for bad in [
            &b"\n"[..],
            b"GET / HTTP/1.1\r\n",
            b"{}\n",
            b"null\n",
            b"\xff\n",
        ] {
            let mut lines = Lines::default();
            lines.push(bad);
            assert!(
                matches!(lines.take::<HookMessage>(), Err(Error::Parse(_))),
                "{bad:?}"
            );
        }
    }
}

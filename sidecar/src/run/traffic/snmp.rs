//! The kernel's own count of inbound connections: `PassiveOpens`, which no short connection escapes.

use std::fs::File;
use std::io::{self, Read as _};

/// Of the calling thread's own network namespace.
const PATH: &str = "/proc/thread-self/net/snmp";
/// Far above what the kernel writes (about 2 kB).
const LIMIT: u64 = 64 * 1024;

/// Why the count can't be had.
#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    /// The file can't be read.
    #[error("failed to read {PATH}")]
    Read(#[source] io::Error),
    /// The file has another form.
    #[error("failed to find PassiveOpens in {PATH}")]
    Absent,
}

/// TCP connections that this network namespace was opened from outside, from loopback too, since it was made.
pub(super) fn passive_opens() -> Result<u64, Error> {
    let mut text = String::new();
    File::open(PATH)
        .and_then(|file| file.take(LIMIT).read_to_string(&mut text))
        .map_err(Error::Read)?;
    parse(&text).ok_or(Error::Absent)
}

/// Each protocol has a line of names and then one of numbers.
fn parse(text: &str) -> Option<u64> {
    let mut lines = text.lines().filter_map(|line| line.strip_prefix("Tcp:"));
    let (names, numbers) = (lines.next()?, lines.next()?);
    names
        .split_whitespace()
        .zip(numbers.split_whitespace())
        .find_map(|(name, number)| (name == "PassiveOpens").then(|| number.parse().ok())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn count_is_found_by_its_name_among_the_tcp_lines() {
        let tcp = "Tcp: RtoAlgorithm MaxConn ActiveOpens PassiveOpens\nTcp: 1 -1 7 42\n";
        for (text, count) in [
            (
                format!("Ip: PassiveOpens\nIp: 9\n{tcp}Udp: InDatagrams\nUdp: 3\n"),
                Some(42),
            ),
            (tcp.replace("42", "18446744073709551615"), Some(u64::MAX)),
            (tcp.replace("42", "many"), None),
            (tcp.replace("PassiveOpens", "Opens"), None),
            ("Tcp: PassiveOpens\n".to_owned(), None),
            (String::new(), None),
        ] {
            assert_eq!(parse(&text), count, "{text:?}");
        }
    }

    #[test]
    fn kernel_tells_its_count() {
        passive_opens().unwrap();
    }
}

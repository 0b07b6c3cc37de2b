//! How long to keep off a confirmer that doesn't answer, and saying so once.

use std::error::Error;
use std::time::Duration;

use crate::log;

/// Doubling pauses with jitter, and the last error that was logged.
#[derive(Debug)]
pub(super) struct Backoff {
    first: Duration,
    longest: Duration,
    next: Duration,
    said: Option<String>,
}

impl Backoff {
    pub(super) fn new(first: Duration, longest: Duration) -> Self {
        Self {
            first,
            longest,
            next: first,
            said: None,
        }
    }

    /// The confirmer answered; logs that where an error was logged before.
    pub(super) fn succeeded(&mut self) {
        self.next = self.first;
        if self.said.take().is_some() {
            log::line(format_args!("Confirmer answers again"));
        }
    }

    /// The confirmer couldn't be asked: logs it if it is news, and tells how long to wait.
    pub(super) fn failed(&mut self, error: &(dyn Error + 'static)) -> Duration {
        let text = log::chain(error);
        if self.said.as_ref() != Some(&text) {
            log::line(format_args!("Confirmer can't be asked error={text:?}"));
            self.said = Some(text);
        }
        // Half fixed, half random: all pods of a node lose the confirmer at the same moment.
        let pause = self.next.mul_f64(0.5 + fastrand::f64() / 2.0);
        self.next = (self.next * 2).min(self.longest);
        pause
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[test]
    fn pauses_double_up_to_the_longest_with_jitter_and_start_anew_after_an_answer() {
        let (first, longest) = (Duration::from_millis(100), Duration::from_secs(1));
        let mut backoff = Backoff::new(first, longest);
        for expected in [100, 200, 400, 800, 1000, 1000].map(Duration::from_millis) {
            let pause = backoff.failed(&io::Error::other("down"));
            assert!(
                pause >= expected / 2 && pause <= expected,
                "{pause:?} of {expected:?}"
            );
        }
        backoff.succeeded();
        assert!(backoff.failed(&io::Error::other("down")) <= first);
    }
}

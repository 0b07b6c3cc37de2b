//! Faults on demand. Pure: time is passed in.

use std::time::{Duration, Instant};

/// What goes wrong with a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// An HTTP status with an AWS error body: 500, 503, …
    Status(u16),
    /// The right answer, this much later.
    Slow(Duration),
    /// No answer, ever; the connection stays open.
    Hang,
    /// HTTP 200 with a body that is no XML.
    Malformed,
    /// A body that ends before its announced length.
    Truncated,
    /// The connection is reset instead of an answer.
    Reset,
    /// HTTP 403 `ExpiredToken`.
    ExpiredToken,
    /// HTTP 400 `ThrottlingException`, whatever the bucket holds.
    Throttled,
}

/// How long a fault lasts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lasting {
    /// For so many calls that it strikes.
    Calls(u32),
    /// For a time from when it was injected.
    For(Duration),
    /// Until faults are cleared.
    Always,
}

/// Which calls go wrong, how, and for how long. The first one that fits is taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// `DescribeTargetHealth`, …; none: all.
    pub operation: Option<String>,
    /// A caller's name; none: all.
    pub caller: Option<String>,
    /// What goes wrong.
    pub effect: Effect,
    /// For how long.
    pub lasting: Lasting,
}

/// The faults in force.
#[derive(Debug, Default)]
pub(super) struct Faults {
    injected: Vec<(Fault, Instant)>,
}

impl Faults {
    pub(super) fn inject(&mut self, fault: Fault, now: Instant) {
        self.injected.push((fault, now));
    }

    pub(super) fn clear(&mut self) {
        self.injected.clear();
    }

    /// What goes wrong with this call.
    pub(super) fn strike(&mut self, operation: &str, caller: &str, now: Instant) -> Option<Effect> {
        let is_over = |fault: &Fault, since: Instant| match fault.lasting {
            Lasting::Calls(left) => left == 0,
            Lasting::For(time) => now >= since + time,
            Lasting::Always => false,
        };
        self.injected
            .retain(|(fault, since)| !is_over(fault, *since));
        let fits =
            |wanted: &Option<String>, is: &str| wanted.as_deref().is_none_or(|wanted| wanted == is);
        let (fault, _) = self
            .injected
            .iter_mut()
            .find(|(fault, _)| fits(&fault.operation, operation) && fits(&fault.caller, caller))?;
        if let Lasting::Calls(left) = &mut fault.lasting {
            *left -= 1;
        }
        Some(fault.effect)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mk_fault(caller: Option<&str>, effect: Effect, lasting: Lasting) -> Fault {
        Fault {
            operation: Some("DescribeTargetHealth".to_owned()),
            caller: caller.map(str::to_owned),
            effect,
            lasting,
        }
    }

    #[test]
    fn fault_strikes_so_many_calls_of_its_operation_and_caller() {
        let now = Instant::now();
        let mut faults = Faults::default();
        faults.inject(mk_fault(Some("a"), Effect::Reset, Lasting::Calls(2)), now);
        let mut strike = |operation, caller| faults.strike(operation, caller, now);
        assert_eq!(strike("DescribeTargetHealth", "b"), None);
        assert_eq!(strike("RegisterTargets", "a"), None);
        assert_eq!(strike("DescribeTargetHealth", "a"), Some(Effect::Reset));
        assert_eq!(strike("DescribeTargetHealth", "a"), Some(Effect::Reset));
        assert_eq!(strike("DescribeTargetHealth", "a"), None);
    }

    #[test]
    fn fault_ends_after_its_time_and_the_next_one_counts() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut faults = Faults::default();
        faults.inject(
            mk_fault(None, Effect::Hang, Lasting::For(Duration::from_secs(5))),
            start,
        );
        faults.inject(mk_fault(None, Effect::Throttled, Lasting::Always), start);
        assert_eq!(
            faults.strike("DescribeTargetHealth", "a", at(4)),
            Some(Effect::Hang)
        );
        assert_eq!(
            faults.strike("DescribeTargetHealth", "a", at(5)),
            Some(Effect::Throttled)
        );
        faults.clear();
        assert_eq!(faults.strike("DescribeTargetHealth", "a", at(5)), None);
    }
}

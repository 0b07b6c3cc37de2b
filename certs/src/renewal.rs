//! What to do about a stored identity at a given time: the decision alone.
//!
//! What clients were told to trust comes first: as long as an authority is usable, stored or held in memory, only
//! leaves are issued anew. Two processes that decide at the same time write different leaves; whoever stores them
//! must let the first win and decide again on what is stored then.

use std::time::{Duration, SystemTime};

use crate::authority::{self, Authority, AuthorityCert};
use crate::identity::{self, Identity, Verified};

/// How long new certificates hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lives {
    /// An authority's life.
    pub authority: Duration,
    /// A leaf's life, cut where its authority ends earlier.
    pub leaf: Duration,
}

impl Default for Lives {
    /// 10 years, since pods that run for months keep the authority that they were given at admission; 90 days, so
    /// that 30 are left for whatever keeps a renewal from succeeding.
    fn default() -> Self {
        const DAY: Duration = Duration::from_hours(24);
        Self {
            authority: 3_650 * DAY,
            leaf: 90 * DAY,
        }
    }
}

/// What an identity must look like.
#[derive(Debug, Clone, Copy)]
pub struct Policy {
    /// Common name of a new authority.
    pub common_name: &'static str,
    /// How long new certificates hold.
    pub lives: Lives,
    /// The leaf's DNS names; gets the authority's key identifier.
    pub names: fn(&str) -> Vec<String>,
}

/// Why an identity is to be written.
#[derive(Debug)]
pub enum Cause {
    /// There is none.
    Missing,
    /// Two thirds of the leaf's life are over.
    Due,
    /// A client would refuse it.
    Broken(identity::Error),
}

/// What to do.
#[derive(Debug)]
pub struct Plan {
    /// To be served from now on; where none, what is being served stays.
    pub serve: Option<Verified>,
    /// To be stored instead of what was found, and why.
    pub write: Option<(Identity, Cause)>,
}

/// Decides on `found` (what is stored), while `held` is what is being served.
///
/// # Errors
/// Where issuing fails, see [`Authority::issue_leaf`].
pub fn plan(
    found: Option<&Identity>,
    held: Option<&Identity>,
    policy: &Policy,
    now: SystemTime,
) -> Result<Plan, authority::Error> {
    let cause = match found.map(|identity| (identity, identity.verify(policy.names, now))) {
        None => Cause::Missing,
        Some((identity, Ok(verified))) => {
            let write = match is_due(&verified, policy, now)
                .then(|| usable_authority(identity, now))
                .flatten()
            {
                Some(authority) => Some((
                    with_new_leaf(identity, &authority, policy, now)?,
                    Cause::Due,
                )),
                None => None,
            };
            return Ok(Plan {
                serve: Some(verified),
                write,
            });
        }
        Some((_, Err(error))) => Cause::Broken(error),
    };
    // What is served first: a stored authority under which no leaf holds may be a stranger's (a backup restored to the
    // wrong name), and running pods trust the one that we hold.
    let kept = held
        .into_iter()
        .chain(found)
        .find_map(|identity| Some((identity, usable_authority(identity, now)?)));
    let identity = match kept {
        Some((identity, _)) if identity.verify(policy.names, now).is_ok() => identity.clone(),
        Some((identity, authority)) => with_new_leaf(identity, &authority, policy, now)?,
        None => Identity::create(policy, now)?,
    };
    Ok(Plan {
        serve: None,
        write: Some((identity, cause)),
    })
}

/// Whether a new leaf is due and would last longer: near the authority's end it wouldn't, and would be due at once again.
fn is_due(verified: &Verified, policy: &Policy, now: SystemTime) -> bool {
    let end = now
        .checked_add(policy.lives.leaf)
        .map_or(verified.authority.not_after, |end| {
            end.min(verified.authority.not_after)
        });
    verified.leaf.needs_renewal(now) && end > verified.leaf.not_after
}

/// The identity's authority, where it can still issue. One that hasn't begun is usable: a clock that lags must not
/// cost what clients trust.
fn usable_authority(identity: &Identity, now: SystemTime) -> Option<Authority> {
    Authority::from_pem(&identity.authority)
        .ok()
        .filter(|authority| !authority.validity().is_expired(now))
}

fn with_new_leaf(
    identity: &Identity,
    authority: &Authority,
    policy: &Policy,
    now: SystemTime,
) -> Result<Identity, authority::Error> {
    let readable =
        |pem: &String| AuthorityCert::from_pem(pem, "the previous authority's certificate").is_ok();
    Ok(Identity {
        authority: authority.pem().clone(),
        leaf: authority.issue_leaf(&(policy.names)(authority.key_id()), policy.lives.leaf, now)?,
        previous_authority: identity.previous_authority.clone().filter(readable),
    })
}

#[cfg(test)]
mod tests;

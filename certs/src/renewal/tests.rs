use super::*;
use crate::fixture::{POLICY, at, mk_identity, names};

/// The plan's write must be one that a client accepts; whether authority and leaf are the same as before.
fn written(plan: &Plan, before: &Identity, seconds: u64) -> (bool, bool) {
    let (identity, _) = plan.write.as_ref().unwrap();
    identity.verify(names, at(seconds)).unwrap();
    (
        identity.authority == before.authority,
        identity.leaf == before.leaf,
    )
}

fn decide(found: Option<&Identity>, held: Option<&Identity>, seconds: u64) -> Plan {
    plan(found, held, &POLICY, at(seconds)).unwrap()
}

fn with_broken_authority(identity: &Identity) -> Identity {
    let mut identity = identity.clone();
    identity.authority.cert.clear();
    identity
}

#[test]
fn nothing_stored_and_nothing_held_makes_a_new_identity() {
    let plan = decide(None, None, 0);
    let (identity, cause) = plan.write.unwrap();
    assert!(plan.serve.is_none(), "what isn't stored yet isn't served");
    assert!(matches!(cause, Cause::Missing));
    identity.verify(names, at(0)).unwrap();
}

#[test]
fn fresh_identity_is_served_and_left_alone() {
    let plan = decide(Some(&mk_identity(0)), None, 0);
    assert!(plan.serve.is_some() && plan.write.is_none());
}

#[test]
fn leaf_is_renewed_at_two_thirds_under_the_same_authority() {
    let identity = mk_identity(0);
    // Its life is 990 s, begun at -90.
    assert!(decide(Some(&identity), None, 569).write.is_none());
    let plan = decide(Some(&identity), None, 570);
    assert!(
        plan.serve.is_some(),
        "the old leaf still holds and is served until the new one is stored"
    );
    assert!(matches!(plan.write.as_ref().unwrap().1, Cause::Due));
    assert_eq!(written(&plan, &identity, 570), (true, false));
}

#[test]
fn clock_that_jumped_past_the_leafs_end_keeps_the_authority() {
    let identity = mk_identity(0);
    let plan = decide(Some(&identity), None, 5_000);
    assert!(plan.serve.is_none());
    assert!(matches!(plan.write.as_ref().unwrap().1, Cause::Broken(_)));
    assert_eq!(written(&plan, &identity, 5_000), (true, false));
}

#[test]
fn clock_that_lags_behind_the_authoritys_begin_keeps_the_authority() {
    let identity = mk_identity(5_000);
    let plan = decide(Some(&identity), None, 0);
    assert_eq!(written(&plan, &identity, 0), (true, false));
}

#[test]
fn expired_authority_is_replaced() {
    let identity = mk_identity(0);
    let plan = decide(Some(&identity), Some(&identity), 9_001);
    assert_eq!(written(&plan, &identity, 9_001), (false, false));
}

#[test]
fn leaf_is_not_renewed_when_its_authority_allows_no_longer_one() {
    let identity = mk_identity(0);
    let (last, _) = decide(Some(&identity), None, 8_500).write.unwrap();
    assert_eq!(
        last.verify(names, at(8_500)).unwrap().leaf.not_after,
        at(9_000)
    );
    let plan = decide(Some(&last), None, 8_990);
    assert!(
        plan.serve.unwrap().leaf.needs_renewal(at(8_990)),
        "or this test shows nothing"
    );
    assert!(plan.write.is_none());
}

#[test]
fn missing_identity_is_restored_from_what_is_held() {
    let identity = mk_identity(0);
    let plan = decide(None, Some(&identity), 1);
    assert_eq!(written(&plan, &identity, 1), (true, true));
    // Also when the leaf expired meanwhile: clients trust the authority.
    let plan = decide(None, Some(&identity), 5_000);
    assert_eq!(written(&plan, &identity, 5_000), (true, false));
}

#[test]
fn broken_authority_is_restored_from_what_is_held() {
    let identity = mk_identity(0);
    let plan = decide(Some(&with_broken_authority(&identity)), Some(&identity), 1);
    assert!(plan.serve.is_none());
    assert!(matches!(plan.write.as_ref().unwrap().1, Cause::Broken(_)));
    assert_eq!(written(&plan, &identity, 1), (true, true));
}

#[test]
fn broken_authority_with_nothing_held_is_replaced() {
    let identity = mk_identity(0);
    let plan = decide(Some(&with_broken_authority(&identity)), None, 1);
    assert_eq!(written(&plan, &identity, 1), (false, false));
}

#[test]
fn broken_leaf_is_issued_anew_under_the_stored_authority() {
    let mut stored = mk_identity(0);
    stored.leaf.key.clear();
    let plan = decide(Some(&stored), None, 1);
    assert_eq!(written(&plan, &stored, 1), (true, false));
}

/// Somebody restored another Secret's backup under our name: pods trust the authority that is being served.
#[test]
fn authority_that_is_held_wins_over_a_stored_one_without_a_leaf_that_holds() {
    let (mut stored, held) = (mk_identity(0), mk_identity(0));
    stored.leaf.key.clear();
    let plan = decide(Some(&stored), Some(&held), 1);
    assert_eq!(written(&plan, &held, 1), (true, true));
}

#[test]
fn leaf_without_a_wanted_name_is_issued_anew() {
    let identity = mk_identity(0);
    let policy = Policy {
        names: |_| vec!["other.test.svc".to_owned()],
        ..POLICY
    };
    let plan = plan(Some(&identity), None, &policy, at(1)).unwrap();
    let (renewed, _) = plan.write.unwrap();
    assert_eq!(renewed.authority, identity.authority);
    renewed.verify(policy.names, at(1)).unwrap();
}

#[test]
fn previous_authority_outlives_renewals_unless_it_is_broken() {
    let before = mk_identity(0).authority.cert;
    let mut identity = mk_identity(0);
    identity.previous_authority = Some(before.clone());
    let (renewed, _) = decide(Some(&identity), None, 600).write.unwrap();
    assert_eq!(renewed.previous_authority, Some(before));
    identity.previous_authority = Some("garbage".to_owned());
    let (repaired, _) = decide(Some(&identity), None, 1).write.unwrap();
    assert_eq!(repaired.previous_authority, None);
    repaired.verify(names, at(1)).unwrap();
}

#[test]
fn what_is_written_is_kept_by_the_next_decision() {
    for (found, held, seconds) in [
        (None, None, 0),
        (Some(mk_identity(0)), None, 600),
        (Some(mk_identity(0)), None, 5_000),
        (Some(Identity::default()), None, 0),
        (Some(Identity::default()), Some(mk_identity(0)), 1),
    ] {
        let (identity, cause) = decide(found.as_ref(), held.as_ref(), seconds)
            .write
            .unwrap();
        let next = decide(Some(&identity), held.as_ref(), seconds);
        assert!(
            next.serve.is_some() && next.write.is_none(),
            "after {cause:?}"
        );
    }
}

//! Every state and history of a target, as answers show it.

use std::time::Duration;

use super::*;

fn ip(text: &str) -> IpAddr {
    text.parse().expect("the address must be valid")
}

fn target(port: u16, health: Health) -> Target {
    Target {
        ip: ip("192.0.2.7"),
        port,
        health,
    }
}

/// Answers at these seconds, each with the health of 192.0.2.7:8080, or without it.
fn mk_track(begin: Instant, answers: &[(u64, Option<Health>)]) -> Track {
    let mut track = Track::default();
    for (at, health) in answers {
        let targets: Vec<_> = health.iter().map(|health| target(8080, *health)).collect();
        let at = begin + Duration::from_secs(*at);
        track.answered(&targets, at, at);
    }
    track
}

/// How the pod is gone and since which second, by these answers, where its endpoint was dropped at second 10.
fn gone(answers: &[(u64, Option<Health>)]) -> Option<(Gone, u64)> {
    let begin = Instant::now();
    let track = mk_track(begin, answers);
    match track.standing([ip("192.0.2.7")], None, begin + Duration::from_secs(10)) {
        Standing::Gone { how, since, .. } => Some((how, since.duration_since(begin).as_secs())),
        Standing::Registered { .. } => None,
        unasked @ Standing::Unasked { .. } => panic!("{unasked:?}"),
    }
}

const HEALTHY: Option<Health> = Some(Health::Registered);
const DRAINING: Option<Health> = Some(Health::Draining);
const UNHEALTHY_DRAINING: Option<Health> = Some(Health::UnhealthyDraining);
const ABSENT: Option<Health> = None;

#[test]
fn evidence_is_as_old_as_the_answer_that_first_showed_it() {
    assert_eq!(gone(&[(12, HEALTHY)]), None);
    assert_eq!(
        gone(&[(12, HEALTHY), (14, DRAINING), (30, DRAINING)]),
        Some((Gone::Draining, 14))
    );
    assert_eq!(
        gone(&[(12, DRAINING), (30, ABSENT)]),
        Some((Gone::Absent, 12))
    );
    assert_eq!(
        gone(&[(12, Some(Health::Unused))]),
        Some((Gone::Unused, 12))
    );
    assert_eq!(
        gone(&[(12, Some(Health::NotRegistered)), (20, ABSENT)]),
        Some((Gone::Absent, 12))
    );
    assert_eq!(
        gone(&[(12, ABSENT), (40, ABSENT)]),
        Some((Gone::Absent, 12))
    );
}

#[test]
fn what_was_answered_before_the_drop_is_no_evidence() {
    // Absent at second 5, registered unseen in between, gone again at 12.
    assert_eq!(gone(&[(5, ABSENT), (12, ABSENT)]), Some((Gone::Absent, 12)));
    assert_eq!(
        gone(&[(5, DRAINING), (12, DRAINING)]),
        Some((Gone::Draining, 12))
    );
    let begin = Instant::now();
    let track = mk_track(begin, &[(5, ABSENT)]);
    assert_eq!(
        track.standing([ip("192.0.2.7")], None, begin + Duration::from_secs(10)),
        Standing::Unasked { failure: None }
    );
}

#[test]
fn re_registration_resets_the_evidence() {
    assert_eq!(gone(&[(12, DRAINING), (14, HEALTHY)]), None);
    assert_eq!(
        gone(&[(12, DRAINING), (14, HEALTHY), (20, DRAINING)]),
        Some((Gone::Draining, 20))
    );
    assert_eq!(
        gone(&[(12, ABSENT), (14, HEALTHY), (20, ABSENT)]),
        Some((Gone::Absent, 20))
    );
}

#[test]
fn target_that_drains_for_its_health_may_come_back() {
    assert_eq!(
        gone(&[(12, UNHEALTHY_DRAINING)]),
        Some((Gone::UnhealthyDraining, 12))
    );
    assert_eq!(gone(&[(12, UNHEALTHY_DRAINING), (20, HEALTHY)]), None);
    // A deregistration after it is evidence of its own.
    assert_eq!(
        gone(&[(12, UNHEALTHY_DRAINING), (20, DRAINING)]),
        Some((Gone::Draining, 20))
    );
}

#[test]
fn any_port_of_the_address_blocks_unless_the_address_is_the_nodes() {
    let begin = Instant::now();
    let dropped = begin + Duration::from_secs(10);
    let mut track = Track::default();
    track.answered(
        &[
            target(8080, Health::Draining),
            target(9090, Health::Registered),
        ],
        begin + Duration::from_secs(12),
        begin + Duration::from_secs(12),
    );
    let standing = |port: Option<u16>| {
        let ports = port.map(|port| [port].into());
        track.standing([ip("192.0.2.7")], ports.as_ref(), dropped)
    };
    assert!(matches!(standing(None), Standing::Registered { .. }));
    assert!(matches!(
        standing(Some(8080)),
        Standing::Gone {
            how: Gone::Draining,
            ..
        }
    ));
    assert!(matches!(standing(Some(9090)), Standing::Registered { .. }));
    assert!(matches!(
        standing(Some(7070)),
        Standing::Gone {
            how: Gone::Absent,
            ..
        }
    ));
}

#[test]
fn every_address_of_the_pod_counts_in_any_spelling() {
    let begin = Instant::now();
    let mut track = Track::default();
    let v6 = Target {
        ip: ip("2001:db8:0:0::00AB"),
        port: 80,
        health: Health::Registered,
    };
    let mapped = Target {
        ip: ip("::ffff:192.0.2.9"),
        port: 80,
        health: Health::Registered,
    };
    track.answered(&[v6, mapped], begin, begin);
    for (addresses, registered) in [
        (vec!["192.0.2.7", "2001:db8::ab"], true),
        (vec!["192.0.2.9"], true),
        (vec!["192.0.2.7", "2001:db8::ac"], false),
    ] {
        let standing = track.standing(addresses.iter().map(|text| ip(text)), None, begin);
        assert_eq!(
            matches!(standing, Standing::Registered { .. }),
            registered,
            "{addresses:?}"
        );
    }
}

#[test]
fn group_that_is_gone_lets_go_of_everybody_until_it_is_back() {
    let begin = Instant::now();
    let at = |second| begin + Duration::from_secs(second);
    let mut track = mk_track(begin, &[(12, HEALTHY)]);
    track.not_found(at(14), at(14));
    track.not_found(at(20), at(20));
    let standing = track.standing([ip("192.0.2.7")], None, at(10));
    assert_eq!(
        standing,
        Standing::Gone {
            how: Gone::Group,
            since: at(14),
            asked: at(20),
            was_there: true,
            came_back: true
        }
    );
    track.answered(&[target(8080, Health::Registered)], at(22), at(22));
    assert!(matches!(
        track.standing([ip("192.0.2.7")], None, at(10)),
        Standing::Registered { .. }
    ));
}

#[test]
fn failure_keeps_what_was_known_and_an_answer_ends_it() {
    let begin = Instant::now();
    let at = |second| begin + Duration::from_secs(second);
    let mut track = Track::default();
    track.failed(Failure::Throttled, at(11));
    let standing = |track: &Track| track.standing([ip("192.0.2.7")], None, at(10));
    assert_eq!(
        standing(&track),
        Standing::Unasked {
            failure: Some(Failure::Throttled)
        }
    );
    track.answered(&[target(8080, Health::Registered)], at(12), at(12));
    assert_eq!(
        standing(&track),
        Standing::Registered {
            asked: at(12),
            failure: None
        }
    );
    track.failed(Failure::Throttled, at(14));
    assert_eq!(
        standing(&track),
        Standing::Registered {
            asked: at(12),
            failure: Some(Failure::Throttled)
        }
    );
}

#[test]
fn pod_that_was_never_seen_in_the_group_is_told_apart_from_one_that_was() {
    let begin = Instant::now();
    let was_there = |answers: &[_]| {
        let track = mk_track(begin, answers);
        match track.standing([ip("192.0.2.7")], None, begin + Duration::from_secs(10)) {
            Standing::Gone {
                was_there,
                came_back,
                ..
            } => (was_there, came_back),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(was_there(&[(12, ABSENT)]), (false, false));
    assert_eq!(was_there(&[(12, DRAINING)]), (true, false));
    assert_eq!(was_there(&[(12, HEALTHY), (14, ABSENT)]), (true, true));
}

#[test]
fn memory_is_bounded() {
    let begin = Instant::now();
    let mut track = Track::default();
    for second in 0..2 * ANSWERS as u64 {
        let own = IpAddr::from((0x0a00_0000_u128 + u128::from(second)).to_be_bytes());
        let target = Target {
            ip: own,
            port: 80,
            health: Health::Registered,
        };
        let at = begin + Duration::from_secs(second);
        track.answered(&[target], at, at);
    }
    assert_eq!(track.answers.len(), ANSWERS);
    assert!(
        track.targets.len() <= ANSWERS + 1,
        "{}",
        track.targets.len()
    );
}

/// An answer that was asked for before the drop shows what was so before it.
#[test]
fn question_from_before_the_drop_is_no_evidence_though_its_answer_comes_after() {
    let begin = Instant::now();
    let at = |second| begin + Duration::from_secs(second);
    let mut track = Track::default();
    track.answered(&[target(8080, Health::Draining)], at(8), at(12));
    let standing = |track: &Track| track.standing([ip("192.0.2.7")], None, at(10));
    assert_eq!(standing(&track), Standing::Unasked { failure: None });
    track.answered(&[target(8080, Health::Draining)], at(13), at(15));
    let Standing::Gone { since, asked, .. } = standing(&track) else {
        panic!("{:?}", standing(&track));
    };
    assert_eq!((since, asked), (at(15), at(13)));
}

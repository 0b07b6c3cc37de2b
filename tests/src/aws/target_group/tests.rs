use super::*;

const TARGET: &str = "10.0.0.1:8080";

fn mk_state(settings: TargetGroup) -> State {
    State::new(settings, "arn".to_owned())
}

fn register(state: &mut State, target: &str, now: Instant) -> bool {
    let target: SocketAddr = target.parse().unwrap();
    state.register(&target.ip().to_string(), target, now)
}

/// State and reason, a dash where there is none; nothing when the target isn't listed.
fn health(state: &State, target: &str, now: Instant) -> Option<(String, String)> {
    let health = state.health(target.parse().unwrap(), now)?;
    Some((
        health.state,
        health.reason.unwrap_or_else(|| "-".to_owned()),
    ))
}

fn said(state: &str, reason: &str) -> (String, String) {
    (state.to_owned(), reason.to_owned())
}

#[test]
fn target_is_initial_then_healthy_then_draining_then_gone() {
    let start = Instant::now();
    let at = |ms| start + Duration::from_millis(ms);
    let mut state = mk_state(TargetGroup {
        deregistration_delay: Duration::from_secs(5),
        control_plane_lag: Duration::from_secs(2),
        ..TargetGroup::alb("a")
    });
    assert_eq!(health(&state, TARGET, start), None);
    assert!(register(&mut state, TARGET, start));
    let registering = said("initial", "Elb.RegistrationInProgress");
    let checking = said("initial", "Elb.InitialHealthChecking");
    let draining = said("draining", "Target.DeregistrationInProgress");
    assert_eq!(health(&state, TARGET, at(999)).unwrap(), registering);
    assert_eq!(health(&state, TARGET, at(1_000)).unwrap(), checking);
    assert_eq!(health(&state, TARGET, at(15_999)).unwrap(), checking);
    assert_eq!(
        health(&state, TARGET, at(16_000)).unwrap(),
        said("healthy", "-")
    );
    assert!(state.deregister(TARGET.parse().unwrap(), at(20_000)));
    assert_eq!(
        health(&state, TARGET, at(21_999)).unwrap(),
        said("healthy", "-")
    );
    assert_eq!(health(&state, TARGET, at(22_000)).unwrap(), draining);
    assert_eq!(health(&state, TARGET, at(26_999)).unwrap(), draining);
    assert_eq!(health(&state, TARGET, at(27_000)), None);
    assert_eq!(state.list(at(27_000)), []);
}

#[test]
fn second_request_changes_nothing() {
    let start = Instant::now();
    let at = |seconds| start + Duration::from_secs(seconds);
    let mut state = mk_state(TargetGroup::alb("a"));
    let target = TARGET.parse().unwrap();
    assert!(!state.deregister(target, start));
    assert!(register(&mut state, TARGET, start));
    assert!(!register(&mut state, TARGET, at(100)));
    assert_eq!(
        health(&state, TARGET, at(100)).unwrap(),
        said("healthy", "-")
    );
    assert!(state.deregister(target, at(100)));
    assert!(!state.deregister(target, at(200)));
    // The delay counts from the first time.
    assert_eq!(health(&state, TARGET, at(400)), None);
}

#[test]
fn target_that_is_registered_while_draining_begins_anew() {
    let start = Instant::now();
    let at = |seconds| start + Duration::from_secs(seconds);
    let mut state = mk_state(TargetGroup::alb("a"));
    register(&mut state, TARGET, start);
    state.script(
        TARGET.parse().unwrap(),
        Some(Health::new("unhealthy", None)),
    );
    state.deregister(TARGET.parse().unwrap(), at(100));
    assert!(register(&mut state, TARGET, at(110)));
    assert_eq!(
        health(&state, TARGET, at(110)).unwrap(),
        said("initial", "Elb.RegistrationInProgress")
    );
    assert_eq!(
        health(&state, TARGET, at(1_000)).unwrap(),
        said("healthy", "-")
    );
}

#[test]
fn scripted_state_is_said_until_the_target_drains() {
    let start = Instant::now();
    let at = |seconds| start + Duration::from_secs(seconds);
    let mut state = mk_state(TargetGroup::nlb("a"));
    register(&mut state, TARGET, start);
    let script = Health::new("unhealthy.draining", Some("Target.FailedHealthChecks"));
    state.script(TARGET.parse().unwrap(), Some(script));
    assert_eq!(
        health(&state, TARGET, at(60)).unwrap(),
        said("unhealthy.draining", "Target.FailedHealthChecks")
    );
    state.script(TARGET.parse().unwrap(), None);
    assert_eq!(
        health(&state, TARGET, at(60)).unwrap(),
        said("healthy", "-")
    );
    state.script(
        TARGET.parse().unwrap(),
        Some(Health::new("perplexed", None)),
    );
    state.deregister(TARGET.parse().unwrap(), at(70));
    assert_eq!(
        health(&state, TARGET, at(70)).unwrap(),
        said("draining", "Target.DeregistrationInProgress")
    );
}

#[test]
fn ports_of_one_address_and_spellings_of_one_address() {
    let start = Instant::now();
    let mut state = mk_state(TargetGroup::alb("a"));
    register(&mut state, "10.0.0.1:8080", start);
    register(&mut state, "10.0.0.1:9090", start);
    let long = "2001:0db8:0000::0001";
    let address = SocketAddr::new(long.parse().unwrap(), 80);
    assert!(state.register(long, address, start));
    assert!(!register(&mut state, "[2001:db8::1]:80", start));
    let listed = state.list(start);
    let listed: Vec<_> = listed
        .iter()
        .map(|target| (target.id.as_str(), target.port))
        .collect();
    assert_eq!(listed, [("10.0.0.1", 8080), ("10.0.0.1", 9090), (long, 80)]);
    state.deregister("10.0.0.1:9090".parse().unwrap(), start);
    assert_eq!(state.registered().count(), 2);
}

#[test]
fn without_a_load_balancer_targets_are_not_in_use_and_without_delay_they_vanish_at_once() {
    let start = Instant::now();
    let mut state = mk_state(TargetGroup {
        load_balancers: Vec::new(),
        deregistration_delay: Duration::ZERO,
        ..TargetGroup::alb("a")
    });
    register(&mut state, TARGET, start);
    assert_eq!(
        health(&state, TARGET, start).unwrap(),
        said("unused", "Target.NotInUse")
    );
    state.deregister(TARGET.parse().unwrap(), start);
    assert_eq!(health(&state, TARGET, start), None);
}

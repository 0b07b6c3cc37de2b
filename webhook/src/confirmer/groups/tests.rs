//! The loop, against an API that answers as told, with the clock paused.

use std::sync::atomic::{AtomicUsize, Ordering};

use futures::future::BoxFuture;
use tokio::time::{advance, sleep};

use super::*;
use crate::confirmer::target_group::{Health, Role};

const ARN: &str =
    "arn:aws:elasticloadbalancing:eu-central-1:111122223333:targetgroup/web/0123456789abcdef";

/// An API that counts what it is asked.
#[derive(Default)]
struct Api {
    calls: Mutex<Vec<(Instant, String)>>,
    targets: Mutex<Vec<Result<Vec<Target>, Failure>>>,
    details: Mutex<Option<Result<GroupDetails, Failure>>>,
    latency: Duration,
    running: AtomicUsize,
}

impl Api {
    fn call(&self, what: String) {
        self.calls
            .lock()
            .expect("no panic")
            .push((Instant::now(), what));
    }

    fn calls(&self) -> Vec<String> {
        let calls = self.calls.lock().expect("no panic");
        calls.iter().map(|(_, what)| what.clone()).collect()
    }
}

impl AskTargetGroups for Api {
    fn targets<'a>(
        &'a self,
        group: &'a TargetGroup,
    ) -> BoxFuture<'a, Result<Vec<Target>, Failure>> {
        Box::pin(async move {
            self.call(format!("targets {group}"));
            self.running.fetch_add(1, Ordering::Relaxed);
            sleep(self.latency).await;
            self.running.fetch_sub(1, Ordering::Relaxed);
            let mut targets = self.targets.lock().expect("no panic");
            // The last answer is given again and again.
            if targets.len() > 1 {
                targets.remove(0)
            } else {
                targets.first().cloned().unwrap_or(Ok(Vec::new()))
            }
        })
    }

    fn details<'a>(
        &'a self,
        group: &'a TargetGroup,
    ) -> BoxFuture<'a, Result<GroupDetails, Failure>> {
        Box::pin(async move {
            self.call(format!("details {group}"));
            let details = self.details.lock().expect("no panic");
            details.clone().unwrap_or(Err(Failure::NotFound))
        })
    }
}

fn mk_group(id: GroupId) -> TargetGroup {
    TargetGroup { id, role: None }
}

fn arn() -> TargetGroup {
    mk_group(GroupId::Arn(ARN.to_owned()))
}

fn mk_details() -> GroupDetails {
    GroupDetails {
        arn: ARN.to_owned(),
        family: Some(Family::Nlb),
        health_check_interval_seconds: None,
        health_check_port: None,
    }
}

fn start(api: Api) -> (Groups, Arc<Api>, Metrics) {
    let api = Arc::new(api);
    let groups = Groups::new(Some(Arc::clone(&api) as Arc<dyn AskTargetGroups>));
    let metrics = Metrics::new();
    tokio::spawn(
        groups
            .clone()
            .run(World::new(KEEP), metrics.clone(), CancellationToken::new()),
    );
    (groups, api, metrics)
}

fn standing(groups: &Groups, group: &TargetGroup, dropped: Instant) -> Standing {
    let address = "192.0.2.7".parse().expect("the address must be valid");
    groups.standing(group, &[address].into(), None, dropped)
}

#[tokio::test(start_paused = true)]
async fn question_is_put_when_it_is_due_and_its_answer_is_known() {
    let draining = Target {
        ip: "192.0.2.7".parse().expect("the address must be valid"),
        port: 80,
        health: Health::Draining,
    };
    let (groups, api, _) = start(Api {
        targets: Mutex::new(vec![Ok(vec![draining])]),
        ..Api::default()
    });
    let dropped = Instant::now();
    sleep(Duration::from_secs(30)).await;
    assert!(api.calls().is_empty(), "nobody waits");
    groups.wish(&arn(), "u1", Some(Instant::now() + Duration::from_secs(5)));
    sleep(Duration::from_millis(4_900)).await;
    assert!(api.calls().is_empty(), "not due yet");
    sleep(Duration::from_millis(200)).await;
    assert_eq!(api.calls(), [format!("targets {ARN}")]);
    assert!(matches!(
        standing(&groups, &arn(), dropped),
        Standing::Gone {
            was_there: true,
            ..
        }
    ));
    sleep(Duration::from_secs(50)).await;
    assert_eq!(api.calls().len(), 1, "the wish was met");
}

#[tokio::test(start_paused = true)]
async fn pod_whose_wish_an_answer_meets_is_told_of_it() {
    let groups = Groups::new(Some(Arc::new(Api::default()) as Arc<dyn AskTargetGroups>));
    let world = World::new(KEEP);
    tokio::spawn(
        groups
            .clone()
            .run(world.clone(), Metrics::new(), CancellationToken::new()),
    );
    let mut news = world.subscribe("u1");
    news.mark_unchanged();
    groups.wish(&arn(), "u1", Some(Instant::now()));
    sleep(Duration::from_secs(1)).await;
    assert!(news.has_changed().expect("the world is there"));
}

#[tokio::test(start_paused = true)]
async fn name_is_resolved_once_and_then_asked_by_its_arn() {
    let (groups, api, _) = start(Api {
        details: Mutex::new(Some(Ok(mk_details()))),
        ..Api::default()
    });
    let group = mk_group(GroupId::Name("web".to_owned()));
    for _ in 0..2 {
        groups.wish(&group, "u1", Some(Instant::now()));
        sleep(Duration::from_secs(5)).await;
    }
    let targets = format!("targets {ARN}");
    assert_eq!(api.calls(), ["details web", &targets, &targets]);
    assert_eq!(groups.family(&group), Some(Family::Nlb));
    assert!(matches!(
        standing(&groups, &group, Instant::now() - Duration::from_secs(9)),
        Standing::Gone { .. }
    ));
}

#[tokio::test(start_paused = true)]
async fn family_is_asked_for_where_somebody_wants_it_and_a_refusal_does_not_stop_the_rest() {
    let (groups, api, _) = start(Api {
        details: Mutex::new(Some(Err(Failure::Denied("no".to_owned())))),
        ..Api::default()
    });
    assert_eq!(groups.family(&arn()), None);
    for _ in 0..2 {
        groups.wish(&arn(), "u1", Some(Instant::now()));
        sleep(Duration::from_secs(5)).await;
    }
    let targets = format!("targets {ARN}");
    assert_eq!(
        api.calls(),
        [format!("details {ARN}"), targets.clone(), targets]
    );
}

#[tokio::test(start_paused = true)]
async fn failures_are_known_counted_and_recovered_from() {
    let (groups, _, metrics) = start(Api {
        targets: Mutex::new(vec![
            Err(Failure::Throttled),
            Ok(Vec::new()),
            Err(Failure::NotFound),
        ]),
        ..Api::default()
    });
    let dropped = Instant::now();
    groups.wish(&arn(), "u1", Some(Instant::now()));
    sleep(Duration::from_millis(100)).await;
    assert_eq!(
        standing(&groups, &arn(), dropped),
        Standing::Unasked {
            failure: Some(Failure::Throttled)
        }
    );
    sleep(Duration::from_secs(5)).await;
    assert!(matches!(
        standing(&groups, &arn(), dropped),
        Standing::Gone { .. }
    ));
    groups.wish(&arn(), "u1", Some(Instant::now()));
    sleep(Duration::from_secs(5)).await;
    let text = metrics.encode().expect("metrics must encode");
    for result in ["throttled", "answered", "not-found"] {
        let line = format!(
            "prestop_gate_load_balancer_calls_total{{operation=\"DescribeTargetHealth\",result=\"{result}\"}} 1"
        );
        assert!(text.contains(&line), "{line} in {text}");
    }
}

#[tokio::test(start_paused = true)]
async fn without_anybody_to_ask_nothing_is_wished_for() {
    let groups = Groups::new(None);
    groups.wish(&arn(), "u1", Some(Instant::now()));
    assert!(!groups.lock().polls.knows(&arn()));
    assert_eq!(
        standing(&groups, &arn(), Instant::now()),
        Standing::Unasked { failure: None }
    );
}

/// The budget, whatever waits: pods × groups, over a minute, each pod wanting an answer all the time.
#[tokio::test(start_paused = true)]
async fn calls_stay_within_the_budget_whatever_waits() {
    for (pods, count) in [
        (1, 1),
        (100, 1),
        (100, 50),
        (100, 400),
        (10_000, 1),
        (10_000, 50),
        (10_000, 400),
    ] {
        let (groups, api, _) = start(Api {
            latency: Duration::from_millis(80),
            ..Api::default()
        });
        let names: Vec<_> = (0..count)
            .map(|number| TargetGroup {
                id: GroupId::Arn(format!("{ARN}{number}")),
                role: (number % 7 == 0).then(|| Role {
                    arn: "r".to_owned(),
                    external_id: None,
                }),
            })
            .collect();
        let began = Instant::now();
        let seconds: usize = 20;
        for _ in 0..seconds {
            for pod in 0..pods {
                groups.wish(
                    &names[pod % count],
                    &format!("u{pod}"),
                    Some(Instant::now()),
                );
            }
            advance(Duration::from_millis(1)).await;
            sleep(Duration::from_millis(999)).await;
        }
        let calls = api.calls().len();
        let elapsed = usize::try_from(began.elapsed().as_secs()).expect("short");
        // Jitter moves a call, and doesn't add one: the draws' mean is the pace itself, give or take a few.
        assert!(
            calls <= elapsed * 2 + elapsed / 4 + 2,
            "{pods} pods, {count} groups: {calls} calls in {elapsed} s"
        );
        assert!(
            calls >= elapsed / 3,
            "{pods} pods, {count} groups: {calls} calls in {elapsed} s"
        );
        println!("{pods} pods, {count} groups: {calls} calls in {elapsed} s");
    }
}

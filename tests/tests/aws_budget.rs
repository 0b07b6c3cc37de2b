//! How many requests reach AWS, counted there: the confirmer's own poller and SDK client against the stand-in, in real
//! time. Needs no cluster.
#![allow(clippy::unwrap_used, reason = "a test that fails shows where")]

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use aws_config::BehaviorVersion;
use aws_credential_types::Credentials;
use aws_credential_types::provider::SharedCredentialsProvider;
use futures::future::join_all;
use tests::aws::{ACCOUNT, Caller, FakeAws, Outcome, Settings, TargetGroup};
use tokio::time::{Instant, MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;
use webhook::aws::AwsTargetGroups;
use webhook::confirmer::groups::Groups;
use webhook::confirmer::target_group::{AskTargetGroups, GroupId, TargetGroup as Group};
use webhook::confirmer::watches::World;
use webhook::metrics::Metrics;

/// How long pods wait, each for an answer all the time.
const TIME: Duration = Duration::from_secs(15);

/// What all replicas together may ask in a second.
const PER_SECOND: f64 = 2.0;

/// `count` target groups in a stand-in of their own, and its address and a caller's keys.
async fn start(count: usize) -> (FakeAws, Caller, Vec<Group>) {
    let loopback = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let fake = FakeAws::start(loopback, Settings::default()).await.unwrap();
    let caller = Caller::new("prestop-gate", ACCOUNT);
    fake.add_caller(caller.clone());
    let groups = (0..count).map(|number| {
        let arn = fake.create_target_group(TargetGroup::alb(&format!("group-{number}")));
        for host in 0..20 {
            fake.register(&arn, SocketAddr::from(([10, 0, 0, host], 8080)));
        }
        Group {
            id: GroupId::Arn(arn),
            role: None,
        }
    });
    let groups = groups.collect();
    (fake, caller, groups)
}

fn ask(fake: &FakeAws, caller: Caller) -> Arc<dyn AskTargetGroups> {
    let url = fake.url();
    let keys = Credentials::new(caller.access_key, caller.secret_key, None, None, "tests");
    let settings = move || aws_config::defaults(BehaviorVersion::latest()).endpoint_url(&url);
    let credentials = SharedCredentialsProvider::new(keys);
    Arc::new(AwsTargetGroups::with_settings(settings, credentials))
}

/// How many calls came in all when so many pods waited on so many groups, and how many groups were asked about.
async fn measure(pods: usize, count: usize) -> (usize, usize) {
    let (fake, caller, names) = start(count).await;
    let groups = Groups::new(Some(ask(&fake, caller)));
    let poller = tokio::spawn(groups.clone().run(
        World::default(),
        Metrics::new(),
        CancellationToken::new(),
    ));
    let began = Instant::now();
    let mut seconds = interval(Duration::from_secs(1));
    seconds.set_missed_tick_behavior(MissedTickBehavior::Skip);
    while began.elapsed() < TIME {
        seconds.tick().await;
        for pod in 0..pods {
            // Now, at the latest: every answer is too old for it.
            let due = Some(Instant::now());
            groups.wish(&names[pod % count], &format!("pod-{pod}"), due);
        }
    }
    poller.abort();
    let calls = fake.calls();
    for call in &calls {
        assert_eq!(call.outcome, Outcome::Answered, "{call:?}");
        assert_eq!(call.operation, "DescribeTargetHealth");
        // The whole group: a question about single targets would cost one call a pod.
        assert_eq!((call.target_groups.len(), call.targets), (1, 0), "{call:?}");
    }
    let mut asked: Vec<_> = calls.iter().map(|call| &call.target_groups).collect();
    asked.sort_unstable();
    asked.dedup();
    (calls.len(), asked.len())
}

/// S63.
#[tokio::test]
async fn two_calls_a_second_are_all_that_aws_sees_however_many_wait() {
    let cases = [1, 100, 10_000].map(|pods| [1, 50, 400].map(|groups| (pods, groups)));
    let measured = cases.iter().flatten().map(async |&(pods, groups)| {
        let (calls, asked) = measure(pods, groups).await;
        (pods, groups, calls, asked)
    });
    for (pods, groups, calls, asked) in join_all(measured).await {
        #[expect(clippy::cast_precision_loss, reason = "some dozens")]
        let rate = calls as f64 / TIME.as_secs_f64();
        println!("{pods} pods, {groups} groups: {rate:.2} calls/s, {asked} groups asked");
        // Jitter moves calls, some of them into the measured time.
        assert!(rate <= PER_SECOND * 1.35, "{pods} pods, {groups} groups");
        // One group is asked each 2 s at most; of many, each call brings the next one, so that none starves.
        assert!(rate >= 0.3, "{pods} pods, {groups} groups: {rate}");
        let waited_on = groups.min(pods);
        assert_eq!(asked, waited_on.min(calls), "{pods} pods, {groups} groups");
    }
}

//! Throttling and faults, as the SDK sees them without and with its own retries.

use tests::aws::{Effect, Lasting, Outcome};
use tokio::time::{Instant, timeout};

use super::*;

fn mk_fault(effect: Effect, lasting: Lasting) -> Fault {
    Fault {
        operation: Some(DESCRIBE_HEALTH.to_owned()),
        caller: None,
        effect,
        lasting,
    }
}

#[tokio::test]
async fn burst_beyond_the_bucket_is_throttled_and_told_apart() {
    let (fake, caller) = start().await;
    let arn = fake.create_target_group(mk_group("shop"));
    let other = Caller::new("other", ACCOUNT);
    fake.add_caller(other.clone());
    let client = once(&fake.sdk_config(&other));
    let mut throttled = 0;
    // One bucket for the account: what others take is gone.
    fake.set_foreign_load(ACCOUNT, 1000.0);
    tokio::time::sleep(Duration::from_millis(200)).await;
    for _ in 0..10 {
        let answer = client
            .describe_target_health()
            .target_group_arn(&arn)
            .send()
            .await;
        if let Err(error) = answer {
            assert_eq!(code(&error), "ThrottlingException");
            assert_eq!(error.raw_response().unwrap().status().as_u16(), 400);
            throttled += 1;
        }
    }
    assert!(throttled >= 8, "{throttled}");
    // Changes have a bucket of their own.
    let call = once(&fake.sdk_config(&caller)).register_targets();
    call.target_group_arn(&arn)
        .targets(target("10.0.0.1", 80))
        .send()
        .await
        .unwrap();
    let calls = fake.calls();
    let by = |name: &str| calls.iter().filter(|call| call.caller == name).count();
    assert_eq!((by("other"), by("confirmer")), (10, 1));
    let is_throttled = |call: &&tests::aws::Call| {
        call.outcome == Outcome::Failed("ThrottlingException".to_owned())
    };
    assert_eq!(calls.iter().filter(is_throttled).count(), throttled);
    assert_eq!(calls[0].target_groups, [arn]);
    assert_eq!(calls[10].targets, 1);
}

#[tokio::test]
async fn every_fault_looks_to_the_sdk_like_the_real_one() {
    let (fake, caller) = start().await;
    let arn = fake.create_target_group(mk_group("shop"));
    let client = once(&fake.sdk_config(&caller));
    for (effect, wanted) in [
        (Effect::Status(500), "InternalFailure"),
        (Effect::Status(503), "ServiceUnavailable"),
        (Effect::Throttled, "ThrottlingException"),
        (Effect::ExpiredToken, "ExpiredToken"),
    ] {
        fake.inject(mk_fault(effect, Lasting::Calls(1)));
        let error = refused(&client, &arn).await;
        assert_eq!(code(&error), wanted, "{effect:?}");
        assert_eq!(
            fake.calls().last().unwrap().outcome,
            Outcome::Faulted(effect)
        );
        assert!(listed(&client, &arn).await.is_empty());
    }
    for effect in [Effect::Malformed, Effect::Truncated, Effect::Reset] {
        fake.inject(mk_fault(effect, Lasting::Calls(1)));
        let error = refused(&client, &arn).await;
        let is_alike = match effect {
            // The SDK takes an answer that it can't parse for an error of the service, without a code.
            Effect::Malformed => code(&error).is_empty() && error.as_service_error().is_some(),
            Effect::Truncated => matches!(
                error,
                SdkError::ResponseError(_) | SdkError::DispatchFailure(_)
            ),
            _ => matches!(error, SdkError::DispatchFailure(_)),
        };
        assert!(is_alike, "{effect:?}: {}", DisplayErrorContext(&error));
        assert!(listed(&client, &arn).await.is_empty());
    }
}

#[tokio::test]
async fn sdk_gets_over_one_failed_call_by_itself() {
    let (fake, caller) = start().await;
    let arn = fake.create_target_group(mk_group("shop"));
    let client = Client::new(&fake.sdk_config(&caller));
    for effect in [Effect::Status(500), Effect::Throttled, Effect::Reset] {
        fake.inject(mk_fault(effect, Lasting::Calls(1)));
        assert!(listed(&client, &arn).await.is_empty(), "{effect:?}");
    }
    assert_eq!(fake.calls().len(), 6);
}

#[tokio::test]
async fn slow_answer_comes_late_and_a_hanging_one_never() {
    let (fake, caller) = start().await;
    let arn = fake.create_target_group(mk_group("shop"));
    let client = once(&fake.sdk_config(&caller));
    fake.inject(mk_fault(
        Effect::Slow(Duration::from_millis(300)),
        Lasting::Calls(1),
    ));
    let begun = Instant::now();
    assert!(listed(&client, &arn).await.is_empty());
    assert!(begun.elapsed() >= Duration::from_millis(300));
    fake.inject(mk_fault(Effect::Hang, Lasting::Always));
    let describe = client.describe_target_health().target_group_arn(&arn);
    timeout(Duration::from_millis(500), describe.send())
        .await
        .unwrap_err();
    fake.clear_faults();
    assert!(listed(&client, &arn).await.is_empty());
}

#[tokio::test]
async fn fault_strikes_one_caller_and_one_operation_only() {
    let (fake, caller) = start().await;
    let arn = fake.create_target_group(mk_group("shop"));
    let other = Caller::new("controller", ACCOUNT);
    fake.add_caller(other.clone());
    fake.inject(Fault {
        caller: Some("controller".to_owned()),
        ..mk_fault(Effect::Status(503), Lasting::Always)
    });
    assert!(
        listed(&once(&fake.sdk_config(&caller)), &arn)
            .await
            .is_empty()
    );
    let client = once(&fake.sdk_config(&other));
    refused(&client, &arn).await;
    client
        .describe_target_groups()
        .target_group_arns(&arn)
        .send()
        .await
        .unwrap();
}

#[tokio::test]
async fn region_can_go_dark_and_come_back_with_what_it_knew() {
    let (fake, caller) = start().await;
    let arn = fake.create_target_group(mk_group("shop"));
    fake.register(&arn, address("10.0.0.1:80"));
    let client = once(&fake.sdk_config(&caller));
    assert_eq!(listed(&client, &arn).await, ["10.0.0.1:80 healthy"]);
    fake.go_dark().await;
    let error = refused(&client, &arn).await;
    assert!(
        matches!(error, SdkError::DispatchFailure(_)),
        "{}",
        DisplayErrorContext(&error)
    );
    fake.come_back().await.unwrap();
    assert_eq!(listed(&client, &arn).await, ["10.0.0.1:80 healthy"]);
}

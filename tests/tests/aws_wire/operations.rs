//! What each operation of `ELBv2` answers, and with which errors.

use super::*;

#[tokio::test]
async fn target_is_registered_described_and_deregistered() {
    let (fake, caller) = start().await;
    let arn = fake.create_target_group(TargetGroup::alb("shop"));
    let client = once(&fake.sdk_config(&caller));
    assert!(listed(&client, &arn).await.is_empty());
    let call = client.register_targets().target_group_arn(&arn);
    call.targets(target("10.0.0.1", 8080))
        .targets(target("10.0.0.1", 9090))
        .send()
        .await
        .unwrap();
    assert_eq!(
        listed(&client, &arn).await,
        [
            "10.0.0.1:8080 initial Elb.RegistrationInProgress",
            "10.0.0.1:9090 initial Elb.RegistrationInProgress"
        ]
    );
    fake.script(&arn, address("10.0.0.1:9090"), Some(Health::healthy()));
    for _ in 0..2 {
        let call = client.deregister_targets().target_group_arn(&arn);
        call.targets(target("10.0.0.1", 8080)).send().await.unwrap();
    }
    // Nobody has heard of it, which is success, too.
    let call = client.deregister_targets().target_group_arn(&arn);
    call.targets(target("10.9.9.9", 8080)).send().await.unwrap();
    assert_eq!(
        listed(&client, &arn).await,
        [
            "10.0.0.1:8080 draining Target.DeregistrationInProgress",
            "10.0.0.1:9090 healthy"
        ]
    );
    let call = client.describe_target_health().target_group_arn(&arn);
    let call = call
        .targets(target("10.0.0.1", 1))
        .targets(target("10.0.0.1", 9090));
    assert_eq!(
        said(&call.send().await.unwrap()),
        [
            "10.0.0.1:1 unused Target.NotRegistered",
            "10.0.0.1:9090 healthy"
        ]
    );
}

#[tokio::test]
async fn every_state_arrives_as_aws_has_it_also_one_that_nobody_knows() {
    let (fake, caller) = start().await;
    let arn = fake.create_target_group(mk_group("shop"));
    let client = once(&fake.sdk_config(&caller));
    fake.register(&arn, address("10.0.0.1:80"));
    for (state, reason) in [
        ("initial", Some("Elb.InitialHealthChecking")),
        ("healthy", None),
        ("unhealthy", Some("Target.ResponseCodeMismatch")),
        ("unhealthy", Some("Elb.InternalError")),
        ("unhealthy.draining", Some("Target.FailedHealthChecks")),
        ("unavailable", Some("Target.HealthCheckDisabled")),
        ("unused", Some("Target.NotInUse")),
        ("unused", Some("Target.IpUnusable")),
        ("unavailable", Some("Target.NotRegistered")),
        ("perplexed", Some("Target.Confused")),
    ] {
        fake.script(
            &arn,
            address("10.0.0.1:80"),
            Some(Health::new(state, reason)),
        );
        let reason = reason
            .map(|reason| format!(" {reason}"))
            .unwrap_or_default();
        assert_eq!(
            listed(&client, &arn).await,
            [format!("10.0.0.1:80 {state}{reason}")]
        );
    }
    fake.script(&arn, address("10.0.0.1:80"), None);
    assert_eq!(listed(&client, &arn).await, ["10.0.0.1:80 healthy"]);
}

#[tokio::test]
async fn addresses_of_ipv6_are_listed_as_they_were_spelled() {
    let (fake, caller) = start().await;
    let arn = fake.create_target_group(mk_group("shop"));
    let client = once(&fake.sdk_config(&caller));
    let long = "2001:0db8:0000:0000:0000:0000:0000:0001";
    let call = client.register_targets().target_group_arn(&arn);
    call.targets(target(long, 80)).send().await.unwrap();
    assert_eq!(listed(&client, &arn).await, [format!("{long}:80 healthy")]);
    let call = client.describe_target_health().target_group_arn(&arn);
    let answer = call
        .targets(target("2001:db8::1", 80))
        .send()
        .await
        .unwrap();
    assert_eq!(said(&answer), ["2001:db8::1:80 healthy"]);
}

#[tokio::test]
async fn errors_have_aws_codes() {
    let (fake, caller) = start().await;
    let arn = fake.create_target_group(mk_group("shop"));
    let client = once(&fake.sdk_config(&caller));
    let describe = |arn: &str| client.describe_target_health().target_group_arn(arn);
    let none = describe(&format!("{arn}0")).send().await.unwrap_err();
    assert!(
        none.as_service_error()
            .unwrap()
            .is_target_group_not_found_exception()
    );
    let elsewhere = describe(&arn)
        .targets(target("10.0.0.1", 80))
        .targets(target("8.8.8.8", 80));
    let elsewhere = elsewhere.send().await.unwrap_err();
    assert!(
        elsewhere
            .as_service_error()
            .unwrap()
            .is_invalid_target_exception()
    );
    assert_eq!(
        code(&describe("shop").send().await.unwrap_err()),
        "ValidationError"
    );
    let foreign = fake.create_target_group(TargetGroup {
        account: "444455556666".to_owned(),
        ..mk_group("other")
    });
    assert_eq!(
        code(&describe(&foreign).send().await.unwrap_err()),
        "TargetGroupNotFound"
    );
    let many = (0..1001_u16)
        .map(|port| target("10.0.0.1", port + 1))
        .collect();
    let many = client
        .register_targets()
        .target_group_arn(&arn)
        .set_targets(Some(many));
    let many = many.send().await.unwrap_err();
    assert!(
        many.as_service_error()
            .unwrap()
            .is_too_many_targets_exception()
    );
    fake.delete_target_group(&arn);
    assert_eq!(
        code(&describe(&arn).send().await.unwrap_err()),
        "TargetGroupNotFound"
    );
}

#[tokio::test]
async fn target_groups_are_found_by_arn_by_name_and_page_by_page() {
    let (fake, caller) = start().await;
    let client = once(&fake.sdk_config(&caller));
    let arns: Vec<String> = (0..5)
        .map(|number| fake.create_target_group(TargetGroup::nlb(&format!("group-{number}"))))
        .collect();
    let answer = client
        .describe_target_groups()
        .names("group-3")
        .send()
        .await
        .unwrap();
    let [group] = answer.target_groups() else {
        panic!("{answer:?}")
    };
    assert_eq!(group.target_group_arn(), Some(arns[3].as_str()));
    assert_eq!(group.protocol().unwrap().as_str(), "TCP");
    assert_eq!(group.target_type().unwrap().as_str(), "ip");
    assert_eq!(group.health_check_interval_seconds(), Some(10));
    assert_eq!(group.unhealthy_threshold_count(), Some(3));
    assert!(
        group.load_balancer_arns()[0].starts_with(
            "arn:aws:elasticloadbalancing:eu-central-1:111122223333:loadbalancer/net/"
        )
    );
    let answer = client
        .describe_target_groups()
        .target_group_arns(&arns[1])
        .send()
        .await
        .unwrap();
    assert_eq!(
        answer.target_groups()[0].target_group_name(),
        Some("group-1")
    );
    let mut pages = client
        .describe_target_groups()
        .page_size(2)
        .into_paginator()
        .send();
    let mut sizes = Vec::new();
    let mut found = Vec::new();
    while let Some(page) = pages.next().await {
        let page = page.unwrap();
        sizes.push(page.target_groups().len());
        found.extend(
            page.target_groups()
                .iter()
                .filter_map(|group| group.target_group_arn().map(str::to_owned)),
        );
    }
    assert_eq!(sizes, [2, 2, 1]);
    found.sort();
    let mut wanted = arns.clone();
    wanted.sort();
    assert_eq!(found, wanted);
    let none = client
        .describe_target_groups()
        .names("group-9")
        .send()
        .await
        .unwrap_err();
    assert!(
        none.as_service_error()
            .unwrap()
            .is_target_group_not_found_exception()
    );
}

#[tokio::test]
async fn deregistration_delay_is_among_the_attributes() {
    let (fake, caller) = start().await;
    let arn = fake.create_target_group(TargetGroup {
        deregistration_delay: Duration::from_secs(5),
        ..TargetGroup::alb("shop")
    });
    let client = once(&fake.sdk_config(&caller));
    let call = client
        .describe_target_group_attributes()
        .target_group_arn(&arn);
    let answer = call.send().await.unwrap();
    let delay = answer
        .attributes()
        .iter()
        .find(|attribute| attribute.key() == Some("deregistration_delay.timeout_seconds"));
    assert_eq!(delay.unwrap().value(), Some("5"));
}

#[tokio::test]
async fn data_plane_is_told_when_the_api_accepted_and_not_when_it_shows() {
    use tests::aws::Kind::{Deregistered, GroupDeleted, Registered};

    let (fake, caller) = start().await;
    let arn = fake.create_target_group(TargetGroup {
        control_plane_lag: Duration::from_hours(1),
        ..mk_group("shop")
    });
    let client = once(&fake.sdk_config(&caller));
    fake.register(&arn, address("10.0.0.1:80"));
    let mut changes = fake.subscribe(&arn);
    let targets = || target("10.0.0.1", 80);
    client
        .deregister_targets()
        .target_group_arn(&arn)
        .targets(targets())
        .send()
        .await
        .unwrap();
    assert_eq!(listed(&client, &arn).await, ["10.0.0.1:80 healthy"]);
    client
        .register_targets()
        .target_group_arn(&arn)
        .targets(targets())
        .send()
        .await
        .unwrap();
    client
        .register_targets()
        .target_group_arn(&arn)
        .targets(targets())
        .send()
        .await
        .unwrap();
    fake.delete_target_group(&arn);
    let mut told = Vec::new();
    while let Ok(change) = changes.try_recv() {
        told.push((change.target, change.kind));
    }
    let one = Some(address("10.0.0.1:80"));
    assert_eq!(
        told,
        [
            (one, Registered),
            (one, Deregistered),
            (one, Registered),
            (None, GroupDeleted)
        ]
    );
}

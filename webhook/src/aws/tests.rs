//! The real SDK against a server that answers as told.

use tokio::time::Instant;

use self::fake::*;
use super::*;

mod environment;
mod fake;
mod roles;

fn mk_named() -> TargetGroup {
    TargetGroup {
        id: GroupId::Name("web".to_owned()),
        role: None,
    }
}

fn mk_target(ip: &str, port: u16, health: Health) -> Target {
    Target {
        ip: ip.parse().unwrap(),
        port,
        health,
    }
}

#[tokio::test]
async fn whole_group_is_asked_for_by_one_signed_request_in_the_arns_region() {
    let fake = Fake::serve(|_| mk_targets(&[])).await;
    let groups = fake.groups_in(Some("us-east-1"));
    assert_eq!(groups.targets(&mk_group()).await, Ok(vec![]));
    let asked = fake.asked();
    assert_eq!(asked.len(), 1, "{asked:?}");
    assert_eq!(asked[0].action(), "DescribeTargetHealth");
    assert_eq!(asked[0].form["TargetGroupArn"], ARN);
    assert!(asked[0].form.keys().all(|key| !key.starts_with("Targets")));
    let authorization = &asked[0].authorization;
    assert!(
        authorization.contains("/eu-west-1/elasticloadbalancing/aws4_request"),
        "{authorization}"
    );
}

#[tokio::test]
async fn targets_are_read_with_every_state_and_every_port() {
    let fake = Fake::serve(|_| {
        mk_targets(&[
            ("198.18.0.7", "8080", "healthy", ""),
            (
                "198.18.0.7",
                "9090",
                "draining",
                "Target.DeregistrationInProgress",
            ),
            ("198.18.0.8", "8080", "unused", "Target.NotRegistered"),
            ("198.18.0.9", "8080", "unused", "Target.NotInUse"),
            ("2001:DB8:0:0::1", "8080", "unhealthy.draining", ""),
            // Words that this SDK doesn't know.
            ("198.18.0.10", "8080", "resting", "Target.Somehow"),
            ("198.18.0.11", "8080", "resting", "Target.NotRegistered"),
            ("198.18.0.12", "8080", "", ""),
        ])
    })
    .await;
    assert_eq!(
        fake.groups().targets(&mk_group()).await,
        Ok(vec![
            mk_target("198.18.0.7", 8080, Health::Registered),
            mk_target("198.18.0.7", 9090, Health::Draining),
            mk_target("198.18.0.8", 8080, Health::NotRegistered),
            mk_target("198.18.0.9", 8080, Health::Unused),
            mk_target("2001:db8::1", 8080, Health::UnhealthyDraining),
            mk_target("198.18.0.10", 8080, Health::Registered),
            mk_target("198.18.0.11", 8080, Health::NotRegistered),
            mk_target("198.18.0.12", 8080, Health::Registered),
        ])
    );
}

#[tokio::test]
async fn targets_that_are_no_addresses_are_passed_over() {
    let load_balancer = "arn:aws:elasticloadbalancing:eu-west-1:1:loadbalancer/app/x/1";
    let fake = Fake::serve(move |_| {
        mk_targets(&[
            ("i-0123456789abcdef0", "30080", "healthy", ""),
            ("arn:aws:lambda:eu-west-1:1:function:f", "", "healthy", ""),
            (load_balancer, "80", "healthy", ""),
            ("198.18.0.7", "", "healthy", ""),
            ("198.18.0.7", "70000", "healthy", ""),
            ("", "80", "healthy", ""),
            ("198.18.0.8", "80", "healthy", ""),
        ])
    })
    .await;
    assert_eq!(
        fake.groups().targets(&mk_group()).await,
        Ok(vec![mk_target("198.18.0.8", 80, Health::Registered)])
    );
}

#[tokio::test]
async fn each_failure_is_told_apart_after_one_request() {
    let denied =
        "elasticloadbalancing:DescribeTargetHealth (AccessDenied: User: u is not authorized)";
    let wrong = "SignatureDoesNotMatch: the string was: GET /";
    for (answer, expected) in [
        (
            mk_error(
                400,
                "TargetGroupNotFound",
                "One or more target groups not found",
            ),
            Failure::NotFound,
        ),
        (
            mk_error(400, "Throttling", "Rate exceeded"),
            Failure::Throttled,
        ),
        (
            mk_error(400, "ThrottlingException", "Rate exceeded"),
            Failure::Throttled,
        ),
        (
            mk_error(503, "RequestLimitExceeded", "Rate exceeded"),
            Failure::Throttled,
        ),
        (
            mk_error(400, "TooManyRequestsException", "slower"),
            Failure::Throttled,
        ),
        (mk_error(429, "Whatever", "slower"), Failure::Throttled),
        (Answer::Now(429, String::new()), Failure::Throttled),
        (
            mk_error(403, "AccessDenied", "User: u is not authorized"),
            Failure::Denied(denied.to_owned()),
        ),
        (
            mk_error(403, "AccessDeniedException", "no"),
            Failure::Denied(
                "elasticloadbalancing:DescribeTargetHealth (AccessDeniedException: no)".to_owned(),
            ),
        ),
        (
            mk_error(403, "UnauthorizedOperation", "no"),
            Failure::Denied(
                "elasticloadbalancing:DescribeTargetHealth (UnauthorizedOperation: no)".to_owned(),
            ),
        ),
        (
            mk_error(403, "ExpiredToken", "The security token is expired"),
            Failure::Credentials("ExpiredToken: The security token is expired".to_owned()),
        ),
        (
            mk_error(403, "InvalidClientTokenId", "invalid"),
            Failure::Credentials("InvalidClientTokenId: invalid".to_owned()),
        ),
        (
            mk_error(403, "SignatureDoesNotMatch", "the string was:\n\nGET\n/"),
            Failure::Credentials(wrong.to_owned()),
        ),
        (
            mk_error(500, "InternalFailure", "sorry"),
            Failure::Unavailable("InternalFailure: sorry".to_owned()),
        ),
        (
            mk_error(400, "HealthUnavailable", "later"),
            Failure::Unavailable("HealthUnavailable: later".to_owned()),
        ),
    ] {
        let given = answer.clone();
        let fake = Fake::serve(move |_| answer.clone()).await;
        let failure = fake.groups().targets(&mk_group()).await;
        assert_eq!(failure, Err(expected), "{given:?}");
        assert_eq!(fake.actions(), ["DescribeTargetHealth"]);
    }
}

/// An answer that can't be read must never pass for a group without targets.
#[tokio::test]
async fn answer_that_cannot_be_read_is_no_empty_group() {
    let whole = mk_targets(&[("198.18.0.7", "8080", "healthy", "")]).body();
    for body in [
        String::new(),
        "<html>captive portal</html>".to_owned(),
        whole[..whole.len() / 2].to_owned(),
        mk_answer("DescribeTargetHealth", "").body(),
        mk_answer("DescribeTargetGroups", "<TargetGroups/>").body(),
    ] {
        let given = body.clone();
        let fake = Fake::serve(move |_| Answer::Now(200, body.clone())).await;
        let result = fake.groups().targets(&mk_group()).await;
        assert!(
            matches!(result, Err(Failure::Unavailable(_))),
            "{given}: {result:?}"
        );
        assert_eq!(fake.actions().len(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn answer_that_does_not_come_is_given_up_after_five_seconds() {
    let fake = Fake::serve(|_| Answer::Never).await;
    let groups = fake.groups();
    let began = Instant::now();
    assert_eq!(
        groups.targets(&mk_group()).await,
        Err(Failure::Unavailable(
            "AWS gave no answer within 5 s".to_owned()
        ))
    );
    assert_eq!(began.elapsed().as_secs(), 5);
}

#[tokio::test]
async fn endpoint_that_nobody_serves_is_unavailable_with_its_cause() {
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mut fake = Fake::serve(|_| Answer::Never).await;
    fake.url = format!("http://{}", port.local_addr().unwrap());
    drop(port);
    let failure = fake.groups().targets(&mk_group()).await.unwrap_err();
    assert!(
        matches!(&failure, Failure::Unavailable(text) if text.contains("Connection refused")),
        "{failure:?}"
    );
}

#[tokio::test]
async fn details_tell_what_no_binding_says() {
    let described = format!(
        "<TargetGroups><member><TargetGroupArn>{ARN}</TargetGroupArn><Protocol>HTTPS</Protocol>\
         <HealthCheckEnabled>true</HealthCheckEnabled><HealthCheckIntervalSeconds>15</HealthCheckIntervalSeconds>\
         <HealthCheckPort>traffic-port</HealthCheckPort></member></TargetGroups>"
    );
    let fake = Fake::serve(move |_| mk_answer("DescribeTargetGroups", &described)).await;
    assert_eq!(
        fake.groups().details(&mk_group()).await,
        Ok(GroupDetails {
            arn: ARN.to_owned(),
            family: Some(Family::Alb),
            health_check_interval_seconds: Some(15),
            health_check_port: None,
        })
    );
    let asked = fake.asked();
    assert_eq!(asked.len(), 1);
    assert_eq!(asked[0].form["TargetGroupArns.member.1"], ARN);
}

#[tokio::test]
async fn named_group_is_asked_for_by_the_arn_that_its_details_told() {
    let described = format!(
        "<TargetGroups><member><TargetGroupArn>{ARN}</TargetGroupArn><Protocol>TCP</Protocol>\
         <HealthCheckEnabled>false</HealthCheckEnabled><HealthCheckIntervalSeconds>30</HealthCheckIntervalSeconds>\
         <HealthCheckPort>9000</HealthCheckPort></member></TargetGroups>"
    );
    let fake = Fake::serve(move |asked| match asked.action() {
        "DescribeTargetGroups" => mk_answer("DescribeTargetGroups", &described),
        _ => mk_targets(&[]),
    })
    .await;
    let groups = fake.groups_in(Some("eu-north-1"));
    let early = groups.targets(&mk_named()).await;
    assert!(matches!(early, Err(Failure::Unavailable(_))), "{early:?}");
    assert_eq!(fake.actions(), Vec::<String>::new());
    assert_eq!(
        groups.details(&mk_named()).await,
        Ok(GroupDetails {
            arn: ARN.to_owned(),
            family: Some(Family::Nlb),
            health_check_interval_seconds: None,
            health_check_port: Some(9000),
        })
    );
    assert_eq!(groups.targets(&mk_named()).await, Ok(vec![]));
    let asked = fake.asked();
    assert_eq!(asked.len(), 2);
    assert_eq!(asked[0].form["Names.member.1"], "web");
    assert!(asked[0].authorization.contains("/eu-north-1/"));
    assert_eq!(asked[1].form["TargetGroupArn"], ARN);
}

#[tokio::test]
async fn name_that_is_gone_is_forgotten() {
    let described = format!(
        "<TargetGroups><member><TargetGroupArn>{ARN}</TargetGroupArn></member></TargetGroups>"
    );
    let is_there = std::sync::atomic::AtomicBool::new(true);
    let fake = Fake::serve(move |_| {
        if is_there.swap(false, std::sync::atomic::Ordering::Relaxed) {
            mk_answer("DescribeTargetGroups", &described)
        } else {
            mk_error(400, "TargetGroupNotFound", "gone")
        }
    })
    .await;
    let groups = fake.groups_in(Some("eu-north-1"));
    assert!(groups.details(&mk_named()).await.is_ok());
    assert_eq!(groups.details(&mk_named()).await, Err(Failure::NotFound));
    assert_eq!(groups.arn(&mk_named()), None);
}

#[tokio::test]
async fn denied_details_name_their_own_permission() {
    let fake = Fake::serve(|_| mk_error(403, "AccessDenied", "no")).await;
    assert_eq!(
        fake.groups().details(&mk_group()).await,
        Err(Failure::Denied(
            "elasticloadbalancing:DescribeTargetGroups (AccessDenied: no)".to_owned()
        ))
    );
}

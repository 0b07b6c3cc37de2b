//! Roles of other accounts.

use super::fake::*;
use crate::confirmer::target_group::{AskTargetGroups as _, Failure, Role, TargetGroup};

const READER: &str = "arn:aws:iam::444455556666:role/reader";

fn mk_foreign(external_id: Option<&str>) -> TargetGroup {
    TargetGroup {
        role: Some(Role {
            arn: READER.to_owned(),
            external_id: external_id.map(str::to_owned),
        }),
        ..mk_group()
    }
}

#[tokio::test]
async fn role_is_assumed_once_with_its_external_id_and_its_key_signs() {
    let fake = Fake::serve(|asked| match asked.action() {
        "AssumeRole" => mk_assumed("AssumeRole", "ROLEKEY"),
        _ => mk_targets(&[]),
    })
    .await;
    let (groups, group) = (fake.groups(), mk_foreign(Some("shop-42")));
    assert_eq!(groups.targets(&group).await, Ok(vec![]));
    assert_eq!(groups.targets(&group).await, Ok(vec![]));
    assert_eq!(
        fake.actions(),
        ["AssumeRole", "DescribeTargetHealth", "DescribeTargetHealth"]
    );
    let asked = fake.asked();
    assert!(asked[0].authorization.contains("Credential=OWNKEY/"));
    for (key, value) in [
        ("RoleArn", READER),
        ("RoleSessionName", "prestop-gate"),
        ("ExternalId", "shop-42"),
    ] {
        assert_eq!(asked[0].form.get(key).map(String::as_str), Some(value));
    }
    for asked in &asked[1..] {
        assert!(
            asked.authorization.contains("Credential=ROLEKEY/"),
            "{asked:?}"
        );
    }
}

#[tokio::test]
async fn groups_without_a_role_and_with_another_external_id_have_keys_of_their_own() {
    let fake = Fake::serve(|asked| match asked.form.get("ExternalId") {
        Some(id) => mk_assumed("AssumeRole", &format!("KEY{id}")),
        None if asked.action() == "AssumeRole" => mk_assumed("AssumeRole", "KEY"),
        None => mk_targets(&[]),
    })
    .await;
    let groups = fake.groups();
    for group in [
        mk_foreign(Some("1")),
        mk_foreign(Some("2")),
        mk_foreign(None),
        mk_group(),
    ] {
        assert_eq!(groups.targets(&group).await, Ok(vec![]));
    }
    let keys: Vec<_> = fake
        .asked()
        .iter()
        .filter(|asked| asked.action() == "DescribeTargetHealth")
        .map(|asked| {
            let credential = asked.authorization.split("Credential=").nth(1).unwrap();
            credential.split('/').next().unwrap().to_owned()
        })
        .collect();
    assert_eq!(keys, ["KEY1", "KEY2", "KEY", "OWNKEY"]);
}

#[tokio::test]
async fn role_that_may_not_be_assumed_is_named_and_the_group_is_not_asked() {
    let fake = Fake::serve(|_| mk_error(403, "AccessDenied", "User: x is not authorized")).await;
    let failure = fake.groups().targets(&mk_foreign(None)).await.unwrap_err();
    assert_eq!(
        failure,
        Failure::Denied(
            "sts:AssumeRole on arn:aws:iam::444455556666:role/reader (AccessDenied: User: x is not authorized)"
                .to_owned()
        )
    );
    assert_eq!(fake.actions(), ["AssumeRole"]);
}

#[tokio::test]
async fn trouble_at_sts_is_told_apart() {
    let is = |failure: &Failure, name: &str| format!("{failure:?}").starts_with(name);
    for (answer, expected) in [
        (mk_error(400, "Throttling", "Rate exceeded"), "Throttled"),
        (mk_error(403, "ExpiredToken", "expired"), "Credentials"),
        (mk_error(400, "ValidationError", "bad role"), "Credentials"),
        (mk_error(503, "ServiceUnavailable", "busy"), "Unavailable"),
        (Answer::Now(200, "<html>".to_owned()), "Unavailable"),
    ] {
        let given = answer.clone();
        let fake = Fake::serve(move |_| answer.clone()).await;
        let failure = fake.groups().targets(&mk_foreign(None)).await.unwrap_err();
        assert!(is(&failure, expected), "{given:?} is {failure:?}");
        assert_eq!(fake.actions(), ["AssumeRole"]);
    }
}

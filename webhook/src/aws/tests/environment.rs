//! What the SDK takes from the environment. That is a process's own, so each test asks in another process: this test
//! program again, with the one test that is ignored otherwise.

use std::collections::HashMap;
use std::process::Stdio;

use tokio::process::Command;

use super::fake::*;
use crate::aws::AwsTargetGroups;
use crate::confirmer::target_group::{AskTargetGroups as _, GroupId, TargetGroup};

const KEYS: &str = r#"{"Code": "Success", "Type": "AWS-HMAC", "AccessKeyId": "GIVENKEY", "SecretAccessKey": "secret",
    "Token": "token", "Expiration": "2999-01-01T00:00:00Z", "LastUpdated": "2020-01-01T00:00:00Z"}"#;

/// What every process of these tests begins with.
fn mk_environment(fake: &Fake) -> HashMap<&'static str, String> {
    [
        ("AWS_ENDPOINT_URL", fake.url.clone()),
        ("AWS_EC2_METADATA_DISABLED", "true".to_owned()),
        ("HOME", "/nonexistent".to_owned()),
    ]
    .into()
}

fn mk_group_answer(asked: &Asked) -> Answer {
    let group = format!(
        "<TargetGroups><member><TargetGroupArn>{ARN}</TargetGroupArn><Protocol>TCP</Protocol></member></TargetGroups>"
    );
    match asked.action() {
        "DescribeTargetGroups" => mk_answer("DescribeTargetGroups", &group),
        action => panic!("unexpected {action}"),
    }
}

/// Asks for the group named `web` in a process with this environment; what it printed.
async fn ask_with(environment: HashMap<&'static str, String>) -> String {
    let output = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "aws::tests::environment::asks_by_its_environment",
        ])
        .args(["--ignored", "--nocapture"])
        .env_clear()
        .envs(environment)
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output()
        .await
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[tokio::test]
#[ignore = "the other tests run it, each with an environment of its own"]
async fn asks_by_its_environment() {
    let group = TargetGroup {
        id: GroupId::Name("web".to_owned()),
        role: None,
    };
    println!(
        "{:?}",
        AwsTargetGroups::from_environment().details(&group).await
    );
}

#[tokio::test]
async fn keys_region_and_endpoint_are_taken_from_variables() {
    let fake = Fake::serve(mk_group_answer).await;
    let mut environment = mk_environment(&fake);
    let url = environment.remove("AWS_ENDPOINT_URL").unwrap();
    environment.insert("AWS_ENDPOINT_URL_ELASTIC_LOAD_BALANCING_V2", url);
    environment.insert("AWS_REGION", "ap-south-1".to_owned());
    environment.insert("AWS_ACCESS_KEY_ID", "ENVKEY".to_owned());
    environment.insert("AWS_SECRET_ACCESS_KEY", "secret".to_owned());
    let printed = ask_with(environment).await;
    assert!(printed.contains("family: Some(Nlb)"), "{printed}");
    let asked = fake.asked();
    assert_eq!(asked.len(), 1, "{asked:?}");
    let authorization = &asked[0].authorization;
    assert!(
        authorization.contains("Credential=ENVKEY/"),
        "{authorization}"
    );
    assert!(
        authorization.contains("/ap-south-1/elasticloadbalancing/"),
        "{authorization}"
    );
}

#[tokio::test]
async fn irsa_exchanges_the_service_accounts_token() {
    let fake = Fake::serve(|asked| match asked.action() {
        "AssumeRoleWithWebIdentity" => mk_assumed("AssumeRoleWithWebIdentity", "WEBKEY"),
        _ => mk_group_answer(asked),
    })
    .await;
    let token = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(&token, "the-token").unwrap();
    let mut environment = mk_environment(&fake);
    let role = "arn:aws:iam::111122223333:role/prestop-gate";
    environment.insert("AWS_REGION", "eu-west-1".to_owned());
    environment.insert("AWS_ROLE_ARN", role.to_owned());
    environment.insert(
        "AWS_WEB_IDENTITY_TOKEN_FILE",
        token.path().display().to_string(),
    );
    let printed = ask_with(environment).await;
    assert!(printed.contains("Ok(GroupDetails"), "{printed}");
    let asked = fake.asked();
    assert_eq!(
        fake.actions(),
        ["AssumeRoleWithWebIdentity", "DescribeTargetGroups"]
    );
    assert_eq!(asked[0].form["WebIdentityToken"], "the-token");
    assert_eq!(asked[0].form["RoleArn"], role);
    assert!(asked[1].authorization.contains("Credential=WEBKEY/"));
}

#[tokio::test]
async fn trust_policy_that_refuses_the_service_account_is_named() {
    let denied = "Not authorized to perform sts:AssumeRoleWithWebIdentity";
    let fake = Fake::serve(move |_| mk_error(403, "AccessDenied", denied)).await;
    let token = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(&token, "the-token").unwrap();
    let mut environment = mk_environment(&fake);
    environment.insert("AWS_REGION", "eu-west-1".to_owned());
    environment.insert("AWS_ROLE_ARN", "arn:aws:iam::1:role/x".to_owned());
    environment.insert(
        "AWS_WEB_IDENTITY_TOKEN_FILE",
        token.path().display().to_string(),
    );
    let printed = ask_with(environment).await;
    assert!(
        printed.contains("Err(Denied(\"sts:AssumeRoleWithWebIdentity, in the trust policy"),
        "{printed}"
    );
}

#[tokio::test]
async fn pod_identitys_agent_gives_keys() {
    let fake = Fake::serve(|asked| match asked.path.as_str() {
        "/v1/credentials" => Answer::Now(200, KEYS.to_owned()),
        _ => mk_group_answer(asked),
    })
    .await;
    let token = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(&token, "the-token").unwrap();
    let mut environment = mk_environment(&fake);
    environment.insert("AWS_REGION", "eu-west-1".to_owned());
    environment.insert(
        "AWS_CONTAINER_CREDENTIALS_FULL_URI",
        format!("{}/v1/credentials", fake.url),
    );
    environment.insert(
        "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE",
        token.path().display().to_string(),
    );
    let printed = ask_with(environment).await;
    assert!(printed.contains("Ok(GroupDetails"), "{printed}");
    let asked = fake.asked();
    assert_eq!(asked[0].authorization, "the-token");
    assert!(asked[1].authorization.contains("Credential=GIVENKEY/"));
}

#[tokio::test]
async fn node_gives_its_role_and_region() {
    let fake = Fake::serve(|asked| {
        let path = asked.path.as_str();
        let text = match path {
            "/latest/api/token" => "imds-token",
            "/latest/meta-data/placement/region" => "us-west-2",
            _ if path.ends_with("/node-role") => KEYS,
            _ if path.contains("/iam/security-credentials") => "node-role",
            _ => return mk_group_answer(asked),
        };
        Answer::Now(200, text.to_owned())
    })
    .await;
    let mut environment = mk_environment(&fake);
    environment.remove("AWS_EC2_METADATA_DISABLED");
    environment.insert("AWS_EC2_METADATA_SERVICE_ENDPOINT", fake.url.clone());
    let printed = ask_with(environment).await;
    assert!(printed.contains("Ok(GroupDetails"), "{printed}");
    let asked = fake.asked();
    let authorization = &asked.last().unwrap().authorization;
    assert!(
        authorization.contains("Credential=GIVENKEY/") && authorization.contains("/us-west-2/"),
        "{authorization}"
    );
}

#[tokio::test]
async fn missing_region_and_missing_credentials_say_what_to_set() {
    let fake = Fake::serve(|asked| panic!("unexpected {asked:?}")).await;
    let mut environment = mk_environment(&fake);
    let printed = ask_with(environment.clone()).await;
    assert!(
        printed.contains("Err(Unavailable(\"no AWS region is known: set AWS_REGION"),
        "{printed}"
    );
    environment.insert("AWS_REGION", "eu-west-1".to_owned());
    let printed = ask_with(environment).await;
    assert!(
        printed.contains("Err(Credentials(\"there are none: give"),
        "{printed}"
    );
    assert_eq!(fake.actions(), Vec::<String>::new());
}

#[tokio::test]
async fn fips_with_an_endpoint_of_ones_own_is_refused_by_the_sdk() {
    let fake = Fake::serve(mk_group_answer).await;
    let mut environment = mk_environment(&fake);
    environment.insert("AWS_REGION", "us-east-1".to_owned());
    environment.insert("AWS_ACCESS_KEY_ID", "ENVKEY".to_owned());
    environment.insert("AWS_SECRET_ACCESS_KEY", "secret".to_owned());
    environment.insert("AWS_USE_FIPS_ENDPOINT", "true".to_owned());
    let printed = ask_with(environment).await;
    assert!(
        printed.contains("Unavailable") && printed.contains("FIPS and custom endpoint"),
        "{printed}"
    );
}

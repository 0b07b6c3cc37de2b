//! Keys, permissions, and roles by way of STS.

use aws_config::sts::AssumeRoleProvider;
use aws_credential_types::provider::SharedCredentialsProvider;
use tests::aws::Role;

use super::*;

const OTHER_ACCOUNT: &str = "444455556666";

fn mk_role() -> Role {
    Role {
        external_id: Some("secret".to_owned()),
        ..Role::new("reader", OTHER_ACCOUNT)
    }
}

async fn assuming(config: &SdkConfig, role: &str, external_id: &str) -> SdkConfig {
    let provider = AssumeRoleProvider::builder(role).configure(config);
    let provider = provider
        .session_name("confirmer")
        .external_id(external_id)
        .build()
        .await;
    config
        .to_builder()
        .credentials_provider(SharedCredentialsProvider::new(provider))
        .build()
}

#[tokio::test]
async fn keys_that_nobody_knows_and_other_regions_are_refused() {
    let (fake, caller) = start().await;
    let arn = fake.create_target_group(mk_group("shop"));
    let stranger = fake.sdk_config(&Caller::new("stranger", ACCOUNT));
    let elsewhere = fake
        .sdk_config(&caller)
        .to_builder()
        .region(aws_config::Region::new("us-east-1"))
        .build();
    for (config, wanted) in [
        (stranger, "InvalidClientTokenId"),
        (elsewhere, "SignatureDoesNotMatch"),
    ] {
        let call = once(&config)
            .describe_target_health()
            .target_group_arn(&arn);
        let error = call.send().await.unwrap_err();
        assert_eq!(code(&error), wanted);
        assert_eq!(error.raw_response().unwrap().status().as_u16(), 403);
    }
}

#[tokio::test]
async fn missing_permission_names_user_and_action() {
    let (fake, caller) = start().await;
    let arn = fake.create_target_group(mk_group("shop"));
    let client = once(&fake.sdk_config(&caller));
    fake.deny("confirmer", MAY_DESCRIBE_HEALTH);
    let error = refused(&client, &arn).await;
    assert_eq!(code(&error), "AccessDenied");
    let wanted = "User: arn:aws:iam::111122223333:user/confirmer is not authorized to perform: elasticloadbalancing:DescribeTargetHealth";
    let message = error.message().unwrap();
    assert!(message.starts_with(wanted), "{message}");
    fake.allow("confirmer", MAY_DESCRIBE_HEALTH);
    assert!(listed(&client, &arn).await.is_empty());
}

#[tokio::test]
async fn role_of_another_account_sees_that_account_and_needs_the_external_id() {
    let (fake, caller) = start().await;
    let config = fake.sdk_config(&caller);
    let role = fake.add_role(mk_role());
    let arn = fake.create_target_group(TargetGroup {
        account: OTHER_ACCOUNT.to_owned(),
        ..mk_group("shop")
    });
    let client = once(&assuming(&config, &role, "secret").await);
    assert!(listed(&client, &arn).await.is_empty());
    assert_eq!(fake.calls().last().unwrap().caller, "reader");
    let client = once(&assuming(&config, &role, "guess").await);
    let error = refused(&client, &arn).await;
    let text = DisplayErrorContext(&error).to_string();
    assert!(
        text.contains("AccessDenied") && text.contains("sts:AssumeRole on resource"),
        "{text}"
    );
}

#[tokio::test]
async fn temporary_credentials_expire_and_new_ones_work() {
    let (fake, caller) = start().await;
    let config = fake.sdk_config(&caller);
    let role = fake.add_role(mk_role());
    let arn = fake.create_target_group(TargetGroup {
        account: OTHER_ACCOUNT.to_owned(),
        ..mk_group("shop")
    });
    let client = once(&assuming(&config, &role, "secret").await);
    assert!(listed(&client, &arn).await.is_empty());
    fake.expire_credentials("reader");
    let error = refused(&client, &arn).await;
    assert_eq!(code(&error), "ExpiredToken");
    let client = once(&assuming(&config, &role, "secret").await);
    assert!(listed(&client, &arn).await.is_empty());
}

//! Programs that know nothing of this project: boto3 as a client, moto as a server.

use std::path::PathBuf;
use std::process::Stdio;

use aws_credential_types::Credentials;
use aws_credential_types::provider::SharedCredentialsProvider;
use elbv2::types::{ProtocolEnum, TargetTypeEnum};
use tests::layout::workspace;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::time::timeout;

use super::*;

/// What boto3 is made to call; it prints one line for each answer.
const BOTO: &str = r#"
import sys, boto3
from botocore.config import Config
from botocore.exceptions import ClientError

url, key, secret, group, role = sys.argv[1:6]
session = boto3.session.Session(key, secret, region_name="eu-central-1")
options = dict(endpoint_url=url, config=Config(retries={"total_max_attempts": 1}))
elb = session.client("elbv2", **options)
target = {"Id": "10.0.0.1", "Port": 8080}

def health(client, **arguments):
    answer = client.describe_target_health(TargetGroupArn=group, **arguments)["TargetHealthDescriptions"]
    return [(d["Target"]["Id"], d["Target"]["Port"], d["TargetHealth"]["State"], d["TargetHealth"].get("Reason")) for d in answer]

def refused(call, **arguments):
    try:
        call(**arguments)
    except ClientError as error:
        return error.response["ResponseMetadata"]["HTTPStatusCode"], error.response["Error"]["Code"]

print(elb.register_targets(TargetGroupArn=group, Targets=[target])["ResponseMetadata"]["HTTPStatusCode"])
print(health(elb))
elb.deregister_targets(TargetGroupArn=group, Targets=[target])
print(health(elb, Targets=[target, {"Id": "10.0.0.2", "Port": 1}]))
print([g["TargetGroupName"] for p in elb.get_paginator("describe_target_groups").paginate(PaginationConfig={"PageSize": 1}) for g in p["TargetGroups"]])
attributes = elb.describe_target_group_attributes(TargetGroupArn=group)["Attributes"]
print({a["Key"]: a["Value"] for a in attributes}["deregistration_delay.timeout_seconds"])
print(refused(elb.describe_target_health, TargetGroupArn=group + "0"))
print(refused(elb.register_targets, TargetGroupArn=group, Targets=[{"Id": "8.8.8.8", "Port": 80}]))
sts = session.client("sts", **options)
print(sts.get_caller_identity()["Arn"])
keys = sts.assume_role(RoleArn=role, RoleSessionName="session", ExternalId="secret")["Credentials"]
print(refused(sts.assume_role, RoleArn=role, RoleSessionName="session"))
keys = boto3.session.Session(keys["AccessKeyId"], keys["SecretAccessKey"], keys["SessionToken"], region_name="eu-central-1")
print(keys.client("sts", **options).get_caller_identity()["Arn"])
web = sts.assume_role_with_web_identity(RoleArn=role, RoleSessionName="web-session", WebIdentityToken="token")
print(web["AssumedRoleUser"]["Arn"])
print(refused(sts.assume_role_with_web_identity, RoleArn=role, RoleSessionName="web-session", WebIdentityToken="other"))
ec2 = session.client("ec2", **options)
print([v["CidrBlock"] for v in ec2.describe_vpcs()["Vpcs"]])
print(refused(ec2.describe_vpcs, VpcIds=["vpc-0"]))
print([g["GroupId"] for g in ec2.describe_security_groups(GroupIds=["sg-1", "sg-2"])["SecurityGroups"]])
"#;

const BOTO_SAYS: &str = "200
[('10.0.0.1', 8080, 'healthy', None)]
[('10.0.0.1', 8080, 'draining', 'Target.DeregistrationInProgress'), ('10.0.0.2', 1, 'unused', 'Target.NotRegistered')]
['more', 'shop']
300
(400, 'TargetGroupNotFound')
(400, 'InvalidTarget')
arn:aws:iam::111122223333:user/confirmer
(403, 'AccessDenied')
arn:aws:sts::111122223333:assumed-role/reader/session
arn:aws:sts::111122223333:assumed-role/reader/web-session
(400, 'InvalidIdentityToken')
['198.18.0.0/15']
(400, 'InvalidVpcID.NotFound')
['sg-1', 'sg-2']
";

/// Prints the VPC that moto begins with.
const FIND_VPC: &str = r#"
import sys, boto3
ec2 = boto3.client("ec2", "eu-central-1", endpoint_url=sys.argv[1], aws_access_key_id="key", aws_secret_access_key="secret")
print(ec2.describe_vpcs()["Vpcs"][0]["VpcId"])
"#;

fn python(program: &str) -> Command {
    let path: PathBuf = workspace().join("target/tools/aws-venv/bin").join(program);
    assert!(
        path.exists(),
        "{} is missing: run `make aws-python`",
        path.display()
    );
    let mut command = Command::new("setpriv");
    command
        .args(["--pdeathsig", "KILL", "--"])
        .arg(path)
        .kill_on_drop(true);
    command
        .env("AWS_EC2_METADATA_DISABLED", "true")
        .stdin(Stdio::null());
    command
}

#[tokio::test]
async fn boto3_understands_every_service_of_the_fake() {
    let (fake, caller) = start().await;
    let arn = fake.create_target_group(mk_group("shop"));
    fake.create_target_group(mk_group("more"));
    let role = fake.add_role(tests::aws::Role {
        external_id: Some("secret".to_owned()),
        web_identity_token: Some("token".to_owned()),
        ..tests::aws::Role::new("reader", ACCOUNT)
    });
    let said = python("python")
        .args([
            "-c",
            BOTO,
            &fake.url(),
            &caller.access_key,
            &caller.secret_key,
            &arn,
            &role,
        ])
        .output();
    let said = timeout(Duration::from_mins(1), said)
        .await
        .unwrap()
        .unwrap();
    let (out, err) = (
        String::from_utf8_lossy(&said.stdout),
        String::from_utf8_lossy(&said.stderr),
    );
    assert_eq!(out, BOTO_SAYS, "{err}");
}

/// moto on a port that it chose; it ends when the handle is dropped.
async fn moto() -> (Child, String) {
    let mut child = python("moto_server")
        .args(["-H", "127.0.0.1", "-p", "0"])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let url = async {
        while let Some(line) = lines.next_line().await.unwrap() {
            if let Some((_, url)) = line.split_once("Running on ") {
                return Some(url.trim().to_owned());
            }
        }
        None
    };
    let url = timeout(Duration::from_mins(1), url).await.unwrap();
    let url = url.expect("moto must say where it runs");
    // It goes on writing, and must not find the pipe closed.
    tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
    (child, url)
}

#[tokio::test]
async fn moto_understands_what_the_sdk_sends() {
    let (_moto, url) = moto().await;
    let found = python("python").args(["-c", FIND_VPC, &url]).output();
    let found = timeout(Duration::from_mins(1), found)
        .await
        .unwrap()
        .unwrap();
    let vpc = String::from_utf8(found.stdout).unwrap();
    let (fake, caller) = start().await;
    let keys = Credentials::new("AKIA0000000000000000", "secret", None, None, "tests");
    let config = fake.sdk_config(&caller).to_builder().endpoint_url(url);
    let config = config
        .credentials_provider(SharedCredentialsProvider::new(keys))
        .build();
    let client = once(&config);
    let call = client
        .create_target_group()
        .name("shop")
        .protocol(ProtocolEnum::Http)
        .port(80);
    let made = call
        .vpc_id(vpc.trim())
        .target_type(TargetTypeEnum::Ip)
        .send()
        .await
        .unwrap();
    let arn = made.target_groups()[0].target_group_arn().unwrap();
    assert!(listed(&client, arn).await.is_empty());
    let call = client.register_targets().target_group_arn(arn);
    call.targets(target("10.0.0.1", 8080)).send().await.unwrap();
    assert_eq!(listed(&client, arn).await, ["10.0.0.1:8080 healthy"]);
    let call = client.deregister_targets().target_group_arn(arn);
    call.targets(target("10.0.0.1", 8080)).send().await.unwrap();
    assert!(listed(&client, arn).await.is_empty());
    let call = client.describe_target_health().target_group_arn(arn);
    let answer = call
        .targets(target("10.0.0.1", 8080))
        .targets(target("10.0.0.9", 8080));
    // moto has a state of its own for a target that was never registered; the reason must win over it.
    assert_eq!(
        said(&answer.send().await.unwrap()),
        [
            "10.0.0.1:8080 unused Target.NotRegistered",
            "10.0.0.9:8080 unavailable Target.NotRegistered"
        ]
    );
    let none = client
        .describe_target_health()
        .target_group_arn(format!("{arn}0"));
    let none = none.send().await.unwrap_err();
    assert!(
        none.as_service_error()
            .unwrap()
            .is_target_group_not_found_exception()
    );
}

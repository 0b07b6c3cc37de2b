//! The overlays, as an operator applies them.
#![allow(clippy::unwrap_used, reason = "a test that fails shows where")]

use std::fs;

use tests::gate::cluster;
use tests::layout::workspace;
use tests::process;

/// A dry run: the API server checks every object, and nothing changes for the other tests.
#[tokio::test]
async fn overlays_for_aws_are_accepted_and_keep_the_base() {
    let cluster = cluster().await.unwrap();
    for (overlay, expected) in [
        ("aws", "name: prestop-gate"),
        ("aws/pod-identity", "name: prestop-gate"),
        ("aws/irsa", "eks.amazonaws.com/role-arn: arn:aws:iam::"),
    ] {
        let folder = workspace().join("manifests/overlays").join(overlay);
        let applied = process::output(
            cluster
                .kubectl()
                .args(["apply", "--dry-run=server", "--output=yaml", "-k"])
                .arg(folder),
        )
        .unwrap();
        assert!(applied.contains(expected), "{overlay}: {applied}");
        // The webhook writes this image into pods.
        let waiter = tests::images::reference("waiter");
        assert!(
            applied.contains(&format!("value: {waiter}")),
            "{overlay}: {applied}"
        );
    }
}

#[test]
fn policies_are_json_and_allow_no_more_than_reading() {
    let folder = workspace().join("manifests/overlays/aws/iam");
    let mut actions = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let text = fs::read_to_string(entry.unwrap().path()).unwrap();
        let policy: serde_json::Value = serde_json::from_str(&text).unwrap();
        let action = &policy["Statement"][0]["Action"];
        match action.as_array() {
            Some(several) => actions.extend(several.clone()),
            None => actions.push(action.clone()),
        }
    }
    actions.sort_by_key(ToString::to_string);
    actions.dedup();
    assert_eq!(
        actions,
        [
            "elasticloadbalancing:DescribeTargetGroups",
            "elasticloadbalancing:DescribeTargetHealth",
            "sts:AssumeRole",
            "sts:AssumeRoleWithWebIdentity",
            "sts:TagSession",
        ]
    );
}

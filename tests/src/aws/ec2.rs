//! The two operations of EC2 (API version 2016-11-15) that an ip-mode binding's controller calls, with
//! what is needed to be valid.

use serde::Serialize;

use super::api::Api;
use super::failure::Failure;
use super::identity::Identity;
use super::request::Params;
use super::xml::{Items, ec2_namespace, plain};

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Vpcs<'a> {
    #[serde(rename = "@xmlns")]
    xmlns: &'static str,
    request_id: &'a str,
    vpc_set: Items<VpcXml<'a>>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct VpcXml<'a> {
    vpc_id: &'a str,
    owner_id: &'a str,
    state: &'static str,
    cidr_block: String,
    is_default: bool,
    cidr_block_association_set: Items<Association>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Association {
    #[serde(rename = "associationId")]
    id: String,
    cidr_block: String,
    cidr_block_state: StateXml,
}

#[derive(Debug, Serialize)]
struct StateXml {
    state: &'static str,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct SecurityGroups<'a> {
    #[serde(rename = "@xmlns")]
    xmlns: &'static str,
    request_id: &'a str,
    security_group_info: Items<SecurityGroup<'a>>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct SecurityGroup<'a> {
    owner_id: &'a str,
    group_id: String,
    group_name: String,
    group_description: &'static str,
    vpc_id: String,
    ip_permissions: Items<String>,
    ip_permissions_egress: Items<String>,
}

pub(super) fn call(
    api: &Api,
    operation: &str,
    caller: &Identity,
    params: &Params,
    request_id: &str,
) -> Result<String, Failure> {
    match operation {
        "DescribeVpcs" => Ok(plain(operation, &vpcs(api, caller, params, request_id)?)),
        "DescribeSecurityGroups" => Ok(plain(
            operation,
            &security_groups(api, caller, params, request_id),
        )),
        _ => Err(Failure::new(
            400,
            "InvalidAction",
            format!("The action {operation} is not valid for this web service."),
        )),
    }
}

/// `VpcId.1`, `VpcId.2`, …: EC2 counts without `member`.
fn wanted<'a>(params: &'a Params, name: &str) -> Vec<&'a str> {
    (1..)
        .map_while(|index| params.get(&format!("{name}.{index}")))
        .collect()
}

fn vpcs<'a>(
    api: &'a Api,
    caller: &'a Identity,
    params: &Params,
    request_id: &'a str,
) -> Result<Vpcs<'a>, Failure> {
    let wanted = wanted(params, "VpcId");
    let known = &api.settings.vpcs;
    if let Some(unknown) = wanted
        .iter()
        .find(|id| !known.iter().any(|vpc| vpc.id == **id))
    {
        let text = format!("The vpc ID '{unknown}' does not exist");
        return Err(Failure::new(400, "InvalidVpcID.NotFound", text));
    }
    let shown = known
        .iter()
        .filter(|vpc| wanted.is_empty() || wanted.contains(&vpc.id.as_str()));
    let item = shown.map(|vpc| {
        let mut ranges = vpc
            .ranges
            .iter()
            .filter(|range| range.address.is_ipv4())
            .map(|range| format!("{}/{}", range.address, range.prefix))
            .peekable();
        VpcXml {
            vpc_id: &vpc.id,
            owner_id: &caller.account,
            state: "available",
            cidr_block: ranges.peek().cloned().unwrap_or_default(),
            is_default: false,
            cidr_block_association_set: Items {
                item: (1..)
                    .zip(ranges)
                    .map(|(number, cidr_block)| Association {
                        id: format!("vpc-cidr-assoc-{number:017x}"),
                        cidr_block,
                        cidr_block_state: StateXml {
                            state: "associated",
                        },
                    })
                    .collect(),
            },
        }
    });
    Ok(Vpcs {
        xmlns: ec2_namespace(),
        request_id,
        vpc_set: Items {
            item: item.collect(),
        },
    })
}

/// Any group that is asked for exists and has no rules.
fn security_groups<'a>(
    api: &Api,
    caller: &'a Identity,
    params: &Params,
    request_id: &'a str,
) -> SecurityGroups<'a> {
    let vpc = api
        .settings
        .vpcs
        .first()
        .map(|vpc| vpc.id.clone())
        .unwrap_or_default();
    let none = || Items { item: Vec::new() };
    let wanted = wanted(params, "GroupId");
    let group = |id: &str| SecurityGroup {
        owner_id: &caller.account,
        group_id: id.to_owned(),
        group_name: format!("group-{id}"),
        group_description: "made by the tests",
        vpc_id: vpc.clone(),
        ip_permissions: none(),
        ip_permissions_egress: none(),
    };
    SecurityGroups {
        xmlns: ec2_namespace(),
        request_id,
        security_group_info: Items {
            item: wanted.into_iter().map(group).collect(),
        },
    }
}

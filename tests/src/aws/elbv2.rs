//! `ELBv2`'s operations (API version 2015-12-01), those that an ip-mode target group takes.

use std::net::{IpAddr, SocketAddr};
use std::time::Instant;

use serde::Serialize;

use super::api::Api;
use super::failure::Failure;
use super::health::Health;
use super::identity::Identity;
use super::request::Params;
use super::target_group::{Described, State};
use super::xml::{Members, Service, answer};

/// AWS's quota of targets of an ALB's target group.
const MAX_TARGETS: usize = 1000;
/// Most groups in one answer of `DescribeTargetGroups`.
const MAX_PAGE: usize = 400;

pub(super) fn call(
    api: &mut Api,
    operation: &str,
    caller: &Identity,
    params: &Params,
    request_id: &str,
    now: Instant,
) -> Result<String, Failure> {
    let call = Call {
        api,
        caller,
        params,
        now,
    };
    match operation {
        "DescribeTargetHealth" => render(operation, &call.describe_health()?, request_id),
        "DescribeTargetGroups" => render(operation, &call.describe_groups()?, request_id),
        "DescribeTargetGroupAttributes" => {
            render(operation, &call.describe_attributes()?, request_id)
        }
        "RegisterTargets" => render(operation, &call.register()?, request_id),
        "DeregisterTargets" => render(operation, &call.deregister()?, request_id),
        _ => Err(Failure::new(
            400,
            "InvalidAction",
            format!("Could not find operation {operation} for version 2015-12-01"),
        )),
    }
}

#[expect(
    clippy::unnecessary_wraps,
    reason = "the arms of a match have one type"
)]
fn render<T: Serialize>(operation: &str, result: &T, request_id: &str) -> Result<String, Failure> {
    Ok(answer(Service::Elbv2, operation, result, request_id))
}

/// A result without fields.
#[derive(Debug, Serialize)]
struct Empty {}

#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
struct HealthResult {
    target_health_descriptions: Members<HealthDescription>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
struct HealthDescription {
    target: TargetDescription,
    #[serde(skip_serializing_if = "Option::is_none")]
    health_check_port: Option<String>,
    target_health: HealthXml,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
struct TargetDescription {
    id: String,
    port: u16,
    #[serde(skip_serializing_if = "Option::is_none")]
    availability_zone: Option<String>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
struct HealthXml {
    state: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    description: Option<String>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
struct GroupsResult {
    target_groups: Members<Group>,
    #[serde(skip_serializing_if = "Option::is_none")]
    next_marker: Option<String>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
struct Group {
    target_group_arn: String,
    target_group_name: String,
    protocol: String,
    port: u16,
    vpc_id: String,
    target_type: &'static str,
    ip_address_type: &'static str,
    load_balancer_arns: Members<String>,
    health_check_enabled: bool,
    health_check_protocol: &'static str,
    health_check_port: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    health_check_path: Option<String>,
    health_check_interval_seconds: u64,
    health_check_timeout_seconds: u64,
    healthy_threshold_count: u32,
    unhealthy_threshold_count: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    matcher: Option<Matcher>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
struct Matcher {
    http_code: &'static str,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
struct AttributesResult {
    attributes: Members<Attribute>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
struct Attribute {
    key: &'static str,
    value: String,
}

/// One call with all it needs.
struct Call<'a> {
    api: &'a mut Api,
    caller: &'a Identity,
    params: &'a Params,
    now: Instant,
}

impl Call<'_> {
    fn arn(&self) -> Result<&str, Failure> {
        let arn = self.params.get("TargetGroupArn");
        let arn = arn.ok_or_else(|| Failure::missing("target group ARN"))?;
        let is_arn = arn.starts_with("arn:") && arn.contains(":targetgroup/");
        let invalid = || Failure::invalid(format!("'{arn}' is not a valid target group ARN"));
        is_arn.then_some(arn).ok_or_else(invalid)
    }

    /// The group; another account's doesn't exist for the caller.
    fn group(&self) -> Result<&State, Failure> {
        let group = self.api.groups.get(self.arn()?);
        group
            .filter(|group| group.settings.account == self.caller.account)
            .ok_or_else(Failure::no_such_group)
    }

    /// The targets that the call names, each with the id as it was spelled.
    fn targets(&self) -> Result<Vec<(String, SocketAddr)>, Failure> {
        let group = self.group()?;
        let vpc = self
            .api
            .settings
            .vpcs
            .iter()
            .find(|vpc| vpc.id == group.settings.vpc);
        let mut targets = Vec::new();
        for (id, port) in self.params.targets() {
            let port = match port {
                Some(port) => port
                    .parse()
                    .map_err(|_| Failure::invalid(format!("Invalid port '{port}'")))?,
                None => group.settings.port,
            };
            let address: IpAddr = id.parse().map_err(|_| {
                Failure::invalid(format!("The IP address '{id}' is not a valid IP address"))
            })?;
            if !vpc.is_some_and(|vpc| vpc.contains(address)) {
                let text = format!(
                    "The IP address '{id}' is not within the VPC '{}'",
                    group.settings.vpc
                );
                return Err(Failure::new(400, "InvalidTarget", text));
            }
            targets.push((id.to_owned(), SocketAddr::new(address, port)));
        }
        Ok(targets)
    }

    fn describe_health(&self) -> Result<HealthResult, Failure> {
        let group = self.group()?;
        let named = self.targets()?;
        let listed = if named.is_empty() {
            group.list(self.now)
        } else {
            let describe = |(id, address): (String, SocketAddr)| Described {
                id,
                port: address.port(),
                health: group
                    .health(address, self.now)
                    .unwrap_or_else(Health::not_registered),
            };
            named.into_iter().map(describe).collect()
        };
        let zone = format!("{}a", self.api.settings.region);
        let describe = |Described { id, port, health }: Described| {
            let is_registered = health.reason.as_deref() != Some("Target.NotRegistered");
            let check_port = match group.settings.health_check.port.as_str() {
                "traffic-port" => port.to_string(),
                other => other.to_owned(),
            };
            HealthDescription {
                target: TargetDescription {
                    id,
                    port,
                    availability_zone: is_registered.then(|| zone.clone()),
                },
                health_check_port: is_registered.then_some(check_port),
                target_health: HealthXml {
                    state: health.state,
                    reason: health.reason,
                    description: health.description,
                },
            }
        };
        Ok(HealthResult {
            target_health_descriptions: listed.into_iter().map(describe).collect(),
        })
    }

    fn describe_groups(&self) -> Result<GroupsResult, Failure> {
        let (arns, names) = (
            self.params.list("TargetGroupArns"),
            self.params.list("Names"),
        );
        let load_balancer = self.params.get("LoadBalancerArn");
        let own = || {
            let groups = self.api.groups.values();
            groups.filter(|group| group.settings.account == self.caller.account)
        };
        let has_all = |wanted: &[&str], field: fn(&State) -> &str| {
            let mut wanted = wanted.iter();
            wanted.all(|wanted| own().any(|group| field(group) == *wanted))
        };
        if !has_all(&arns, |group| &group.arn) || !has_all(&names, |group| &group.settings.name) {
            return Err(Failure::no_such_group());
        }
        let is_wanted = |group: &&State| {
            let is_named = arns.is_empty() && names.is_empty()
                || arns.contains(&group.arn.as_str())
                || names.contains(&group.settings.name.as_str());
            is_named
                && load_balancer.is_none_or(|arn| {
                    group
                        .settings
                        .load_balancers
                        .iter()
                        .any(|other| other == arn)
                })
        };
        let page = match self.params.get("PageSize") {
            Some(size) => size
                .parse()
                .ok()
                .filter(|size| (1..=MAX_PAGE).contains(size)),
            None => Some(MAX_PAGE),
        };
        let page = page.ok_or_else(|| {
            Failure::invalid(format!("Page size must be between 1 and {MAX_PAGE}"))
        })?;
        let marker = self.params.get("Marker").unwrap_or_default();
        let mut groups = own()
            .filter(is_wanted)
            .filter(|group| group.arn.as_str() > marker)
            .peekable();
        let shown: Vec<&State> = groups.by_ref().take(page).collect();
        let next_marker = groups
            .peek()
            .and_then(|_| shown.last())
            .map(|last| last.arn.clone());
        Ok(GroupsResult {
            target_groups: shown.into_iter().map(describe_group).collect(),
            next_marker,
        })
    }

    fn describe_attributes(&self) -> Result<AttributesResult, Failure> {
        let group = self.group()?;
        let delay = group.settings.deregistration_delay.as_secs().to_string();
        let attributes = [
            ("deregistration_delay.timeout_seconds", delay.as_str()),
            ("stickiness.enabled", "false"),
            (
                "load_balancing.cross_zone.enabled",
                "use_load_balancer_configuration",
            ),
        ];
        let attributes = attributes.map(|(key, value)| Attribute {
            key,
            value: value.to_owned(),
        });
        Ok(AttributesResult {
            attributes: attributes.into_iter().collect(),
        })
    }

    fn register(self) -> Result<Empty, Failure> {
        let targets = self.targets()?;
        if targets.is_empty() {
            return Err(Failure::missing("target"));
        }
        let group = self.group()?;
        let new = targets
            .iter()
            .filter(|(_, target)| group.health(*target, self.now).is_none())
            .count();
        if group.len(self.now) + new > MAX_TARGETS {
            let text = format!("The maximum number of targets in a target group is {MAX_TARGETS}");
            return Err(Failure::new(400, "TooManyTargets", text));
        }
        let arn = self.arn()?.to_owned();
        for (id, target) in targets {
            self.api.register(&arn, &id, target, self.now);
        }
        Ok(Empty {})
    }

    fn deregister(self) -> Result<Empty, Failure> {
        let targets = self.targets()?;
        if targets.is_empty() {
            return Err(Failure::missing("target"));
        }
        let arn = self.arn()?.to_owned();
        for (_, target) in targets {
            self.api.deregister(&arn, target, self.now);
        }
        Ok(Empty {})
    }
}

fn describe_group(group: &State) -> Group {
    let settings = &group.settings;
    let check = &settings.health_check;
    let is_http = check.path.is_some();
    let is_v6 = group.registered().any(|target| target.is_ipv6());
    Group {
        target_group_arn: group.arn.clone(),
        target_group_name: settings.name.clone(),
        protocol: settings.protocol.clone(),
        port: settings.port,
        vpc_id: settings.vpc.clone(),
        target_type: "ip",
        ip_address_type: if is_v6 { "ipv6" } else { "ipv4" },
        load_balancer_arns: settings.load_balancers.iter().cloned().collect(),
        health_check_enabled: true,
        health_check_protocol: if is_http { "HTTP" } else { "TCP" },
        health_check_port: check.port.clone(),
        health_check_path: check.path.clone(),
        health_check_interval_seconds: check.interval.as_secs(),
        health_check_timeout_seconds: check.timeout.as_secs(),
        healthy_threshold_count: check.healthy_threshold,
        unhealthy_threshold_count: check.unhealthy_threshold,
        matcher: is_http.then_some(Matcher { http_code: "200" }),
    }
}

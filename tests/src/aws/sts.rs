//! STS's operations (API version 2011-06-15): credentials for roles, and who am I.

use std::time::{Duration, Instant, SystemTime};

use serde::Serialize;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::api::Api;
use super::failure::Failure;
use super::identity::{Identity, Role, Temporary};
use super::request::Params;
use super::xml::{Service, answer};

/// The only operation that is not signed.
pub(super) const ASSUME_ROLE_WITH_WEB_IDENTITY: &str = "AssumeRoleWithWebIdentity";

#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
struct Assumed {
    credentials: Credentials,
    assumed_role_user: User,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
struct Credentials {
    access_key_id: String,
    secret_access_key: String,
    session_token: String,
    expiration: String,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
struct User {
    arn: String,
    assumed_role_id: String,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
struct CallerIdentity<'a> {
    arn: &'a str,
    user_id: &'a str,
    account: &'a str,
}

pub(super) fn call(
    api: &mut Api,
    operation: &str,
    caller: &Identity,
    params: &Params,
    request_id: &str,
    now: Instant,
) -> Result<String, Failure> {
    match operation {
        "GetCallerIdentity" => {
            let identity = CallerIdentity {
                arn: &caller.arn,
                user_id: "AIDA0000000000000000",
                account: &caller.account,
            };
            Ok(answer(Service::Sts, operation, &identity, request_id))
        }
        "AssumeRole" => {
            let role = role(api, params)?.filter(|role| {
                let wanted = role.external_id.as_deref();
                wanted.is_none() || wanted == params.get("ExternalId")
            });
            let arn = params.get("RoleArn").unwrap_or_default();
            let action = format!("sts:AssumeRole on resource: {arn}");
            let role = role.ok_or_else(|| Failure::denied(&caller.arn, &action))?;
            assume(api, operation, &role, params, request_id, now)
        }
        ASSUME_ROLE_WITH_WEB_IDENTITY => {
            let role = role(api, params)?.filter(|role| role.web_identity_token.is_some());
            let text = "Not authorized to perform sts:AssumeRoleWithWebIdentity";
            let role = role.ok_or_else(|| Failure::new(403, "AccessDenied", text))?;
            if role.web_identity_token.as_deref() != params.get("WebIdentityToken") {
                let text = "The ID Token provided is not a valid JWT";
                return Err(Failure::new(400, "InvalidIdentityToken", text));
            }
            assume(api, operation, &role, params, request_id, now)
        }
        _ => Err(Failure::new(
            400,
            "InvalidAction",
            format!("Could not find operation {operation} for version 2011-06-15"),
        )),
    }
}

fn role(api: &Api, params: &Params) -> Result<Option<Role>, Failure> {
    let arn = params
        .get("RoleArn")
        .ok_or_else(|| Failure::missing("role ARN"))?;
    Ok(api.identities.role(arn).cloned())
}

fn assume(
    api: &mut Api,
    operation: &str,
    role: &Role,
    params: &Params,
    request_id: &str,
    now: Instant,
) -> Result<String, Failure> {
    let session = params
        .get("RoleSessionName")
        .ok_or_else(|| Failure::missing("role session name"))?;
    let temporary = api.identities.assume(role, session, now);
    let Temporary {
        access_key,
        secret_key,
        token,
        lifetime,
        identity,
    } = temporary;
    let assumed = Assumed {
        credentials: Credentials {
            access_key_id: access_key,
            secret_access_key: secret_key,
            session_token: token,
            expiration: expiration(SystemTime::now(), lifetime),
        },
        assumed_role_user: User {
            assumed_role_id: format!("AROA0000000000000000:{session}"),
            arn: identity.arn,
        },
    };
    Ok(answer(Service::Sts, operation, &assumed, request_id))
}

/// The end of credentials in UTC and whole seconds.
fn expiration(now: SystemTime, lifetime: Duration) -> String {
    let ends = OffsetDateTime::from(now + lifetime);
    let ends = ends.replace_nanosecond(0).unwrap_or(ends);
    ends.format(&Rfc3339).expect("a time must be writable")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expiration_is_written_as_sts_writes_it() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_millis(1_700_000_000_500);
        assert_eq!(
            expiration(now, Duration::from_hours(1)),
            "2023-11-14T23:13:20Z"
        );
    }
}

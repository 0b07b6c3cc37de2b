//! What went wrong, in the confirmer's words: who has to act depends on it.

use std::error::Error;

use aws_credential_types::provider::error::CredentialsError;
use aws_sdk_elasticloadbalancingv2::error::{ProvideErrorMetadata, SdkError};
use aws_sdk_sts::operation::assume_role::AssumeRoleError;
use aws_sdk_sts::operation::assume_role_with_web_identity::AssumeRoleWithWebIdentityError;
use aws_smithy_runtime_api::client::orchestrator::HttpResponse;

use crate::confirmer::target_group::{Failure, Role};
use crate::error_chain::chain;

/// Codes of "too many requests": the query protocol's, and its predecessors'.
const THROTTLED: [&str; 8] = [
    "Throttling",
    "ThrottlingException",
    "ThrottledException",
    "RequestThrottled",
    "RequestThrottledException",
    "RequestLimitExceeded",
    "TooManyRequestsException",
    "SlowDown",
];

/// Codes of "you may not".
const DENIED: [&str; 4] = [
    "AccessDenied",
    "AccessDeniedException",
    "UnauthorizedOperation",
    "AuthorizationError",
];

/// Codes of "I don't know you", and of a clock that is wrong.
const UNKNOWN_CALLER: [&str; 14] = [
    "ExpiredToken",
    "ExpiredTokenException",
    "RequestExpired",
    "InvalidClientTokenId",
    "UnrecognizedClient",
    "UnrecognizedClientException",
    "SignatureDoesNotMatch",
    "InvalidSignatureException",
    "IncompleteSignature",
    "InvalidAccessKeyId",
    "InvalidToken",
    "AuthFailure",
    "MissingAuthenticationToken",
    "MissingAuthenticationTokenException",
];

/// Says why a call that needs `permission` failed.
pub(super) fn of<E>(
    error: &SdkError<E, HttpResponse>,
    permission: &str,
    role: Option<&Role>,
) -> Failure
where
    E: ProvideErrorMetadata + Error + 'static,
{
    if let SdkError::ServiceError(context) = error {
        return of_answer(context.err(), context.raw(), permission);
    }
    of_credentials(error, role).unwrap_or_else(|| Failure::Unavailable(one_line(&chain(error))))
}

/// By the code of an answer, and by its HTTP status where it has none that says something.
fn of_answer(
    error: &(impl ProvideErrorMetadata + Error),
    answer: &HttpResponse,
    permission: &str,
) -> Failure {
    let status = answer.status().as_u16();
    let code = error.code().unwrap_or_default();
    let text = match (error.code(), error.message()) {
        (Some(code), Some(message)) => one_line(&format!("{code}: {message}")),
        (Some(code), None) => code.to_owned(),
        (None, _) => one_line(&format!("HTTP {status}: {}", chain(error))),
    };
    if code == "TargetGroupNotFound" {
        Failure::NotFound
    } else if THROTTLED.contains(&code) || status == 429 {
        Failure::Throttled
    } else if DENIED.contains(&code) {
        Failure::Denied(format!("{permission} ({text})"))
    } else if UNKNOWN_CALLER.contains(&code) {
        Failure::Credentials(text)
    } else {
        Failure::Unavailable(text)
    }
}

/// `None` where the error isn't about credentials. The deepest cause tells most: a role can't be assumed where our own
/// credentials are missing.
fn of_credentials(error: &(dyn Error + 'static), role: Option<&Role>) -> Option<Failure> {
    let causes: Vec<_> = std::iter::successors(Some(error), |&error| error.source()).collect();
    causes.into_iter().rev().find_map(|cause| {
        if let Some(error) = cause.downcast_ref::<SdkError<AssumeRoleError>>() {
            let arn = role.map_or("a role", |role| &role.arn);
            return Some(of_sts(error, &format!("sts:AssumeRole on {arn}")));
        }
        if let Some(error) = cause.downcast_ref::<SdkError<AssumeRoleWithWebIdentityError>>() {
            let permission =
                "sts:AssumeRoleWithWebIdentity, in the trust policy of the ServiceAccount's role";
            return Some(of_sts(error, permission));
        }
        let text = || one_line(&chain(cause));
        Some(match cause.downcast_ref::<CredentialsError>()? {
            CredentialsError::CredentialsNotLoaded(_) => Failure::Credentials(
                "there are none: give prestop-gate's ServiceAccount a role by IRSA or EKS Pod Identity"
                    .to_owned(),
            ),
            CredentialsError::ProviderTimedOut(_) => Failure::Unavailable(text()),
            _ => Failure::Credentials(text()),
        })
    })
}

fn of_sts<E>(error: &SdkError<E>, permission: &str) -> Failure
where
    E: ProvideErrorMetadata + Error + 'static,
{
    let SdkError::ServiceError(context) = error else {
        // A time-out, or an address that can't be reached: nobody was refused anything.
        return Failure::Unavailable(one_line(&chain(error)));
    };
    match of_answer(context.err(), context.raw(), permission) {
        Failure::Unavailable(text) if context.raw().status().is_client_error() => {
            Failure::Credentials(text)
        }
        failure => failure,
    }
}

/// AWS's messages have line breaks (that of a wrong signature has a dozen).
fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

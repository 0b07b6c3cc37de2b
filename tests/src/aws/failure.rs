//! AWS's errors: status, code and text as its services give them.

/// An error answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Failure {
    pub(super) status: u16,
    pub(super) code: String,
    pub(super) message: String,
}

impl Failure {
    pub(super) fn new(status: u16, code: &str, message: impl Into<String>) -> Self {
        Self {
            status,
            code: code.to_owned(),
            message: message.into(),
        }
    }

    /// EC2 has a word of its own for keys that nobody knows.
    pub(super) fn unknown_key(service: &str) -> Self {
        if service == "ec2" {
            let text = "AWS was not able to validate the provided access credentials";
            return Self::new(401, "AuthFailure", text);
        }
        let text = "The security token included in the request is invalid.";
        Self::new(403, "InvalidClientTokenId", text)
    }

    pub(super) fn unsigned() -> Self {
        let text = "Request is missing Authentication Token";
        Self::new(403, "MissingAuthenticationToken", text)
    }

    pub(super) fn wrong_scope(what: &str) -> Self {
        let text = format!("Credential should be scoped to {what}.");
        Self::new(403, "SignatureDoesNotMatch", text)
    }

    pub(super) fn expired() -> Self {
        let text = "The security token included in the request is expired";
        Self::new(403, "ExpiredToken", text)
    }

    pub(super) fn throttled() -> Self {
        Self::new(400, "ThrottlingException", "Rate exceeded")
    }

    pub(super) fn denied(user: &str, action: &str) -> Self {
        let text = format!(
            "User: {user} is not authorized to perform: {action} because no identity-based policy allows the {action} action"
        );
        Self::new(403, "AccessDenied", text)
    }

    pub(super) fn invalid(message: impl Into<String>) -> Self {
        Self::new(400, "ValidationError", message)
    }

    pub(super) fn missing(parameter: &str) -> Self {
        Self::invalid(format!("A {parameter} must be specified"))
    }

    pub(super) fn no_such_group() -> Self {
        let text = "One or more target groups not found";
        Self::new(400, "TargetGroupNotFound", text)
    }

    pub(super) fn injected(status: u16) -> Self {
        let code = match status {
            503 => "ServiceUnavailable",
            400..500 => "InvalidRequest",
            _ => "InternalFailure",
        };
        Self::new(
            status,
            code,
            "The request processing has failed because of an injected fault",
        )
    }
}

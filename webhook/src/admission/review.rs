//! `AdmissionReview` on the wire: a borrowed view of the request, and the answer.

use std::borrow::Cow;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

/// The version that is spoken here.
const API_VERSION: &str = "admission.k8s.io/v1";
/// What every version's name begins with.
const API_GROUP: &str = "admission.k8s.io/";
const KIND: &str = "AdmissionReview";
/// Bytes of one warning, and of all together, that the API server passes on; it cuts or drops the rest.
const MAX_WARNING_BYTES: usize = 256;
const MAX_WARNINGS_BYTES: usize = 4096;

/// A review, as far as it can be read.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Review<'a> {
    #[serde(borrow)]
    pub(super) api_version: Cow<'a, str>,
    #[serde(borrow)]
    pub(super) kind: Cow<'a, str>,
    #[serde(borrow)]
    pub(super) request: Request<'a>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Request<'a> {
    #[serde(borrow)]
    pub(super) uid: Cow<'a, str>,
    #[serde(borrow)]
    pub(super) resource: Resource<'a>,
    #[serde(default)]
    pub(super) sub_resource: Option<String>,
    #[serde(borrow)]
    pub(super) operation: Cow<'a, str>,
    #[serde(borrow, default)]
    pub(super) namespace: Cow<'a, str>,
    #[serde(default)]
    pub(super) dry_run: Option<bool>,
    #[serde(borrow)]
    pub(super) object: Option<&'a RawValue>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Resource<'a> {
    #[serde(borrow, default)]
    pub(super) group: Cow<'a, str>,
    #[serde(borrow)]
    pub(super) version: Cow<'a, str>,
    #[serde(borrow, rename = "resource")]
    pub(super) plural: Cow<'a, str>,
}

impl Review<'_> {
    pub(super) fn is_supported(&self) -> bool {
        self.api_version == API_VERSION && self.kind == KIND
    }
}

impl Request<'_> {
    /// Whether this is the one thing that is injected into. Not so: updates, and subresources such as
    /// `pods/ephemeralcontainers`, which a wrong webhook configuration would send.
    pub(super) fn is_pod_creation(&self) -> bool {
        let Resource {
            group,
            version,
            plural,
        } = &self.resource;
        let is_pod = group.is_empty() && version == "v1" && plural == "pods";
        is_pod
            && self.operation == "CREATE"
            && self.sub_resource.as_deref().unwrap_or_default().is_empty()
    }
}

/// The least that an answer needs of a review that is odd elsewhere.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Envelope<'a> {
    #[serde(borrow)]
    pub(super) api_version: Option<Cow<'a, str>>,
    #[serde(borrow)]
    pub(super) request: Identity<'a>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Identity<'a> {
    #[serde(borrow)]
    pub(super) uid: Cow<'a, str>,
}

/// An answer, which always allows.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Answer<'a> {
    api_version: &'a str,
    kind: &'static str,
    response: Response<'a>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Response<'a> {
    uid: &'a str,
    allowed: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    patch_type: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    patch: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    warnings: Vec<String>,
}

impl<'a> Answer<'a> {
    /// Answers the review of this uid, in the version that it was asked in.
    pub(super) fn new(
        api_version: &'a str,
        uid: &'a str,
        patch: Option<&str>,
        warnings: &[String],
    ) -> Self {
        Self {
            api_version: if api_version.starts_with(API_GROUP) {
                api_version
            } else {
                API_VERSION
            },
            kind: KIND,
            response: Response {
                uid,
                allowed: true,
                patch_type: patch.map(|_| "JSONPatch"),
                patch: patch.map(|patch| STANDARD.encode(patch)),
                warnings: fit_warnings(warnings),
            },
        }
    }

    pub(super) fn to_json(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("strings must serialise into memory")
    }
}

/// As many warnings as the API server passes on, each named as ours.
fn fit_warnings(warnings: &[String]) -> Vec<String> {
    let mut left = MAX_WARNINGS_BYTES;
    let mut fitting = Vec::with_capacity(warnings.len());
    for warning in warnings {
        let warning = fit_warning(warning);
        let Some(rest) = left.checked_sub(warning.len()) else {
            break;
        };
        left = rest;
        fitting.push(warning);
    }
    fitting
}

fn fit_warning(warning: &str) -> String {
    const CUT: &str = "…";
    // The API server drops a warning with control characters.
    let mut fitting = format!("prestop-gate: {}", warning.replace(char::is_control, " "));
    if fitting.len() > MAX_WARNING_BYTES {
        fitting.truncate(fitting.floor_char_boundary(MAX_WARNING_BYTES - CUT.len()));
        fitting.push_str(CUT);
    }
    fitting
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warnings_are_cut_at_a_character_and_dropped_beyond_the_limit() {
        let fitting = fit_warnings(&vec!["ä".repeat(1000); 100]);
        assert_eq!(fitting.len(), 16);
        assert!(fitting.iter().all(|warning| warning.len() <= 256
            && warning.starts_with("prestop-gate: ä")
            && warning.ends_with('…')));
        assert_eq!(
            fit_warnings(&["two\nlines".to_owned()]),
            ["prestop-gate: two lines"]
        );
    }
}

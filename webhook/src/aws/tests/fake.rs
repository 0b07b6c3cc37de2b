//! A server in the place of AWS's endpoints: it answers as told, and remembers what it was asked.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use aws_config::{BehaviorVersion, Region};
use aws_credential_types::Credentials;
use aws_credential_types::provider::SharedCredentialsProvider;
use axum::extract::{Query, State};
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use axum::{Router, routing::any};

use crate::aws::AwsTargetGroups;
use crate::aws::session::{Sessions, http_client};
use crate::confirmer::target_group::{GroupId, TargetGroup};

pub(super) const ARN: &str =
    "arn:aws:elasticloadbalancing:eu-west-1:111122223333:targetgroup/web/0123456789abcdef";

/// One request.
#[derive(Debug, Clone)]
pub(super) struct Asked {
    pub(super) path: String,
    pub(super) authorization: String,
    pub(super) form: HashMap<String, String>,
}

impl Asked {
    pub(super) fn action(&self) -> &str {
        self.form.get("Action").map_or(&self.path, String::as_str)
    }
}

/// What comes of a request.
#[derive(Debug, Clone)]
pub(super) enum Answer {
    /// Status and body.
    Now(u16, String),
    /// Nothing, ever.
    Never,
}

impl Answer {
    pub(super) fn body(self) -> String {
        match self {
            Self::Now(_, body) => body,
            Self::Never => String::new(),
        }
    }
}

type Respond = dyn Fn(&Asked) -> Answer + Send + Sync;

#[derive(Clone)]
struct Shared {
    asked: Arc<Mutex<Vec<Asked>>>,
    respond: Arc<Respond>,
}

pub(super) struct Fake {
    pub(super) url: String,
    asked: Arc<Mutex<Vec<Asked>>>,
}

impl Fake {
    /// Serves for as long as the test's runtime lives.
    pub(super) async fn serve(respond: impl Fn(&Asked) -> Answer + Send + Sync + 'static) -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let shared = Shared {
            asked: Arc::default(),
            respond: Arc::new(respond),
        };
        let asked = Arc::clone(&shared.asked);
        let router = Router::new().fallback(any(answer)).with_state(shared);
        tokio::spawn(async move { axum::serve(listener, router).await });
        Self { url, asked }
    }

    pub(super) fn asked(&self) -> Vec<Asked> {
        self.asked.lock().unwrap().clone()
    }

    pub(super) fn actions(&self) -> Vec<String> {
        let asked = self.asked();
        asked
            .iter()
            .map(|asked| asked.action().to_owned())
            .collect()
    }

    /// One that asks here with keys of its own, and that knows no region.
    pub(super) fn groups(&self) -> AwsTargetGroups {
        self.groups_in(None)
    }

    pub(super) fn groups_in(&self, region: Option<&'static str>) -> AwsTargetGroups {
        let url = self.url.clone();
        let own = Credentials::new("OWNKEY", "secret", None, None, "test");
        AwsTargetGroups::new(Sessions::new(
            http_client(),
            move || {
                aws_config::defaults(BehaviorVersion::latest())
                    .empty_test_environment()
                    .endpoint_url(&url)
            },
            region.map(Region::from_static),
            Some(SharedCredentialsProvider::new(own)),
        ))
    }
}

async fn answer(
    State(shared): State<Shared>,
    uri: Uri,
    headers: HeaderMap,
    body: String,
) -> Response {
    let form = format!("/?{body}").parse().unwrap();
    let authorization = headers.get("authorization");
    let asked = Asked {
        path: uri.path().to_owned(),
        authorization: authorization
            .map_or_else(String::new, |value| value.to_str().unwrap().to_owned()),
        form: Query::try_from_uri(&form).unwrap().0,
    };
    let answer = (shared.respond)(&asked);
    shared.asked.lock().unwrap().push(asked);
    let Answer::Now(status, body) = answer else {
        return std::future::pending().await;
    };
    let ttl = [("x-aws-ec2-metadata-token-ttl-seconds", "21600")];
    (StatusCode::from_u16(status).unwrap(), ttl, body).into_response()
}

pub(super) fn mk_group() -> TargetGroup {
    TargetGroup {
        id: GroupId::Arn(ARN.to_owned()),
        role: None,
    }
}

/// A good answer of `action`.
pub(super) fn mk_answer(action: &str, result: &str) -> Answer {
    let body = format!(
        r#"<{action}Response xmlns="http://elasticloadbalancing.amazonaws.com/doc/2015-12-01/"><{action}Result>{result}</{action}Result><ResponseMetadata><RequestId>r1</RequestId></ResponseMetadata></{action}Response>"#
    );
    Answer::Now(200, body)
}

/// An answer to `DescribeTargetHealth` with these ids, ports, states and reasons.
pub(super) fn mk_targets(targets: &[(&str, &str, &str, &str)]) -> Answer {
    let tag = |name: &str, text: &str| match text {
        "" => String::new(),
        text => format!("<{name}>{text}</{name}>"),
    };
    let members = targets.iter().map(|(id, port, state, reason)| {
        let target = tag("Id", id) + &tag("Port", port);
        let health = tag("State", state) + &tag("Reason", reason);
        format!("<member><Target>{target}</Target><TargetHealth>{health}</TargetHealth></member>")
    });
    let members = members.collect::<Vec<_>>().concat();
    let list = format!("<TargetHealthDescriptions>{members}</TargetHealthDescriptions>");
    mk_answer("DescribeTargetHealth", &list)
}

/// An error as the query protocol has it.
pub(super) fn mk_error(status: u16, code: &str, message: &str) -> Answer {
    let body = format!(
        r#"<ErrorResponse xmlns="http://elasticloadbalancing.amazonaws.com/doc/2015-12-01/"><Error><Type>Sender</Type><Code>{code}</Code><Message>{message}</Message></Error><RequestId>r1</RequestId></ErrorResponse>"#
    );
    Answer::Now(status, body)
}

/// The answer of `AssumeRole` or `AssumeRoleWithWebIdentity`, with this key.
pub(super) fn mk_assumed(action: &str, key: &str) -> Answer {
    let body = format!(
        r#"<{action}Response xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><{action}Result><AssumedRoleUser><AssumedRoleId>AROA:prestop-gate</AssumedRoleId><Arn>arn:aws:sts::444455556666:assumed-role/reader/prestop-gate</Arn></AssumedRoleUser><Credentials><AccessKeyId>{key}</AccessKeyId><SecretAccessKey>secret</SecretAccessKey><SessionToken>token</SessionToken><Expiration>2999-01-01T00:00:00Z</Expiration></Credentials></{action}Result></{action}Response>"#
    );
    Answer::Now(200, body)
}

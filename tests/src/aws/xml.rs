//! Answers on the wire: the XML envelopes of the query protocol and of EC2's variant of it.

use serde::ser::{Serialize, SerializeMap, Serializer};

use super::failure::Failure;

/// A service of the fake, told by the API version that its calls name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Service {
    Elbv2,
    Sts,
    Ec2,
}

impl Service {
    pub(super) fn of_version(version: &str) -> Option<Self> {
        match version {
            "2015-12-01" => Some(Self::Elbv2),
            "2011-06-15" => Some(Self::Sts),
            "2016-11-15" => Some(Self::Ec2),
            _ => None,
        }
    }

    /// Its name in `SigV4` scopes and IAM actions.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Elbv2 => "elasticloadbalancing",
            Self::Sts => "sts",
            Self::Ec2 => "ec2",
        }
    }

    fn namespace(self) -> &'static str {
        match self {
            Self::Elbv2 => "http://elasticloadbalancing.amazonaws.com/doc/2015-12-01/",
            Self::Sts => "https://sts.amazonaws.com/doc/2011-06-15/",
            Self::Ec2 => "http://ec2.amazonaws.com/doc/2016-11-15/",
        }
    }
}

/// A list as the query protocol has it.
#[derive(Debug, serde::Serialize)]
pub(super) struct Members<T> {
    pub(super) member: Vec<T>,
}

impl<T> FromIterator<T> for Members<T> {
    fn from_iter<I: IntoIterator<Item = T>>(items: I) -> Self {
        Self {
            member: items.into_iter().collect(),
        }
    }
}

/// A list as EC2 has it.
#[derive(Debug, serde::Serialize)]
pub(super) struct Items<T> {
    pub(super) item: Vec<T>,
}

#[derive(Debug, serde::Serialize)]
#[serde(rename_all = "PascalCase")]
struct Metadata<'a> {
    request_id: &'a str,
}

/// `<OperationResponse xmlns="…"><OperationResult>…</OperationResult><ResponseMetadata>…`.
struct Envelope<'a, T> {
    service: Service,
    operation: &'a str,
    result: &'a T,
    request_id: &'a str,
}

impl<T: Serialize> Serialize for Envelope<'_, T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("@xmlns", self.service.namespace())?;
        map.serialize_entry(&format!("{}Result", self.operation), self.result)?;
        let request_id = self.request_id;
        map.serialize_entry("ResponseMetadata", &Metadata { request_id })?;
        map.end()
    }
}

/// The answer to a call of the query protocol.
pub(super) fn answer<T: Serialize>(
    service: Service,
    operation: &str,
    result: &T,
    request_id: &str,
) -> String {
    let envelope = Envelope {
        service,
        operation,
        result,
        request_id,
    };
    write(&format!("{operation}Response"), &envelope)
}

/// The answer to a call of EC2, which has its namespace and request id among the fields.
pub(super) fn plain<T: Serialize>(operation: &str, result: &T) -> String {
    write(&format!("{operation}Response"), result)
}

/// EC2's namespace, for the field that `plain` answers need.
pub(super) fn ec2_namespace() -> &'static str {
    Service::Ec2.namespace()
}

#[derive(Debug, serde::Serialize)]
#[serde(rename_all = "PascalCase")]
struct Fault<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    r#type: Option<&'a str>,
    code: &'a str,
    message: &'a str,
}

#[derive(Debug, serde::Serialize)]
#[serde(rename_all = "PascalCase")]
struct ErrorResponse<'a> {
    #[serde(rename = "@xmlns")]
    xmlns: &'a str,
    error: Fault<'a>,
    request_id: &'a str,
}

#[derive(Debug, serde::Serialize)]
#[serde(rename_all = "PascalCase")]
struct Errors<'a> {
    error: Fault<'a>,
}

#[derive(Debug, serde::Serialize)]
struct Ec2ErrorResponse<'a> {
    #[serde(rename = "Errors")]
    errors: Errors<'a>,
    #[serde(rename = "RequestID")]
    request_id: &'a str,
}

/// The answer to a call that failed.
pub(super) fn failure(service: Service, failure: &Failure, request_id: &str) -> String {
    let (code, message) = (failure.code.as_str(), failure.message.as_str());
    if service == Service::Ec2 {
        let error = Fault {
            r#type: None,
            code,
            message,
        };
        let errors = Errors { error };
        return write("Response", &Ec2ErrorResponse { errors, request_id });
    }
    let r#type = Some(if failure.status < 500 {
        "Sender"
    } else {
        "Receiver"
    });
    let response = ErrorResponse {
        xmlns: service.namespace(),
        error: Fault {
            r#type,
            code,
            message,
        },
        request_id,
    };
    write("ErrorResponse", &response)
}

fn write<T: Serialize>(root: &str, value: &T) -> String {
    quick_xml::se::to_string_with_root(root, value).expect("an answer must be serializable")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answer_has_the_envelope_that_sdks_expect() {
        #[derive(serde::Serialize)]
        struct Listed {
            #[serde(rename = "Names")]
            names: Members<&'static str>,
        }
        let listed = Listed {
            names: ["a", "b&c"].into_iter().collect(),
        };
        assert_eq!(
            answer(Service::Elbv2, "DescribeThings", &listed, "r-1"),
            "<DescribeThingsResponse xmlns=\"http://elasticloadbalancing.amazonaws.com/doc/2015-12-01/\">\
             <DescribeThingsResult><Names><member>a</member><member>b&amp;c</member></Names></DescribeThingsResult>\
             <ResponseMetadata><RequestId>r-1</RequestId></ResponseMetadata></DescribeThingsResponse>"
        );
    }

    #[test]
    fn failure_has_the_envelope_of_its_service() {
        let throttled = Failure::throttled();
        assert_eq!(
            failure(Service::Elbv2, &throttled, "r-1"),
            "<ErrorResponse xmlns=\"http://elasticloadbalancing.amazonaws.com/doc/2015-12-01/\">\
             <Error><Type>Sender</Type><Code>ThrottlingException</Code><Message>Rate exceeded</Message></Error>\
             <RequestId>r-1</RequestId></ErrorResponse>"
        );
        assert_eq!(
            failure(Service::Ec2, &throttled, "r-1"),
            "<Response><Errors><Error><Code>ThrottlingException</Code><Message>Rate exceeded</Message></Error></Errors>\
             <RequestID>r-1</RequestID></Response>"
        );
    }
}

//! Refuses answers that were cut off: the SDK's XML reader takes what is there for all there is, and a target that is
//! missing from a list counts as gone.

use aws_sdk_elasticloadbalancingv2::config::interceptors::AfterDeserializationInterceptorContextRef;
use aws_sdk_elasticloadbalancingv2::config::{ConfigBag, Intercept, RuntimeComponents};
use aws_sdk_elasticloadbalancingv2::error::BoxError;

/// Lets answers pass whose root element is closed.
#[derive(Debug)]
pub(super) struct WholeAnswers;

/// The answer ended before its root element did.
#[derive(Debug, thiserror::Error)]
#[error("the answer is cut off after {0} bytes")]
struct CutOff(usize);

#[aws_smithy_runtime_api::client::interceptors::dyn_dispatch_hint]
impl Intercept for WholeAnswers {
    fn name(&self) -> &'static str {
        "WholeAnswers"
    }

    fn read_after_deserialization(
        &self,
        context: &AfterDeserializationInterceptorContextRef<'_>,
        _: &RuntimeComponents,
        _: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        let response = context.response();
        let body = response.body().bytes().unwrap_or_default();
        // Every operation's root is `NAMEResponse`. Errors are judged by their code, which is there or not.
        let is_whole = body.trim_ascii_end().ends_with(b"Response>");
        if response.status().is_success() && !is_whole {
            return Err(CutOff(body.len()).into());
        }
        Ok(())
    }
}

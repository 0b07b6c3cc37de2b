use super::{Options, Shared};
use aws_config::SdkConfig;
use std::sync::Arc;
pub(super) async fn run(
    _kube: kube::Client,
    _aws: SdkConfig,
    _options: Options,
    _shared: Arc<Shared>,
) {
}

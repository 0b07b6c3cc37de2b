//! One HTTP request, for what pods say on their ports.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use http_body_util::{BodyExt as _, Empty};
use hyper::body::Bytes;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use tokio::time::timeout;

/// Longest wait for an answer: the pod may be gone, and its address answer nothing.
const LIMIT: Duration = Duration::from_secs(10);

/// The body that `http://ADDRESS/PATH` answers.
///
/// # Errors
/// When it can't be reached in time, or answers anything but 200.
pub async fn get(address: &str, path: &str) -> Result<String> {
    let url = format!("http://{address}{path}");
    let client: Client<_, Empty<Bytes>> = Client::builder(TokioExecutor::new()).build_http();
    let uri = url
        .parse()
        .with_context(|| format!("failed to parse {url}"))?;
    let exchange = async {
        let answer = client.get(uri).await?;
        let status = answer.status();
        let body = answer.into_body().collect().await?.to_bytes();
        anyhow::Ok((status, String::from_utf8_lossy(&body).into_owned()))
    };
    let exchanged = timeout(LIMIT, exchange)
        .await
        .with_context(|| format!("failed to get {url} within {LIMIT:?}"))?;
    let (status, text) = exchanged.with_context(|| format!("failed to get {url}"))?;
    ensure!(status.is_success(), "failed to get {url}: {status}: {text}");
    Ok(text)
}

//! One HTTP request, for what pods say on their ports.

use anyhow::{Context, Result, ensure};
use http_body_util::{BodyExt as _, Empty};
use hyper::body::Bytes;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;

/// The body that `http://ADDRESS/PATH` answers.
///
/// # Errors
/// When it can't be reached, or answers anything but 200.
pub async fn get(address: &str, path: &str) -> Result<String> {
    let url = format!("http://{address}{path}");
    let client: Client<_, Empty<Bytes>> = Client::builder(TokioExecutor::new()).build_http();
    let uri = url
        .parse()
        .with_context(|| format!("failed to parse {url}"))?;
    let answer = client
        .get(uri)
        .await
        .with_context(|| format!("failed to get {url}"))?;
    let status = answer.status();
    let body = answer
        .into_body()
        .collect()
        .await
        .with_context(|| format!("failed to read {url}"))?;
    let text = String::from_utf8_lossy(&body.to_bytes()).into_owned();
    ensure!(status.is_success(), "failed to get {url}: {status}: {text}");
    Ok(text)
}

//! The hello to the confirmer: proves on day one that the path works (network policy, CA, token).

use std::time::Duration;

use super::backoff::Backoff;
use super::confirmer::Client;
use crate::contract::{HELLO_PATH, HelloRequest, HelloResponse, PROTOCOL};
use crate::log;

/// How often it is said again, give or take a tenth, so that the pods of one rollout spread.
const EVERY: Duration = Duration::from_hours(24);
/// How long to wait for the answer.
const WITHIN: Duration = Duration::from_secs(5);
/// First and longest pause between failures. A pod is in no hurry to say hello.
const PAUSE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_mins(5));

/// Says hello until it worked, then daily, for ever.
pub(super) async fn say(mut client: Client) {
    let request = HelloRequest {
        protocol: PROTOCOL,
        version: env!("CARGO_PKG_VERSION").to_owned(),
    };
    let mut backoff = Backoff::new(PAUSE.0, PAUSE.1);
    loop {
        let outcome = client
            .post::<HelloResponse>(HELLO_PATH, &request, WITHIN)
            .await;
        client.close();
        let pause = match outcome {
            Ok(HelloResponse { version, .. }) => {
                backoff.succeeded();
                log::line(format_args!(
                    "Said hello to the confirmer version={version:?}"
                ));
                EVERY.mul_f64(0.9 + fastrand::f64() / 5.0)
            }
            Err(error) => backoff.failed(&error),
        };
        tokio::time::sleep(pause).await;
    }
}

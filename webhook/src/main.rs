//! The `prestop-gate` binary.

use anyhow::Context as _;
use clap::Parser as _;
use rustix::process::{Resource, getrlimit, setrlimit};
use webhook::args::{Cli, Verb};
use webhook::run;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    rustls::crypto::ring::default_provider()
        .install_default()
        .ok()
        .context("failed to install the crypto provider")?;
    raise_file_limit();
    let Cli { verb } = Cli::parse();
    match verb {
        Verb::Serve(args) => {
            run::log(&args.log_level, args.log_format)?;
            run::serve(args).await
        }
    }
}

/// Each held pod is a connection, and the usual soft limit of 1,024 files would refuse the rest.
fn raise_file_limit() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // Where it can't be raised, the listener pauses when files run out.
    let _ = setrlimit(Resource::Nofile, limit);
}

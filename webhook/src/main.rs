//! The `prestop-gate` binary.

use anyhow::Context as _;
use clap::Parser as _;
use webhook::args::{Cli, Verb};
use webhook::run;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    rustls::crypto::ring::default_provider()
        .install_default()
        .ok()
        .context("failed to install the crypto provider")?;
    let Cli { verb } = Cli::parse();
    match verb {
        Verb::Serve(args) => {
            run::log(&args.log_level, args.log_format)?;
            run::serve(args).await
        }
    }
}

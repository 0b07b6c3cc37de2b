//! Command line and environment.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use lexopt::prelude::*;

/// What to say about a command line that was not understood.
pub(crate) const USAGE: &str = "\
usage:
  app serve [--port 8080] [--work-ms 0] [--drain] [--drain-seconds 10] [--ignore-sigterm] [--record PATH]…
  app record [--path /proc/1/fd/1] [--exit 0] TEXT…
  app pause";

/// What the process is to be.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Command {
    /// The HTTP service.
    Serve(Serve),
    /// A pod's own preStop hook.
    Record(Record),
    /// A pod's sandbox.
    Pause,
}

/// Options of the service.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Serve {
    /// TCP port, on all addresses.
    pub(crate) port: u16,
    /// Name that every answer carries.
    pub(crate) pod: String,
    /// Time that each counted request takes, so that some are always in flight.
    pub(crate) work: Duration,
    /// What SIGTERM does.
    pub(crate) on_sigterm: OnSigterm,
    /// Files that get the same lines as stdout.
    pub(crate) records: Vec<PathBuf>,
}

/// What SIGTERM does to the service.
#[derive(Debug, PartialEq, Eq, Clone, Copy)]
pub(crate) enum OnSigterm {
    /// Ends at once and drops what is open, as many apps do.
    End,
    /// Finishes what was begun with `Connection: close`, for at most this long.
    Drain(Duration),
    /// Notes it and goes on.
    Ignore,
}

/// Options of the hook.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Record {
    /// Where the line is appended; the container's log unless told otherwise.
    pub(crate) path: PathBuf,
    /// The exit code.
    pub(crate) exit: u8,
    /// What the line says.
    pub(crate) text: Vec<String>,
}

/// Reads a command line without the program's own name.
pub(crate) fn parse<I>(args: I) -> Result<Command, lexopt::Error>
where
    I: IntoIterator,
    I::Item: Into<OsString>,
{
    let mut parser = lexopt::Parser::from_args(args);
    match parser.next()? {
        Some(Value(verb)) if verb == "serve" => serve(&mut parser),
        Some(Value(verb)) if verb == "record" => record(&mut parser),
        Some(Value(verb)) if verb == "pause" => match parser.next()? {
            None => Ok(Command::Pause),
            Some(other) => Err(other.unexpected()),
        },
        Some(other) => Err(other.unexpected()),
        None => Err("a verb is missing".into()),
    }
}

fn serve(parser: &mut lexopt::Parser) -> Result<Command, lexopt::Error> {
    let mut options = Serve {
        port: 8080,
        pod: pod_name(),
        work: Duration::ZERO,
        on_sigterm: OnSigterm::End,
        records: Vec::new(),
    };
    while let Some(arg) = parser.next()? {
        match arg {
            Long("port") => options.port = parser.value()?.parse()?,
            Long("work-ms") => options.work = Duration::from_millis(parser.value()?.parse()?),
            Long("drain") => options.on_sigterm = OnSigterm::Drain(Duration::from_secs(10)),
            Long("drain-seconds") => {
                options.on_sigterm =
                    OnSigterm::Drain(Duration::from_secs(parser.value()?.parse()?));
            }
            Long("ignore-sigterm") => options.on_sigterm = OnSigterm::Ignore,
            Long("record") => options.records.push(parser.value()?.into()),
            _ => return Err(arg.unexpected()),
        }
    }
    Ok(Command::Serve(options))
}

fn record(parser: &mut lexopt::Parser) -> Result<Command, lexopt::Error> {
    let mut options = Record {
        path: "/proc/1/fd/1".into(),
        exit: 0,
        text: Vec::new(),
    };
    while let Some(arg) = parser.next()? {
        match arg {
            Long("path") => options.path = parser.value()?.into(),
            Long("exit") => options.exit = parser.value()?.parse()?,
            Value(text) => options.text.push(text.to_string_lossy().into_owned()),
            _ => return Err(arg.unexpected()),
        }
    }
    Ok(Command::Record(options))
}

/// `POD_NAME`, else the host's name, which is the pod's (cut at 63 bytes).
fn pod_name() -> String {
    if let Some(name) = std::env::var_os("POD_NAME") {
        return name.to_string_lossy().into_owned();
    }
    rustix::system::uname()
        .nodename()
        .to_string_lossy()
        .into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn service_ends_at_once_unless_told_otherwise() {
        let Ok(Command::Serve(options)) = parse(["serve"]) else {
            panic!("not a service")
        };
        assert_eq!((options.port, options.on_sigterm), (8080, OnSigterm::End));
        let Ok(Command::Serve(options)) = parse([
            "serve",
            "--port",
            "81",
            "--drain-seconds",
            "3",
            "--record",
            "/a",
        ]) else {
            panic!("not a service")
        };
        assert_eq!(
            (options.port, options.on_sigterm),
            (81, OnSigterm::Drain(Duration::from_secs(3)))
        );
        assert_eq!(options.records, [PathBuf::from("/a")]);
    }

    #[test]
    fn hook_keeps_every_word_it_was_given() {
        let hook = Record {
            path: "/proc/1/fd/1".into(),
            exit: 7,
            text: vec!["a b".into(), String::new(), "--c".into()],
        };
        assert_eq!(
            parse(["record", "--exit", "7", "a b", "", "--", "--c"]).unwrap(),
            Command::Record(hook)
        );
    }

    #[test]
    fn mistakes_are_refused() {
        for args in [
            &[][..],
            &["sleep"],
            &["serve", "--port", "x"],
            &["pause", "now"],
            &["record", "--exit", "256"],
        ] {
            assert!(parse(args.iter()).is_err(), "{args:?}");
        }
    }
}

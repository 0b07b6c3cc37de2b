//! Command lines, good and bad.

use std::os::unix::ffi::OsStringExt;

use super::*;

fn words(line: &str) -> Vec<OsString> {
    line.split_whitespace().map(OsString::from).collect()
}

fn read(line: &str) -> Command {
    parse(words(line)).unwrap()
}

fn refused(line: &str) -> String {
    crate::log::chain(&parse(words(line)).unwrap_err())
}

#[test]
fn run_reads_every_flag() {
    let line = "run --original-grace 30 --max-wait 60 --min-hold 5 --fallback-wait 15 --settle 1.5 --quiet 2 --server-name a.b \
                --dir /d --token-file /t --host-network --probes 8080:6 --probes 9090:0.5 --probes 8080:12";
    assert_eq!(
        read(line),
        Command::Run(RunArgs {
            dir: "/d".into(),
            token_file: "/t".into(),
            original_grace: Duration::from_secs(30),
            max_wait: Duration::from_mins(1),
            min_hold: Duration::from_secs(5),
            fallback_wait: Duration::from_secs(15),
            settle: Some(Duration::from_millis(1500)),
            quiet: Some(Duration::from_secs(2)),
            host_network: true,
            probes: BTreeMap::from([(8080, 18.0), (9090, 0.5)]),
            server_name: "a.b".into(),
        })
    );
}

#[test]
fn absent_flags_take_the_contracts_defaults() {
    let Command::Run(run) =
        read("run --original-grace 30 --max-wait 60 --fallback-wait 15 --server-name a.b")
    else {
        panic!("not run")
    };
    assert_eq!(run.dir.to_str(), Some(contract::MOUNT_PATH));
    assert_eq!(run.token_file.to_str(), Some(contract::TOKEN_PATH));
    assert_eq!((run.min_hold, run.settle), (Duration::ZERO, None));
    assert!(!run.host_network && run.probes.is_empty());

    let Command::Hook(hook) = read("hook --container app --max-wait 60 --fallback-wait 15") else {
        panic!("not hook")
    };
    assert_eq!(hook.dir.to_str(), Some(contract::MOUNT_PATH));
    assert_eq!(
        (hook.min_hold, hook.liveness_cap, hook.original_first),
        (Duration::ZERO, None, false)
    );
    assert!(hook.original.is_empty());
    assert_eq!(
        read("ready"),
        Command::Ready(ReadyArgs {
            dir: contract::MOUNT_PATH.into()
        })
    );
}

#[test]
fn hook_keeps_the_original_untouched_whatever_it_looks_like() {
    let mut args = words(
        "hook --container app --max-wait 60 --fallback-wait 15 --liveness-cap 7.5 --original-first --",
    );
    let bytes = OsString::from_vec(vec![0xff, b'=', b'-']);
    let original = [
        OsString::from("--max-wait"),
        "--".into(),
        "".into(),
        "-x".into(),
        "a=b".into(),
        bytes,
    ];
    args.extend(original.iter().cloned());
    let Command::Hook(hook) = parse(args).unwrap() else {
        panic!("not hook")
    };
    assert_eq!(hook.original, original);
    assert_eq!(hook.max_wait, Duration::from_mins(1));
    assert_eq!(hook.liveness_cap, Some(Duration::from_millis(7500)));
    assert!(hook.original_first);
}

#[test]
fn equals_sign_works_like_a_space() {
    assert_eq!(read("ready --dir=/d"), read("ready --dir /d"));
}

#[test]
fn refusals_name_the_key_the_value_and_what_is_allowed() {
    let needed = "--container a --fallback-wait 1";
    for (line, parts) in [
        ("", vec!["verb", "run, ready and hook"]),
        ("wait", vec!["\"wait\"", "run, ready and hook"]),
        ("ready --colour red", vec!["--colour", "--dir"]),
        ("ready now", vec!["\"now\"", "--dir"]),
        ("ready -x", vec!["-x", "--dir"]),
        (&format!("hook {needed}"), vec!["--max-wait", "hook"]),
        (
            &format!("hook {needed} --max-wait banana"),
            vec!["--max-wait", "banana", "decimal number"],
        ),
        (
            &format!("hook {needed} --max-wait -5"),
            vec!["--max-wait", "-5", "0 or more"],
        ),
        (
            &format!("hook {needed} --max-wait inf"),
            vec!["--max-wait", "inf", "decimal number"],
        ),
        ("hook --max-wait 1 --fallback-wait 1", vec!["--container"]),
        ("hook --max-wait", vec!["--max-wait"]),
        (
            "run --max-wait 1 --original-grace 1 --fallback-wait 1 --server-name a --probes 8080",
            vec!["--probes", "\"8080\"", "PORT:PER_MINUTE", "65535"],
        ),
        (
            "run --max-wait 1 --original-grace 1 --fallback-wait 1 --colour red",
            vec!["--colour", "--host-network"],
        ),
        ("run --host-network=yes", vec!["host-network"]),
        (
            "run --max-wait 1 --original-grace 1 --fallback-wait 1",
            vec!["--server-name"],
        ),
    ] {
        let text = refused(line);
        for part in parts {
            assert!(text.contains(part), "{line:?}: {text:?} lacks {part:?}");
        }
    }
}

#[test]
fn probes_are_a_port_and_a_rate() {
    for (text, read) in [
        ("8080:6", Some((8080, 6.0))),
        (" 65535:0.5 ", Some((65535, 0.5))),
        ("1:0", Some((1, 0.0))),
        ("0:6", None),
        ("65536:6", None),
        ("http:6", None),
        ("8080:", None),
        ("8080:-1", None),
        ("8080:inf", None),
        ("8080:NaN", None),
        ("", None),
    ] {
        assert_eq!(probe(text), read, "{text:?}");
    }
}

#[test]
fn run_and_ready_take_no_original() {
    let run = "run --original-grace 30 --max-wait 60 --fallback-wait 15 --server-name a.b";
    for line in ["ready -- sh", &format!("{run} -- sh"), &format!("{run} sh")] {
        assert!(refused(line).contains("sh"), "{line}");
    }
}

#[test]
fn usage_names_every_flag() {
    for name in [
        DIR,
        TOKEN_FILE,
        flag::ORIGINAL_GRACE,
        flag::MAX_WAIT,
        flag::MIN_HOLD,
        flag::FALLBACK_WAIT,
        flag::SETTLE,
        flag::HOST_NETWORK,
        flag::PROBES,
        flag::SERVER_NAME,
        flag::CONTAINER,
        flag::LIVENESS_CAP,
        flag::ORIGINAL_FIRST,
    ] {
        assert!(USAGE.contains(&format!("--{name}")), "{name}");
    }
    assert!(USAGE.contains(contract::ENV_CONFIRMER) && USAGE.contains(contract::ENV_CA));
}

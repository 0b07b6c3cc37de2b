use super::*;
use crate::inject::config::{
    DEFAULT_FALLBACK_WAIT, DEFAULT_MAX_WAIT, DEFAULT_MAX_WAIT_CAP, DEFAULT_MAX_WAIT_NLB,
};

const AUTO: (Duration, &str) = (DEFAULT_MAX_WAIT, "so it is");

fn config() -> InjectConfig {
    InjectConfig {
        waiter_image: String::new(),
        confirmer: String::new(),
        server_name: String::new(),
        ca_pem: String::new(),
        default_max_wait: DEFAULT_MAX_WAIT,
        default_max_wait_nlb: DEFAULT_MAX_WAIT_NLB,
        slow: std::sync::Arc::default(),
        default_fallback_wait: DEFAULT_FALLBACK_WAIT,
        max_wait_cap: DEFAULT_MAX_WAIT_CAP,
        version: String::new(),
    }
}

fn annotations(pairs: &[(&str, &str)]) -> Annotations<'static> {
    let json: serde_json::Map<_, _> = pairs
        .iter()
        .map(|(key, value)| ((*key).to_owned(), (*value).into()))
        .collect();
    let json = serde_json::Value::Object(json).to_string();
    serde_json::from_str(Box::leak(json.into_boxed_str())).unwrap()
}

#[test]
fn a_pod_without_annotations_gets_the_defaults() {
    let none = Annotations::default();
    let (options, remarks) = Options::read(&none, &config(), AUTO).unwrap();
    assert_eq!(
        options,
        Options {
            max_wait: DEFAULT_MAX_WAIT,
            max_wait_because: Some("so it is".to_owned()),
            fallback_wait: DEFAULT_FALLBACK_WAIT,
            settle: None,
            quiet: None,
            containers: None,
            original_first: false
        }
    );
    assert!(remarks.is_empty());
    assert_eq!(opted_in(&none), Ok(true));
}

#[test]
fn every_key_is_read() {
    let annotations = annotations(&[
        ("prestop-gate.dev/inject", "true"),
        ("prestop-gate.dev/max-wait", "1m30s"),
        ("prestop-gate.dev/fallback-wait", "0"),
        ("prestop-gate.dev/quiet", "8s"),
        ("prestop-gate.dev/settle", "20s"),
        ("prestop-gate.dev/containers", "app, proxy,"),
        ("prestop-gate.dev/original", "before"),
        ("prestop-gate.dev/status", "anything"),
        ("example.com/other", "x"),
    ]);
    let (options, remarks) = Options::read(&annotations, &config(), AUTO).unwrap();
    assert_eq!(
        options,
        Options {
            max_wait: Duration::from_secs(90),
            max_wait_because: None,
            fallback_wait: Duration::ZERO,
            settle: Some(Duration::from_secs(20)),
            quiet: Some(Duration::from_secs(8)),
            containers: Some(vec!["app", "proxy"]),
            original_first: true,
        }
    );
    assert_eq!(remarks, Vec::<String>::new());
}

#[test]
fn auto_is_the_default_max_wait() {
    let annotations = annotations(&[("prestop-gate.dev/max-wait", "auto")]);
    assert_eq!(
        Options::read(&annotations, &config(), AUTO)
            .unwrap()
            .0
            .max_wait,
        DEFAULT_MAX_WAIT
    );
}

#[test]
fn a_bad_value_is_refused_naming_key_value_and_what_is_allowed() {
    for (key, value, allowed) in [
        (
            "prestop-gate.dev/max-wait",
            "banana",
            "from 1s to 30m, or \"auto\"",
        ),
        ("prestop-gate.dev/max-wait", "-5s", "from 1s to 30m"),
        ("prestop-gate.dev/max-wait", "1h", "from 1s to 30m"),
        ("prestop-gate.dev/max-wait", "30m0.001s", "from 1s to 30m"),
        ("prestop-gate.dev/max-wait", "0s", "from 1s to 30m"),
        ("prestop-gate.dev/max-wait", "", "from 1s to 30m"),
        ("prestop-gate.dev/fallback-wait", "auto", "from 0s to 30m"),
        ("prestop-gate.dev/settle", "5", "from 0s to 30m"),
        (
            "prestop-gate.dev/original",
            "never",
            "\"after\" or \"before\"",
        ),
    ] {
        let annotations = annotations(&[(key, value)]);
        let refusals = Options::read(&annotations, &config(), AUTO).unwrap_err();
        assert_eq!(refusals.len(), 1, "{key} {value}");
        for part in [key, &format!("{value:?}"), allowed] {
            assert!(refusals[0].contains(part), "{part} in {}", refusals[0]);
        }
    }
}

#[test]
fn all_bad_values_are_told_at_once() {
    let annotations = annotations(&[
        ("prestop-gate.dev/max-wait", "x"),
        ("prestop-gate.dev/settle", "y"),
    ]);
    assert_eq!(
        Options::read(&annotations, &config(), AUTO)
            .unwrap_err()
            .len(),
        2
    );
}

#[test]
fn inject_is_true_or_false_and_nothing_else() {
    let value = |value| opted_in(&annotations(&[("prestop-gate.dev/inject", value)]));
    assert_eq!(value("true"), Ok(true));
    assert_eq!(value("false"), Ok(false));
    for other in ["True", "yes", "", "false "] {
        assert!(
            value(other).unwrap_err().contains(r#""true" or "false""#),
            "{other}"
        );
    }
}

#[test]
fn unknown_keys_of_ours_are_remarked_on_and_others_are_not() {
    let annotations = annotations(&[
        ("prestop-gate.dev/max-wiat", "60s"),
        ("example.com/max-wiat", "60s"),
    ]);
    let (_, remarks) = Options::read(&annotations, &config(), AUTO).unwrap();
    assert_eq!(remarks.len(), 1);
    assert!(
        remarks[0].contains("\"prestop-gate.dev/max-wiat\"") && remarks[0].contains("max-wait"),
        "{}",
        remarks[0]
    );
}

#[test]
fn a_settle_that_no_hold_can_finish_is_remarked_on() {
    let annotations = annotations(&[("prestop-gate.dev/settle", "60s")]);
    let (_, remarks) = Options::read(&annotations, &config(), AUTO).unwrap();
    assert!(
        remarks[0].contains("prestop-gate.dev/settle") && remarks[0].contains("60s"),
        "{}",
        remarks[0]
    );
}

#[test]
fn a_value_in_a_warning_is_short_and_has_no_control_characters() {
    let value = format!("a\nb\u{7}{}", "x".repeat(1000));
    let annotations = annotations(&[("prestop-gate.dev/max-wait", &value)]);
    let refusal = Options::read(&annotations, &config(), AUTO)
        .unwrap_err()
        .remove(0);
    assert!(
        refusal.chars().count() < 256 && !refusal.contains(char::is_control),
        "{refusal}"
    );
}

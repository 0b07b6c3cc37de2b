//! How long a pod that doesn't say may be held: by what sends to it.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use webhook::inject::{InjectConfig, Outcome, Reason, SlowSelector, SlowSelectors};

use crate::support::*;

const BECAUSE: &str = "Service default/app is behind an NLB (TargetGroupBinding default/app-nlb)";

/// A Service of this namespace with this selector is behind an NLB.
fn slow(namespace: &str, selector: &[(&str, &str)]) -> InjectConfig {
    let pairs = selector.iter();
    let slow = SlowSelector {
        namespace: namespace.to_owned(),
        selector: pairs
            .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
            .collect(),
        because: BECAUSE.to_owned(),
    };
    InjectConfig {
        slow: Arc::new(SlowSelectors::new([slow])),
        ..config()
    }
}

/// The pod gated with this configuration; a second pass must change nothing.
fn gated(pod: &Value, config: &InjectConfig) -> Value {
    let Outcome::Patched {
        reason: Reason::Injected,
        patch,
        ..
    } = run_with(pod, "default", config)
    else {
        panic!("not injected");
    };
    let patched = apply(pod, &patch);
    let again = run_with(&patched, "default", config);
    assert!(matches!(again, Outcome::Unchanged { .. }), "{again:?}");
    patched
}

/// max-wait by the status, why by the status, and the grace period.
fn waits(pod: &Value) -> (Value, Value, Value) {
    let waits = &status(pod)["waits"];
    let grace = &pod["spec"]["terminationGracePeriodSeconds"];
    (
        waits["maxWait"].clone(),
        waits["maxWaitBecause"].clone(),
        grace.clone(),
    )
}

#[test]
fn pod_behind_an_nlb_gets_the_longer_wait_everywhere_and_its_status_says_why() {
    let pod = gated(&mk_pod(json!({})), &slow("default", &[("app", "app")]));
    assert_eq!(waits(&pod), (json!("240s"), json!(BECAUSE), json!(280)));
    let arguments = waiter(&pod)["args"].as_array().unwrap();
    assert!(
        arguments.contains(&json!("--max-wait=240")),
        "{arguments:?}"
    );
    assert!(hook(&pod, 0).contains(&"--max-wait=240"));
}

#[test]
fn pod_that_no_slow_service_selects_gets_the_shorter_one() {
    let short = (json!("60s"), json!("no NLB known for it"), json!(100));
    for config in [
        config(),
        slow("default", &[("app", "other")]),
        slow("default", &[("app", "app"), ("tier", "front")]),
        slow("default", &[]),
        slow("other", &[("app", "app")]),
    ] {
        assert_eq!(waits(&gated(&mk_pod(json!({})), &config)), short);
    }
    let mut bare = mk_pod(json!({}));
    bare["metadata"].as_object_mut().unwrap().remove("labels");
    let config = slow("default", &[("app", "app")]);
    assert_eq!(waits(&gated(&bare, &config)), short);
}

#[test]
fn annotation_wins_and_may_spell_out_the_default() {
    let config = slow("default", &[("app", "app")]);
    let explicit = gated(&annotated("max-wait", "90s"), &config);
    assert_eq!(waits(&explicit), (json!("90s"), json!(null), json!(130)));
    let auto = gated(&annotated("max-wait", "auto"), &config);
    assert_eq!(waits(&auto), (json!("240s"), json!(BECAUSE), json!(280)));
}

#[test]
fn longer_default_of_the_operator_holds_for_slow_pods_too() {
    let config = InjectConfig {
        default_max_wait: Duration::from_mins(5),
        ..slow("default", &[("app", "app")])
    };
    assert_eq!(waits(&gated(&mk_pod(json!({})), &config)).0, "300s");
}

/// What sends to a pod may be learned between two passes: its waits were told to it in the first.
#[test]
fn second_pass_keeps_the_waits_of_the_first_and_claims_no_reason_for_them() {
    let first = gated(&mk_pod(json!({})), &config());
    let mut grown = first.clone();
    let late = json!({"name": "late"});
    grown["spec"]["containers"]
        .as_array_mut()
        .unwrap()
        .push(late);
    let second = gated(&grown, &slow("default", &[("app", "app")]));
    assert_eq!(waits(&second), (json!("60s"), json!(null), json!(100)));
    assert!(hook(&second, 1).contains(&"--max-wait=60"));
}

#[test]
fn status_says_what_could_not_be_looked_for() {
    let config = InjectConfig {
        slow: Arc::new(SlowSelectors::default().incomplete("services can't be watched")),
        ..config()
    };
    let because = "no NLB known for it, but services can't be watched";
    assert_eq!(waits(&gated(&mk_pod(json!({})), &config)).1, because);
}

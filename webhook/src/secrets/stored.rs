//! A Secret's content ⇄ an identity. What isn't ours in the Secret stays as it is.

use certs::{Identity, KeyPairPem};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::api::ObjectMeta;
use sidecar::contract;

use crate::secrets::Spec;

const CA_CERT: &str = "ca.crt";
const CA_KEY: &str = "ca.key";
const LEAF_CERT: &str = "tls.crt";
const LEAF_KEY: &str = "tls.key";
const PREVIOUS_CA_CERT: &str = "ca-previous.crt";

/// What `kubectl get -l` finds our objects by.
const LABELS: [(&str, &str); 3] = [
    ("app.kubernetes.io/name", contract::NAMESPACE),
    ("app.kubernetes.io/component", "certificates"),
    ("app.kubernetes.io/managed-by", contract::NAMESPACE),
];

/// Fixed at creation; it obliges the Secret to have the leaf's keys, and is what other tools look for.
const TYPE: &str = "kubernetes.io/tls";

/// Reads what is stored. What is missing reads as empty and is refused when it is verified.
pub(super) fn read(secret: &Secret) -> Identity {
    let text = |key: &str| {
        let bytes = secret.data.as_ref().and_then(|data| data.get(key));
        bytes.map(|ByteString(bytes)| String::from_utf8_lossy(bytes).into_owned())
    };
    let pair = |cert, key| KeyPairPem {
        cert: text(cert).unwrap_or_default(),
        key: text(key).unwrap_or_default(),
    };
    Identity {
        authority: pair(CA_CERT, CA_KEY),
        leaf: pair(LEAF_CERT, LEAF_KEY),
        previous_authority: text(PREVIOUS_CA_CERT),
    }
}

/// The Secret to be written: what was found (with its resourceVersion, so that a change meanwhile is a conflict) or a
/// new one, holding `identity`.
pub(super) fn with_identity(found: Option<&Secret>, spec: &Spec, identity: &Identity) -> Secret {
    let mut secret = found.cloned().unwrap_or_else(|| Secret {
        metadata: ObjectMeta {
            name: Some(spec.secret.to_owned()),
            namespace: Some(contract::NAMESPACE.to_owned()),
            ..ObjectMeta::default()
        },
        type_: Some(TYPE.to_owned()),
        ..Secret::default()
    });
    let labels = secret.metadata.labels.get_or_insert_default();
    labels.extend(LABELS.map(|(key, value)| (key.to_owned(), value.to_owned())));
    let data = secret.data.get_or_insert_default();
    let previous = identity.previous_authority.as_ref();
    for (key, text) in [
        (CA_CERT, Some(&identity.authority.cert)),
        (CA_KEY, Some(&identity.authority.key)),
        (LEAF_CERT, Some(&identity.leaf.cert)),
        (LEAF_KEY, Some(&identity.leaf.key)),
        (PREVIOUS_CA_CERT, previous),
    ] {
        match text {
            Some(text) => data.insert(key.to_owned(), ByteString(text.clone().into_bytes())),
            None => data.remove(key),
        };
    }
    secret
}

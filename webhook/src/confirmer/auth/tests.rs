//! Tokens as the API server signs them, and every way to forge one.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::{Algorithm, EncodingKey, Header, encode};
use rcgen::{KeyPair, PublicKeyData as _};
use serde_json::{Value, json};

use super::{Error, Keys, PodIdentity};

const ISSUER: &str = "https://kubernetes.default.svc";

struct Signer {
    key: EncodingKey,
    keys: Keys,
    point: Vec<u8>,
}

/// An API server that signs with ES256 under key id `k1`.
fn mk_signer() -> Signer {
    let pair = KeyPair::generate().expect("a key must be generated");
    let point = pair.der_bytes().to_vec();
    let jwks = json!({"keys": [
        {"kty": "future", "kid": "k0"},
        {
            "kty": "EC", "crv": "P-256", "kid": "k1", "use": "sig", "alg": "ES256",
            "x": URL_SAFE_NO_PAD.encode(&point[1..33]), "y": URL_SAFE_NO_PAD.encode(&point[33..65]),
        },
    ]});
    Signer {
        key: EncodingKey::from_ec_der(&pair.serialize_der()),
        keys: Keys::parse(ISSUER.to_owned(), &jwks.to_string()).expect("the key set must be read"),
        point,
    }
}

fn now() -> u64 {
    std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .expect("the clock must be past 1970")
        .as_secs()
}

fn mk_claims() -> Value {
    json!({
        "iss": ISSUER,
        "aud": ["prestop-gate.dev"],
        "exp": now() + 3600,
        "nbf": now() - 10,
        "sub": "system:serviceaccount:shop:default",
        "kubernetes.io": {
            "namespace": "shop",
            "node": {"name": "n1", "uid": "n-uid"},
            "pod": {"name": "web-0", "uid": "u1"},
            "serviceaccount": {"name": "default", "uid": "sa-uid"},
        },
    })
}

fn sign(signer: &Signer, kid: &str, claims: &Value) -> String {
    let header = Header {
        kid: Some(kid.to_owned()),
        ..Header::new(Algorithm::ES256)
    };
    encode(&header, claims, &signer.key).expect("the token must be signed")
}

#[test]
fn pod_comes_from_the_token() {
    let signer = mk_signer();
    let pod = signer
        .keys
        .verify(&sign(&signer, "k1", &mk_claims()))
        .expect("the token must be valid");
    let expected = PodIdentity {
        namespace: "shop".to_owned(),
        name: "web-0".to_owned(),
        uid: "u1".to_owned(),
    };
    assert_eq!(pod, expected);
}

#[test]
fn tokens_with_one_wrong_claim_are_refused() {
    let signer = mk_signer();
    let cases = [
        ("aud", json!(["https://kubernetes.default.svc"])),
        ("aud", Value::Null),
        ("iss", json!("https://elsewhere.example")),
        ("iss", Value::Null),
        ("exp", json!(now() - 3600)),
        ("exp", Value::Null),
        ("nbf", json!(now() + 3600)),
    ];
    for (claim, value) in cases {
        let mut claims = mk_claims();
        if value.is_null() {
            claims
                .as_object_mut()
                .expect("claims are an object")
                .remove(claim);
        } else {
            claims[claim] = value.clone();
        }
        let result = signer.keys.verify(&sign(&signer, "k1", &claims));
        assert!(
            matches!(result, Err(Error::Invalid(_))),
            "{claim} {value}: {result:?}"
        );
    }
}

#[test]
fn token_that_no_kubelet_asked_for_is_refused() {
    let signer = mk_signer();
    let mut claims = mk_claims();
    claims["kubernetes.io"]
        .as_object_mut()
        .expect("an object")
        .remove("pod");
    assert!(matches!(
        signer.keys.verify(&sign(&signer, "k1", &claims)),
        Err(Error::NotBound)
    ));
    claims
        .as_object_mut()
        .expect("an object")
        .remove("kubernetes.io");
    assert!(matches!(
        signer.keys.verify(&sign(&signer, "k1", &claims)),
        Err(Error::NotBound)
    ));
}

/// `kubectl create token SA --audience prestop-gate.dev --bound-object-kind Pod …`, as an API server of 1.34 signs it:
/// the same `TokenRequest` that the kubelet makes.
#[test]
fn token_that_a_person_asked_for_a_pod_is_that_pods() {
    let signer = mk_signer();
    let mut claims = mk_claims();
    claims["iat"] = json!(now());
    claims["jti"] = json!("7f0d8c1e-3a51-4a39-9d1c-0c6e5b1f2a77");
    let pod = signer.keys.verify(&sign(&signer, "k1", &claims));
    assert_eq!(pod.expect("the token must be valid").uid, "u1");
    // Bound to something else, it is nobody's.
    for kind in ["secret", "node"] {
        let mut claims = claims.clone();
        claims["kubernetes.io"] = json!({
            "namespace": "shop",
            kind: {"name": "web-0", "uid": "u1"},
            "serviceaccount": {"name": "default", "uid": "sa-uid"},
        });
        let result = signer.keys.verify(&sign(&signer, "k1", &claims));
        assert!(matches!(result, Err(Error::NotBound)), "{kind}: {result:?}");
    }
}

#[test]
fn other_signer_under_the_same_key_id_is_refused() {
    let (signer, other) = (mk_signer(), mk_signer());
    assert!(matches!(
        signer.keys.verify(&sign(&other, "k1", &mk_claims())),
        Err(Error::Invalid(_))
    ));
}

#[test]
fn unknown_key_id_is_told_apart_so_that_the_keys_are_fetched_again() {
    let signer = mk_signer();
    let result = signer.keys.verify(&sign(&signer, "k2", &mk_claims()));
    assert!(matches!(result, Err(Error::UnknownKey(Some(id))) if id == "k2"));
}

#[test]
fn token_without_signature_is_refused() {
    let signer = mk_signer();
    let part = |value: Value| URL_SAFE_NO_PAD.encode(value.to_string());
    let token = format!(
        "{}.{}.",
        part(json!({"alg": "none", "kid": "k1"})),
        part(mk_claims())
    );
    assert!(matches!(signer.keys.verify(&token), Err(Error::Invalid(_))));
}

#[test]
fn public_key_used_as_a_shared_secret_is_refused() {
    let signer = mk_signer();
    let header = Header {
        kid: Some("k1".to_owned()),
        ..Header::new(Algorithm::HS256)
    };
    for secret in [signer.point.as_slice(), &signer.point[1..]] {
        let token = encode(&header, &mk_claims(), &EncodingKey::from_secret(secret))
            .expect("the token must be signed");
        assert!(matches!(signer.keys.verify(&token), Err(Error::Invalid(_))));
    }
}

#[test]
fn symmetric_key_in_the_set_is_never_used() {
    let keys = Keys::parse(
        ISSUER.to_owned(),
        &json!({"keys": [{"kty": "oct", "kid": "k1", "alg": "HS256", "k": "c2VjcmV0"}]})
            .to_string(),
    )
    .expect("the key set must be read");
    let header = Header {
        kid: Some("k1".to_owned()),
        ..Header::new(Algorithm::HS256)
    };
    let token = encode(&header, &mk_claims(), &EncodingKey::from_secret(b"secret"))
        .expect("the token must be signed");
    assert!(matches!(keys.verify(&token), Err(Error::UnknownKey(_))));
}

#[test]
fn text_that_is_no_token_is_refused() {
    let signer = mk_signer();
    for text in ["", ".", "a.b.c", "ey", &"x".repeat(100_000)] {
        assert!(signer.keys.verify(text).is_err());
    }
}

use rustls::pki_types::CertificateDer;
use x509_parser::extensions::ParsedExtension;

use super::*;
use crate::fixture::{POLICY, at, mk_identity, names};

fn refusal(identity: &Identity, seconds: u64) -> Error {
    identity.verify(names, at(seconds)).unwrap_err()
}

#[test]
fn new_identity_verifies_for_each_of_its_names() {
    let verified = mk_identity(0).verify(names, at(0)).unwrap();
    assert_eq!(
        verified.key_id.len(),
        40,
        "SHA-256 cut to 20 octets, in hex"
    );
    assert!(
        verified
            .key_id
            .chars()
            .all(|c| c.is_ascii_digit() || ('a'..='f').contains(&c))
    );
    assert_eq!(
        (verified.leaf.not_before, verified.leaf.not_after),
        (at(0) - std::time::Duration::from_secs(90), at(900))
    );
    assert_eq!(verified.authority.not_after, at(9_000));
    assert_eq!(verified.trust_pem.matches("BEGIN CERTIFICATE").count(), 1);
    assert!(!verified.trust_pem.contains("PRIVATE"));
}

#[test]
fn leaf_of_another_authority_is_refused() {
    let (ours, theirs) = (mk_identity(0), mk_identity(0));
    let mixed = Identity {
        authority: theirs.authority,
        ..ours
    };
    // Both authorities have the same name, so it is the signature that tells them apart.
    assert!(
        matches!(
            refusal(&mixed, 0),
            Error::Chain(rustls::Error::InvalidCertificate(_))
        ),
        "{:?}",
        refusal(&mixed, 0)
    );
}

#[test]
fn keys_must_belong_to_their_certificates() {
    let (ours, theirs) = (mk_identity(0), mk_identity(0));
    let mut identity = ours.clone();
    identity.leaf.key = theirs.leaf.key;
    assert!(matches!(refusal(&identity, 0), Error::Key(_)));
    let mut identity = ours;
    identity.authority.key = theirs.authority.key;
    assert!(matches!(
        refusal(&identity, 0),
        Error::Authority(authority::Error::KeyMismatch)
    ));
}

#[test]
fn time_decides() {
    let identity = mk_identity(0);
    assert!(identity.verify(names, at(900)).is_ok());
    assert!(
        matches!(refusal(&identity, 901), Error::Chain(_)),
        "the leaf has expired"
    );
    assert!(matches!(refusal(&identity, 9_001), Error::AuthorityExpired));
    let early = at(0) - std::time::Duration::from_secs(91);
    assert!(
        matches!(identity.verify(names, early).unwrap_err(), Error::Chain(_)),
        "the leaf hasn't begun"
    );
}

#[test]
fn missing_name_is_told() {
    let more = |key_id: &str| [names(key_id), vec!["other.test.svc".to_owned()]].concat();
    let error = mk_identity(0).verify(more, at(0)).unwrap_err();
    assert_eq!(
        error.to_string(),
        r#"failed to find the name "other.test.svc" in the leaf"#
    );
}

#[test]
fn each_broken_text_is_an_error_of_its_own() {
    let good = mk_identity(0);
    let broken = |change: fn(&mut Identity)| {
        let mut identity = good.clone();
        change(&mut identity);
        refusal(&identity, 0)
    };
    assert!(matches!(
        broken(|i| i.authority.cert.clear()),
        Error::Authority(authority::Error::Pem { .. })
    ));
    assert!(matches!(
        broken(|i| i.authority.key = "garbage".into()),
        Error::Authority(authority::Error::Key(_))
    ));
    assert!(matches!(
        broken(|i| i.authority = i.leaf.clone()),
        Error::Authority(authority::Error::Certificate { .. })
    ));
    assert!(matches!(broken(|i| i.leaf.cert.clear()), Error::Key(_)));
    assert!(matches!(
        broken(|i| i.leaf.key.clear()),
        Error::Pem {
            what: "private key",
            ..
        }
    ));
    assert!(matches!(
        broken(|i| i.leaf.cert =
            "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n".into()),
        Error::Key(_)
    ));
    assert!(matches!(
        broken(|i| i.previous_authority = Some("x".into())),
        Error::PreviousAuthority(_)
    ));
}

#[test]
fn previous_authority_is_trusted_too() {
    let before = mk_identity(0);
    let now = Identity {
        previous_authority: Some(before.authority.cert.clone()),
        ..mk_identity(1)
    };
    let trust = now.verify(names, at(1)).unwrap().trust_pem;
    let roots: Vec<_> = CertificateDer::pem_slice_iter(trust.as_bytes())
        .collect::<Result<_, _>>()
        .unwrap();
    let expected: Vec<_> = [&now.authority.cert, &before.authority.cert]
        .map(|pem| CertificateDer::from_pem_slice(pem.as_bytes()).unwrap())
        .into();
    assert_eq!(roots, expected);
}

#[test]
fn extensions_are_those_that_verifiers_look_at() {
    let identity = mk_identity(0);
    let der = |pem: &str| CertificateDer::from_pem_slice(pem.as_bytes()).unwrap();
    let (authority, leaf) = (der(&identity.authority.cert), der(&identity.leaf.cert));
    let (_, authority) = X509Certificate::from_der(&authority).unwrap();
    let (_, leaf) = X509Certificate::from_der(&leaf).unwrap();

    let key_id = |cert: &X509Certificate<'_>| {
        cert.iter_extensions()
            .find_map(|extension| match extension.parsed_extension() {
                ParsedExtension::SubjectKeyIdentifier(id) => Some(id.0.to_vec()),
                _ => None,
            })
    };
    let issuer_key_id =
        leaf.iter_extensions()
            .find_map(|extension| match extension.parsed_extension() {
                ParsedExtension::AuthorityKeyIdentifier(id) => {
                    id.key_identifier.as_ref().map(|id| id.0.to_vec())
                }
                _ => None,
            });
    assert_eq!(issuer_key_id, key_id(&authority));
    assert!(key_id(&leaf).is_some_and(|id| Some(id) != issuer_key_id));

    let constraints = authority.basic_constraints().unwrap().unwrap();
    assert!(
        constraints.critical
            && constraints.value.ca
            && constraints.value.path_len_constraint == Some(0)
    );
    assert!(
        authority
            .key_usage()
            .unwrap()
            .unwrap()
            .value
            .key_cert_sign()
    );
    assert!(leaf.key_usage().unwrap().unwrap().value.digital_signature());
    assert!(!leaf.key_usage().unwrap().unwrap().value.key_cert_sign());
    assert!(
        leaf.extended_key_usage()
            .unwrap()
            .unwrap()
            .value
            .server_auth
    );
    assert!(!leaf.is_ca());
    assert_ne!(leaf.raw_serial(), authority.raw_serial());
    assert!(leaf.raw_serial().len() <= 20 && leaf.raw_serial()[0] < 0x80);
}

#[test]
fn leaf_ends_with_its_authority() {
    let authority = Authority::from_pem(&mk_identity(0).authority).unwrap();
    let leaf = authority
        .issue_leaf(&names(authority.key_id()), POLICY.lives.leaf, at(8_500))
        .unwrap();
    let identity = Identity {
        authority: authority.pem().clone(),
        leaf,
        previous_authority: None,
    };
    assert_eq!(
        identity.verify(names, at(8_500)).unwrap().leaf.not_after,
        at(9_000)
    );
}

#[test]
fn unissuable_requests_are_errors() {
    let authority = Authority::from_pem(&mk_identity(0).authority).unwrap();
    let life = POLICY.lives.leaf;
    assert!(matches!(
        authority.issue_leaf(&["naïve".to_owned()], life, at(0)),
        Err(authority::Error::Issue(_))
    ));
    let error = Authority::create("test", std::time::Duration::MAX, at(0)).unwrap_err();
    assert!(matches!(error, authority::Error::Life(_)));
}

#[test]
fn private_keys_are_not_printed() {
    let identity = mk_identity(0);
    let key = identity.leaf.key.lines().nth(1).unwrap();
    assert!(!format!("{identity:?}").contains(key));
    let authority = Authority::from_pem(&identity.authority).unwrap();
    let key = identity.authority.key.lines().nth(1).unwrap();
    assert!(!format!("{authority:?}").contains(key));
}

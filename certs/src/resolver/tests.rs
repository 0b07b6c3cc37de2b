use super::*;
use crate::Identity;
use crate::fixture::{at, handshake, mk_identity, names};

fn mk_verified(seconds: u64) -> Verified {
    mk_identity(seconds).verify(names, at(seconds)).unwrap()
}

fn leaf(verified: &Verified) -> rustls::pki_types::CertificateDer<'static> {
    verified.certified_key.cert[0].clone()
}

#[test]
fn handshake_is_refused_until_there_is_a_leaf() {
    let resolver = Arc::new(Resolver::new());
    let verified = mk_verified(0);
    assert!(!resolver.is_ready());
    assert!(handshake(&resolver, &verified.trust_pem, "gate.test.svc", 0).is_err());
    resolver.serve(&[&verified]);
    assert!(resolver.is_ready());
    assert_eq!(
        handshake(&resolver, &verified.trust_pem, "gate.test.svc", 0),
        Ok(leaf(&verified))
    );
}

#[test]
fn client_that_trusts_another_authority_refuses_the_leaf() {
    let resolver = Arc::new(Resolver::new());
    resolver.serve(&[&mk_verified(0)]);
    let error = handshake(&resolver, &mk_verified(0).trust_pem, "gate.test.svc", 0).unwrap_err();
    assert!(
        matches!(error, rustls::Error::InvalidCertificate(_)),
        "{error:?}"
    );
}

#[test]
fn client_refuses_a_name_that_the_leaf_lacks() {
    let resolver = Arc::new(Resolver::new());
    let verified = mk_verified(0);
    resolver.serve(&[&verified]);
    assert!(handshake(&resolver, &verified.trust_pem, "other.test.svc", 0).is_err());
}

#[test]
fn next_handshake_sees_each_of_two_renewals() {
    let resolver = Arc::new(Resolver::new());
    let identity = mk_identity(0);
    let mut seen = Vec::new();
    let trust_pem = identity.verify(names, at(0)).unwrap().trust_pem;
    let mut identity = identity;
    for seconds in [0, 600, 1_200] {
        identity = renewed(identity, seconds);
        resolver.serve(&[&identity.verify(names, at(seconds)).unwrap()]);
        seen.push(handshake(&resolver, &trust_pem, "gate.test.svc", seconds).unwrap());
    }
    assert_eq!(seen.len(), 3);
    assert!(seen[0] != seen[1] && seen[1] != seen[2] && seen[0] != seen[2]);
}

fn renewed(identity: Identity, seconds: u64) -> Identity {
    let plan = crate::plan(Some(&identity), None, &crate::fixture::POLICY, at(seconds)).unwrap();
    plan.write.map_or(identity, |(renewed, _)| renewed)
}

#[test]
fn leaf_is_chosen_by_the_authority_that_the_server_name_tells() {
    let resolver = Arc::new(Resolver::new());
    let (current, previous) = (mk_verified(0), mk_verified(0));
    resolver.serve(&[&current, &previous]);
    for verified in [&current, &previous] {
        let name = format!("{}.gate.test.svc", verified.key_id);
        assert_eq!(
            handshake(&resolver, &verified.trust_pem, &name, 0),
            Ok(leaf(verified))
        );
    }
    let cert = |name: Option<&str>| resolver.choose(name).unwrap().cert[0].clone();
    assert_eq!(cert(None), leaf(&current), "a client without SNI");
    assert_eq!(cert(Some("gate.test.svc")), leaf(&current));
    assert_eq!(cert(Some(&previous.key_id.to_uppercase())), leaf(&previous));
}

//! A certificate authority: made anew or read back, and the leaves that it issues.

use std::fmt::Write as _;
use std::time::{Duration, SystemTime};

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, PublicKeyData as _, SerialNumber,
};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use time::OffsetDateTime;
use x509_parser::extensions::ParsedExtension;
use x509_parser::prelude::{ASN1Time, FromDer as _, X509Certificate};

use crate::key_pair::KeyPairPem;
use crate::validity::Validity;

/// Longest DNS label, RFC 1035 §2.3.4: a key identifier serves as one.
const LABEL_LIMIT: usize = 63;

/// Why an authority can't be made, read or used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The text holds no certificate.
    #[error("failed to parse {what}")]
    Pem {
        /// Which text.
        what: &'static str,
        /// What is wrong with it.
        #[source]
        source: rustls::pki_types::pem::Error,
    },
    /// The certificate isn't X.509 as we need it.
    #[error("failed to read {what}: {problem}")]
    Certificate {
        /// Which certificate.
        what: &'static str,
        /// What is wrong with it.
        problem: String,
    },
    /// The private key is none, or of a kind that we can't use.
    #[error("failed to parse the private key of the authority")]
    Key(#[source] rcgen::Error),
    /// The private key is another certificate's.
    #[error("failed to match the authority's private key with its certificate")]
    KeyMismatch,
    /// The life is longer than a certificate can say.
    #[error("failed to issue a certificate for {0:?}: too long")]
    Life(Duration),
    /// Signing failed, or a name is none.
    #[error("failed to issue a certificate")]
    Issue(#[source] rcgen::Error),
    /// The operating system gave no random numbers.
    #[error("failed to draw a serial number")]
    Random,
}

/// A certificate authority with its key, checked to belong together.
#[derive(Debug)]
pub struct Authority {
    pem: KeyPairPem,
    key: KeyPair,
    cert: AuthorityCert,
}

/// What is read from an authority's certificate.
#[derive(Debug)]
pub(crate) struct AuthorityCert {
    der: CertificateDer<'static>,
    public_key: Vec<u8>,
    key_id: String,
    validity: Validity,
}

impl Authority {
    /// Makes an authority (EC P-256) that holds from about `now` for `life`.
    ///
    /// # Errors
    /// Where `life` is beyond what a certificate can say, or there are no random numbers.
    pub fn create(common_name: &str, life: Duration, now: SystemTime) -> Result<Self, Error> {
        let key = KeyPair::generate().map_err(Error::Key)?;
        let validity = Validity::issued(now, life).ok_or(Error::Life(life))?;
        let mut params = params(common_name, validity, life)?;
        // Its leaves only: nobody may be made an authority by it.
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![
            KeyUsagePurpose::KeyCertSign,
            KeyUsagePurpose::CrlSign,
            KeyUsagePurpose::DigitalSignature,
        ];
        let cert = params.self_signed(&key).map_err(Error::Issue)?;
        Self::from_pem(&KeyPairPem {
            cert: cert.pem(),
            key: key.serialize_pem(),
        })
    }

    /// Reads an authority back. Whether it is expired is not looked at.
    ///
    /// # Errors
    /// Where a text is no PEM, the certificate is no authority's, or the key isn't its own.
    pub fn from_pem(pem: &KeyPairPem) -> Result<Self, Error> {
        let cert = AuthorityCert::from_pem(&pem.cert, "the authority's certificate")?;
        let key = KeyPair::from_pem(&pem.key).map_err(Error::Key)?;
        if cert.public_key != key.subject_public_key_info() {
            return Err(Error::KeyMismatch);
        }
        Ok(Self {
            pem: pem.clone(),
            key,
            cert,
        })
    }

    /// Its certificate and key, as stored.
    pub fn pem(&self) -> &KeyPairPem {
        &self.pem
    }

    /// Its key identifier in lower-case hex, cut to 63 characters: one DNS label.
    pub fn key_id(&self) -> &str {
        &self.cert.key_id
    }

    /// From when to when it holds.
    pub fn validity(&self) -> Validity {
        self.cert.validity
    }

    /// Issues a server's leaf with a new key (EC P-256), named `names[0]`, for `life` or until the authority itself ends.
    ///
    /// # Errors
    /// Where a name can't stand in a certificate or `life` is beyond what one can say.
    pub fn issue_leaf(
        &self,
        names: &[String],
        life: Duration,
        now: SystemTime,
    ) -> Result<KeyPairPem, Error> {
        let key = KeyPair::generate().map_err(Error::Key)?;
        let mut validity = Validity::issued(now, life).ok_or(Error::Life(life))?;
        validity.not_after = validity.not_after.min(self.cert.validity.not_after);
        let common_name = names.first().map_or("", String::as_str);
        let mut params = params(common_name, validity, life)?;
        params.subject_alt_names = CertificateParams::new(names)
            .map_err(Error::Issue)?
            .subject_alt_names;
        params.is_ca = IsCa::ExplicitNoCa;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.use_authority_key_identifier_extension = true;
        let issuer = Issuer::from_ca_cert_der(&self.cert.der, &self.key).map_err(Error::Issue)?;
        let cert = params.signed_by(&key, &issuer).map_err(Error::Issue)?;
        Ok(KeyPairPem {
            cert: cert.pem(),
            key: key.serialize_pem(),
        })
    }
}

impl AuthorityCert {
    /// Reads the first certificate of a text, which must be an authority's.
    pub(crate) fn from_pem(pem: &str, what: &'static str) -> Result<Self, Error> {
        let der = CertificateDer::from_pem_slice(pem.as_bytes())
            .map_err(|source| Error::Pem { what, source })?;
        let broken = |problem: &str| Error::Certificate {
            what,
            problem: problem.to_owned(),
        };
        let (_, x509) =
            X509Certificate::from_der(&der).map_err(|error| broken(&error.to_string()))?;
        if !x509.is_ca() {
            return Err(broken("it isn't an authority's"));
        }
        let key_id = x509
            .iter_extensions()
            .find_map(|extension| match extension.parsed_extension() {
                ParsedExtension::SubjectKeyIdentifier(id) => Some(hex_label(id.0)),
                _ => None,
            })
            .ok_or_else(|| broken("it has no key identifier"))?;
        let validity = read_validity(&x509)
            .ok_or_else(|| broken("its time is beyond what a clock can tell"))?;
        let public_key = x509.public_key().raw.to_vec();
        Ok(Self {
            der,
            public_key,
            key_id,
            validity,
        })
    }
}

/// The validity of a parsed certificate; none where it is beyond what a clock can tell.
pub(crate) fn read_validity(x509: &X509Certificate<'_>) -> Option<Validity> {
    let instant = |time: ASN1Time| {
        let seconds = u64::try_from(time.timestamp()).ok()?;
        SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(seconds))
    };
    Some(Validity {
        not_before: instant(x509.validity().not_before)?,
        not_after: instant(x509.validity().not_after)?,
    })
}

/// What authorities and leaves have in common.
fn params(
    common_name: &str,
    validity: Validity,
    life: Duration,
) -> Result<CertificateParams, Error> {
    let instant = |time: SystemTime| {
        let since = time.duration_since(SystemTime::UNIX_EPOCH).ok()?;
        OffsetDateTime::UNIX_EPOCH.checked_add(since.try_into().ok()?)
    };
    let mut params = CertificateParams::default();
    params.not_before = instant(validity.not_before).ok_or(Error::Life(life))?;
    params.not_after = instant(validity.not_after).ok_or(Error::Life(life))?;
    params.serial_number = Some(draw_serial()?);
    params.distinguished_name = DistinguishedName::new();
    params
        .distinguished_name
        .push(DnType::CommonName, common_name);
    Ok(params)
}

/// 126 random bits: more than the 64 that the CA/Browser Forum asks for, positive, and under RFC 5280's 20 octets.
fn draw_serial() -> Result<SerialNumber, Error> {
    let mut serial = [0; 16];
    rustls::crypto::ring::default_provider()
        .secure_random
        .fill(&mut serial)
        .map_err(|_| Error::Random)?;
    serial[0] = serial[0] & 0x7f | 0x40;
    Ok(SerialNumber::from_slice(&serial))
}

fn hex_label(bytes: &[u8]) -> String {
    let mut hex = bytes.iter().fold(String::new(), |mut hex, byte| {
        // Writing into a string can't fail.
        let _ = write!(hex, "{byte:02x}");
        hex
    });
    hex.truncate(LABEL_LIMIT);
    hex
}

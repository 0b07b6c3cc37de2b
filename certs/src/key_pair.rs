//! A certificate and its private key as PEM texts.

use std::fmt;

/// A certificate and its private key, PEM; as stored, so nothing says yet that they are any good.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct KeyPairPem {
    /// The certificate; where there are more, the first is meant and the others are its intermediates.
    pub cert: String,
    /// The private key, PKCS#8.
    pub key: String,
}

impl fmt::Debug for KeyPairPem {
    /// Leaves the private key out, so that no log can hold it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyPairPem")
            .field("cert", &self.cert)
            .finish_non_exhaustive()
    }
}

//! Which leaf a TLS client gets. It is swapped atomically: a handshake costs one load, and the next one after a
//! swap sees the new leaf, on the same listening socket.

use std::sync::Arc;

use arc_swap::ArcSwapOption;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

use crate::identity::Verified;

/// Chooses the leaf by the client's server name.
#[derive(Debug, Default)]
pub struct Resolver {
    leaves: ArcSwapOption<Vec<Leaf>>,
}

#[derive(Debug)]
struct Leaf {
    key_id: String,
    certified_key: Arc<CertifiedKey>,
}

impl Resolver {
    /// A resolver without a leaf: it refuses handshakes until the first [`Resolver::serve`].
    pub fn new() -> Self {
        Self::default()
    }

    /// Serves these from the next handshake on. The first is for clients that name no authority; the others are for
    /// those that name theirs, an authority's key identifier being the first label of the server name.
    pub fn serve(&self, identities: &[&Verified]) {
        let leaves = identities
            .iter()
            .map(|verified| Leaf {
                key_id: verified.key_id.clone(),
                certified_key: Arc::clone(&verified.certified_key),
            })
            .collect();
        self.leaves.store(Some(Arc::new(leaves)));
    }

    /// Whether there is a leaf to serve.
    pub fn is_ready(&self) -> bool {
        self.choose(None).is_some()
    }

    fn choose(&self, server_name: Option<&str>) -> Option<Arc<CertifiedKey>> {
        let leaves = self.leaves.load();
        let leaves = leaves.as_deref()?;
        let label = server_name.and_then(|name| name.split('.').next());
        leaves
            .iter()
            .find(|leaf| label.is_some_and(|label| label.eq_ignore_ascii_case(&leaf.key_id)))
            .or_else(|| leaves.first())
            .map(|leaf| Arc::clone(&leaf.certified_key))
    }
}

impl ResolvesServerCert for Resolver {
    fn resolve(&self, client_hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.choose(client_hello.server_name())
    }
}

#[cfg(test)]
mod tests;

//! Test certificates, with TLS clients and servers.

use std::sync::Arc;

use rustls::crypto::ring;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio_rustls::TlsAcceptor;

/// Returns a certificate for this name and the private key.
pub(crate) fn test_certificate(name: &str) -> (CertificateDer<'static>, PrivateKeyDer<'static>) {
    certificate_valid_between(name, 1975, 4096)
}

/// Returns a certificate valid between the first days of two years.
pub(crate) fn certificate_valid_between(
    name: &str,
    from: i32,
    to: i32,
) -> (CertificateDer<'static>, PrivateKeyDer<'static>) {
    let key = rcgen::KeyPair::generate().unwrap();
    let mut made = rcgen::CertificateParams::new([name.to_owned()]).unwrap();
    made.not_before = rcgen::date_time_ymd(from, 1, 1);
    made.not_after = rcgen::date_time_ymd(to, 1, 1);
    let made = made.self_signed(&key).unwrap();
    let key = PrivatePkcs8KeyDer::from(key.serialize_der());
    (made.der().clone(), key.into())
}

/// Returns a client configuration with this single trusted certificate.
pub(crate) fn client_trusting(certificate: CertificateDer<'static>) -> ClientConfig {
    let mut roots = RootCertStore::empty();
    roots.add(certificate).unwrap();
    ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth()
}

/// Returns a server with this certificate.
pub(crate) fn tls_acceptor(
    certificate: CertificateDer<'static>,
    key: PrivateKeyDer<'static>,
) -> TlsAcceptor {
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key)
        .unwrap();
    TlsAcceptor::from(Arc::new(config))
}

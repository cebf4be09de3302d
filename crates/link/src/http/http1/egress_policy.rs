//! Connector with an egress policy: each resolved address is checked against the allow-list, and
//! exactly the checked address is dialled.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bowline_core::BoxFuture;
use bowline_core::egress::{DeniedDestination, EgressAllowlist, EgressHost};
use http::Uri;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioIo;
use thiserror::Error;
use tokio::net::TcpStream;
use tower::{Service, ServiceExt};

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Addresses per name.
const ADDRESSES_MAX: usize = 16;

/// Name resolution.
pub trait DnsLookup: fmt::Debug + Send + Sync {
    /// Returns the addresses of a name, best first.
    fn lookup_addresses<'a>(&'a self, name: &'a str) -> BoxFuture<'a, io::Result<Vec<IpAddr>>>;
}

/// The system resolver.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemDnsLookup;

impl DnsLookup for SystemDnsLookup {
    fn lookup_addresses<'a>(&'a self, name: &'a str) -> BoxFuture<'a, io::Result<Vec<IpAddr>>> {
        Box::pin(async move {
            let addresses = tokio::net::lookup_host((name, 0)).await?;
            Ok(addresses
                .map(|address| address.ip())
                .take(ADDRESSES_MAX)
                .collect())
        })
    }
}

/// Allowed destinations and the resolver.
#[derive(Clone, Debug)]
pub struct EgressPolicy {
    egress: Arc<EgressAllowlist>,
    lookup: Arc<dyn DnsLookup>,
}

/// Why no allowed address was reached.
#[derive(Debug, Error)]
enum EgressError {
    #[error("the name cannot be looked up")]
    Lookup(#[source] io::Error),
    #[error("the name has no address")]
    NoAddress,
    #[error("no connection in time")]
    Timeout(#[source] io::Error),
}

impl EgressPolicy {
    /// Returns a policy with the system resolver.
    #[must_use]
    pub fn new(egress: Arc<EgressAllowlist>) -> Self {
        Self::with_lookup(egress, Arc::new(SystemDnsLookup))
    }

    /// Returns a policy with a custom resolver.
    #[must_use]
    pub fn with_lookup(egress: Arc<EgressAllowlist>, lookup: Arc<dyn DnsLookup>) -> Self {
        Self { egress, lookup }
    }

    /// Returns host and port if any of their addresses may be allowed.
    pub(super) fn check_host(&self, to: &Uri) -> Result<(EgressHost, u16), DeniedDestination> {
        let port = match (to.port_u16(), to.scheme_str()) {
            (Some(port), _) => port,
            (None, Some("https")) => 443,
            (None, _) => 80,
        };
        let host = EgressHost::parse(to.host().unwrap_or_default());
        let host = host.ok_or_else(|| DeniedDestination::for_invalid_host(port))?;
        match self.egress.may_reach(&host, port) {
            true => Ok((host, port)),
            false => Err(DeniedDestination::for_host(host, port)),
        }
    }

    /// Resolves the allowed addresses. A denied destination gets the same error whether or not the
    /// name, the address or a listener exists.
    async fn resolve_addresses(&self, to: &Uri) -> Result<Vec<SocketAddr>, BoxError> {
        let (host, port) = self.check_host(to)?;
        let addresses = match &host {
            EgressHost::Address(address) => vec![*address],
            EgressHost::Local => EgressHost::LOCAL.to_vec(),
            EgressHost::Name(name) => match self.lookup.lookup_addresses(name).await {
                Ok(addresses) => addresses,
                Err(_) if !self.egress.has_rule_for(&host, port) => Vec::new(),
                Err(error) => return Err(EgressError::Lookup(error).into()),
            },
        };
        let addresses = addresses.get(..ADDRESSES_MAX).unwrap_or(&addresses);
        let permitted = |address: &&IpAddr| self.egress.permits_address(&host, **address, port);
        let permitted = addresses.iter().filter(permitted);
        let permitted: Vec<_> = permitted.map(|ip| SocketAddr::new(*ip, port)).collect();
        match addresses.first() {
            _ if !permitted.is_empty() => Ok(permitted),
            Some(address) => Err(DeniedDestination::for_address(host, *address, port).into()),
            None if self.egress.has_rule_for(&host, port) => Err(EgressError::NoAddress.into()),
            None => Err(DeniedDestination::for_host(host, port).into()),
        }
    }
}

/// Dials allowed addresses only.
#[derive(Clone, Debug)]
pub(super) struct EgressConnector {
    pub(super) policy: EgressPolicy,
    pub(super) tcp: HttpConnector,
    pub(super) connect_timeout: Duration,
}

impl EgressConnector {
    async fn dial_allowed(self, to: Uri) -> Result<TokioIo<TcpStream>, BoxError> {
        let addresses = self.policy.resolve_addresses(&to).await?;
        // Split the timeout, so a silent address leaves time for the rest.
        let count = u32::try_from(addresses.len()).unwrap_or(u32::MAX).max(1);
        let each = self.connect_timeout / count;
        let mut failed: BoxError = EgressError::NoAddress.into();
        for address in addresses {
            // A literal address is not resolved again.
            let literal = Uri::builder().scheme("http").authority(address.to_string());
            let literal = literal.path_and_query("/").build()?;
            let dialling = self.tcp.clone().oneshot(literal);
            match tokio::time::timeout(each, dialling).await {
                Ok(Ok(stream)) => return Ok(stream),
                Ok(Err(error)) => failed = error.into(),
                Err(_) => failed = EgressError::Timeout(io::ErrorKind::TimedOut.into()).into(),
            }
        }
        Err(failed)
    }
}

impl Service<Uri> for EgressConnector {
    type Response = TokioIo<TcpStream>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Self::Response, BoxError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, to: Uri) -> Self::Future {
        Box::pin(self.clone().dial_allowed(to))
    }
}

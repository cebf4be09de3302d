//! What dials only where it may: every address is held against the allow-list after its name was
//! looked up, and that very address is dialled.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bowline_core::egress::{Denied, Egress, Host};
use http::Uri;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioIo;
use thiserror::Error;
use tokio::net::TcpStream;
use tower::{Service, ServiceExt};

use crate::link::BoxFuture;

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Addresses of one name that are looked at.
const ADDRESSES_MAX: usize = 16;

/// Looks names up.
pub trait Lookup: fmt::Debug + Send + Sync {
    /// Returns the addresses of a name, the best first.
    fn lookup<'a>(&'a self, name: &'a str) -> BoxFuture<'a, io::Result<Vec<IpAddr>>>;
}

/// Looks names up as this machine does.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemLookup;

impl Lookup for SystemLookup {
    fn lookup<'a>(&'a self, name: &'a str) -> BoxFuture<'a, io::Result<Vec<IpAddr>>> {
        Box::pin(async move {
            let found = tokio::net::lookup_host((name, 0)).await?;
            Ok(found
                .map(|address| address.ip())
                .take(ADDRESSES_MAX)
                .collect())
        })
    }
}

/// Where may be dialled.
#[derive(Clone, Debug)]
pub struct Gate {
    egress: Arc<Egress>,
    lookup: Arc<dyn Lookup>,
}

/// Why nobody was reached who may be.
#[derive(Debug, Error)]
enum GateError {
    #[error("the name cannot be looked up")]
    Lookup(#[source] io::Error),
    #[error("the name has no address")]
    NoAddress,
    #[error("no connection in time")]
    Timeout(#[source] io::Error),
}

impl Gate {
    /// Returns a gate that lets through what is allowed.
    #[must_use]
    pub fn new(egress: Arc<Egress>) -> Self {
        Self::with_lookup(egress, Arc::new(SystemLookup))
    }

    /// Returns a gate that looks names up in its own way.
    #[must_use]
    pub fn with_lookup(egress: Arc<Egress>, lookup: Arc<dyn Lookup>) -> Self {
        Self { egress, lookup }
    }

    /// Returns who is asked, if anything that it leads to may be dialled.
    pub(super) fn host(&self, to: &Uri) -> Result<(Host, u16), Denied> {
        let port = match (to.port_u16(), to.scheme_str()) {
            (Some(port), _) => port,
            (None, Some("https")) => 443,
            (None, _) => 80,
        };
        let host = Host::parse(to.host().unwrap_or_default());
        let host = host.ok_or_else(|| Denied::odd(port))?;
        match self.egress.may(&host, port) {
            true => Ok((host, port)),
            false => Err(Denied::host(host, port)),
        }
    }

    /// Returns the addresses that may be dialled. What may not be asked for is denied alike
    /// whether or not there is such a name, such an address or somebody who listens.
    async fn addresses(&self, to: &Uri) -> Result<Vec<SocketAddr>, BoxError> {
        let (host, port) = self.host(to)?;
        let found = match &host {
            Host::Address(address) => vec![*address],
            Host::Local => Host::LOCAL.to_vec(),
            Host::Name(name) => match self.lookup.lookup(name).await {
                Ok(found) => found,
                Err(_) if !self.egress.names(&host, port) => Vec::new(),
                Err(error) => return Err(GateError::Lookup(error).into()),
            },
        };
        let found = found.get(..ADDRESSES_MAX).unwrap_or(&found);
        let permitted = |address: &&IpAddr| self.egress.permits(&host, **address, port);
        let permitted = found.iter().filter(permitted);
        let permitted: Vec<_> = permitted.map(|ip| SocketAddr::new(*ip, port)).collect();
        match found.first() {
            _ if !permitted.is_empty() => Ok(permitted),
            Some(address) => Err(Denied::address(host, *address, port).into()),
            None if self.egress.names(&host, port) => Err(GateError::NoAddress.into()),
            None => Err(Denied::host(host, port).into()),
        }
    }
}

/// Dials through a gate.
#[derive(Clone, Debug)]
pub(super) struct Gated {
    pub(super) gate: Gate,
    pub(super) tcp: HttpConnector,
    pub(super) connect: Duration,
}

impl Gated {
    async fn dial(self, to: Uri) -> Result<TokioIo<TcpStream>, BoxError> {
        let addresses = self.gate.addresses(&to).await?;
        // One that does not answer leaves time for the others.
        let count = u32::try_from(addresses.len()).unwrap_or(u32::MAX).max(1);
        let each = self.connect / count;
        let mut failed: BoxError = GateError::NoAddress.into();
        for address in addresses {
            // An address is not looked up once more.
            let literal = Uri::builder().scheme("http").authority(address.to_string());
            let literal = literal.path_and_query("/").build()?;
            let dialling = self.tcp.clone().oneshot(literal);
            match tokio::time::timeout(each, dialling).await {
                Ok(Ok(stream)) => return Ok(stream),
                Ok(Err(error)) => failed = error.into(),
                Err(_) => failed = GateError::Timeout(io::ErrorKind::TimedOut.into()).into(),
            }
        }
        Err(failed)
    }
}

impl Service<Uri> for Gated {
    type Response = TokioIo<TcpStream>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Self::Response, BoxError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, to: Uri) -> Self::Future {
        Box::pin(self.clone().dial(to))
    }
}

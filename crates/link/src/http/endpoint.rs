//! Server address with a known origin; its query is never displayed.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use http::Uri;
use http::uri::{PathAndQuery, Scheme};
use thiserror::Error;

/// Longest address in a redirect or `endpoint` event.
const REFERENCE_BYTES_MAX: usize = 8 * 1024;

/// An absolute http or https address. The query may be a secret and is never displayed.
#[derive(Clone, PartialEq, Eq)]
pub struct HttpEndpoint {
    uri: Uri,
    origin: Arc<HttpOrigin>,
}

/// Scheme, host and port of a connection.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(super) struct HttpOrigin {
    host: Box<str>,
    port: u16,
    is_tls: bool,
}

/// Why an address is invalid.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum EndpointError {
    /// Not parsable.
    #[error("the address is not valid")]
    Invalid,
    /// Neither http nor https.
    #[error("the address is neither http nor https")]
    Scheme,
    /// Contains a user name or password, which belongs into a header.
    #[error("the address holds a user name or password")]
    Password,
}

impl HttpEndpoint {
    /// Parses an address.
    ///
    /// # Errors
    /// The address is not absolute http or https, or contains a password.
    pub fn parse(text: &str) -> Result<Self, EndpointError> {
        let uri: Uri = text.trim().parse().map_err(|_| EndpointError::Invalid)?;
        Self::from_uri(uri)
    }

    fn from_uri(uri: Uri) -> Result<Self, EndpointError> {
        let is_tls = match uri.scheme() {
            Some(scheme) if *scheme == Scheme::HTTP => false,
            Some(scheme) if *scheme == Scheme::HTTPS => true,
            Some(_) => return Err(EndpointError::Scheme),
            None => return Err(EndpointError::Invalid),
        };
        let authority = uri.authority().ok_or(EndpointError::Invalid)?;
        if authority.as_str().contains('@') {
            return Err(EndpointError::Password);
        }
        let host = authority.host().to_ascii_lowercase();
        if host.is_empty() {
            return Err(EndpointError::Invalid);
        }
        let port = match authority.port() {
            Some(port) => port.as_str().parse().map_err(|_| EndpointError::Invalid)?,
            None if is_tls => 443,
            None => 80,
        };
        let origin = HttpOrigin {
            host: host.into(),
            port,
            is_tls,
        };
        Ok(Self {
            uri,
            origin: Arc::new(origin),
        })
    }

    /// Returns the origin.
    #[cfg(feature = "http")]
    pub(super) const fn origin(&self) -> &Arc<HttpOrigin> {
        &self.origin
    }

    /// Returns the address, including secrets.
    #[must_use]
    pub const fn uri(&self) -> &Uri {
        &self.uri
    }

    /// Returns the port, or the default port of the scheme.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.origin.port
    }

    /// Whether scheme, host and port are equal.
    #[must_use]
    pub fn is_same_origin(&self, other: &Self) -> bool {
        self.origin == other.origin
    }

    /// Whether the connection is confidential: TLS, or loopback.
    #[must_use]
    pub fn is_private(&self) -> bool {
        self.origin.is_tls || is_loopback(&self.origin.host)
    }

    /// Resolves an absolute or relative reference against this address.
    ///
    /// # Errors
    /// The reference is invalid.
    pub fn resolve(&self, reference: &str) -> Result<Self, EndpointError> {
        let reference = reference.trim();
        let reference = reference.split('#').next().unwrap_or_default();
        if reference.len() > REFERENCE_BYTES_MAX {
            return Err(EndpointError::Invalid);
        }
        if has_scheme(reference) {
            return Self::parse(reference);
        }
        let scheme = if self.origin.is_tls { "https" } else { "http" };
        if reference.starts_with("//") {
            return Self::parse(&format!("{scheme}:{reference}"));
        }
        let path = self.join_path(reference);
        let path = PathAndQuery::try_from(path).map_err(|_| EndpointError::Invalid)?;
        let mut parts = self.uri.clone().into_parts();
        parts.path_and_query = Some(path);
        let uri = Uri::from_parts(parts).map_err(|_| EndpointError::Invalid)?;
        Self::from_uri(uri)
    }

    /// Joins the path with a relative reference.
    fn join_path(&self, reference: &str) -> String {
        if reference.is_empty() {
            let same = self.uri.path_and_query();
            return same.map_or_else(|| "/".to_owned(), ToString::to_string);
        }
        let (path, query) = match reference.split_once('?') {
            Some((path, query)) => (path, Some(query)),
            None => (reference, None),
        };
        let mut out = if path.starts_with('/') {
            remove_dot_segments(path)
        } else if path.is_empty() {
            self.uri.path().to_owned()
        } else {
            let base_path = self.uri.path();
            let folder = base_path.rsplit_once('/').map_or("", |(folder, _)| folder);
            remove_dot_segments(&format!("{folder}/{path}"))
        };
        if let Some(query) = query {
            out.push('?');
            out.push_str(query);
        }
        out
    }
}

/// Whether a reference is absolute.
fn has_scheme(reference: &str) -> bool {
    let Some((scheme, _)) = reference.split_once(':') else {
        return false;
    };
    scheme.starts_with(|first: char| first.is_ascii_alphabetic())
        && scheme
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte))
}

/// Removes `.` and `..` from an absolute path.
fn remove_dot_segments(path: &str) -> String {
    let mut result: Vec<&str> = Vec::new();
    let mut segments = path.split('/').skip(1).peekable();
    while let Some(segment) = segments.next() {
        let is_last = segments.peek().is_none();
        match segment {
            "." | ".." => {
                if segment == ".." {
                    result.pop();
                }
                if is_last {
                    result.push("");
                }
            }
            segment => result.push(segment),
        }
    }
    format!("/{}", result.join("/"))
}

fn is_loopback(host: &str) -> bool {
    let name = host.strip_suffix('.').unwrap_or(host);
    if name == "localhost" || name.ends_with(".localhost") {
        return true;
    }
    let address = host.trim_start_matches('[').trim_end_matches(']');
    address
        .parse()
        .is_ok_and(|address: IpAddr| address.is_loopback())
}

impl fmt::Display for HttpEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.origin.is_tls { "https" } else { "http" };
        let authority = self.uri.authority().map_or("", |name| name.as_str());
        write!(f, "{scheme}://{authority}{}", self.uri.path())
    }
}

impl fmt::Debug for HttpEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HttpEndpoint({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolve_from(base: &str, reference: &str) -> String {
        let base = HttpEndpoint::parse(base).unwrap();
        let there = base.resolve(reference).unwrap();
        there.uri().to_string()
    }

    #[test]
    fn reference_resolves_against_base() {
        for (reference, want) in [
            ("https://b.example/x", "https://b.example/x"),
            ("//b.example/x?y", "http://b.example/x?y"),
            ("/x", "http://a.example:8/x"),
            ("x", "http://a.example:8/one/x"),
            ("./x/../y?z=1", "http://a.example:8/one/y?z=1"),
            ("../../..", "http://a.example:8/"),
            ("?q", "http://a.example:8/one/two?q"),
            ("", "http://a.example:8/one/two?k=v"),
            ("/a#part", "http://a.example:8/a"),
            ("/m?u=http://c/d", "http://a.example:8/m?u=http://c/d"),
        ] {
            let base = "http://a.example:8/one/two?k=v";
            assert_eq!(resolve_from(base, reference), want, "{reference:?}");
        }
    }

    #[test]
    fn origin_is_scheme_host_and_port() {
        let one = HttpEndpoint::parse("https://A.example/mcp").unwrap();
        let same = |other: &str| one.is_same_origin(&HttpEndpoint::parse(other).unwrap());
        assert!(same("https://a.example:443/other"));
        assert!(!same("http://a.example:443/mcp"));
        assert!(!same("https://a.example:8443/mcp"));
        assert!(!same("https://b.example/mcp"));
    }

    #[test]
    fn only_tls_and_loopback_are_private() {
        for (address, want) in [
            ("https://tracker.example/", true),
            ("http://127.0.0.1:1/", true),
            ("http://127.9.9.9/", true),
            ("http://[::1]:8080/", true),
            ("http://LOCALHOST/", true),
            ("http://api.localhost/", true),
            ("http://tracker.example/", false),
            ("http://10.0.0.1/", false),
            ("http://localhost.example/", false),
            ("http://127.0.0.1.example/", false),
        ] {
            let endpoint = HttpEndpoint::parse(address).unwrap();
            assert_eq!(endpoint.is_private(), want, "{address}");
        }
    }

    #[test]
    fn endpoint_hides_query_and_rejects_password() {
        let endpoint = HttpEndpoint::parse("http://a.example/mcp?key=s3cret").unwrap();
        assert_eq!(endpoint.to_string(), "http://a.example/mcp");
        assert_eq!(
            format!("{endpoint:?}"),
            "HttpEndpoint(http://a.example/mcp)"
        );
        let parsed = |text| HttpEndpoint::parse(text).map(|_| ());
        assert_eq!(
            parsed("http://u:p@a.example/"),
            Err(EndpointError::Password)
        );
        assert_eq!(parsed("ftp://a.example/"), Err(EndpointError::Scheme));
        assert_eq!(parsed("/mcp"), Err(EndpointError::Invalid));
    }
}

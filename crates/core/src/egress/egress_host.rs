//! The host part of a URL, parsed strictly to avoid ambiguity with resolvers.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::fmt;

use super::ip_range::to_canonical;

/// Bytes of a host name (RFC 1035).
const NAME_BYTES_MAX: usize = 253;

/// Bytes of a label (RFC 1035).
const LABEL_BYTES_MAX: usize = 63;

/// A destination host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EgressHost {
    /// An IP address in canonical form.
    Address(IpAddr),
    /// `localhost`. Never resolved.
    Local,
    /// A host name, in lower case without a trailing dot.
    Name(Box<str>),
}

impl EgressHost {
    /// The addresses of `localhost`.
    pub const LOCAL: [IpAddr; 2] = [
        IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(Ipv6Addr::LOCALHOST),
    ];

    /// Parses a host; IPv6 addresses may stand in brackets. Returns `None` for texts that resolvers
    /// may read differently: numbers other than dotted quads, `0x7f.1`, `127.1`, zones, escapes.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        if let Some(inside) = text.strip_prefix('[') {
            let address: Ipv6Addr = inside.strip_suffix(']')?.parse().ok()?;
            return Some(Self::Address(to_canonical(address.into())));
        }
        if let Ok(address) = text.parse::<Ipv6Addr>() {
            return Some(Self::Address(to_canonical(address.into())));
        }
        let name = text.strip_suffix('.').unwrap_or(text);
        if let Ok(address) = name.parse::<Ipv4Addr>() {
            return Some(Self::Address(address.into()));
        }
        match parse_host_name(name)? {
            local if &*local == "localhost" => Some(Self::Local),
            name => Some(Self::Name(name)),
        }
    }
}

/// Parses a host name. A name ending in a number is refused, since some resolvers read an address.
pub(super) fn parse_host_name(text: &str) -> Option<Box<str>> {
    let fits = |label: &str| {
        (1..=LABEL_BYTES_MAX).contains(&label.len())
            && !label.starts_with('-')
            && !label.ends_with('-')
            && label
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
    };
    let fits = text.len() <= NAME_BYTES_MAX && text.split('.').all(fits);
    let last = text.rsplit('.').next().unwrap_or_default();
    (fits && !is_numeric_label(last)).then(|| text.to_ascii_lowercase().into())
}

/// Whether some parsers read the label as a decimal, octal or hexadecimal number.
fn is_numeric_label(label: &str) -> bool {
    let hex = label
        .strip_prefix("0x")
        .or_else(|| label.strip_prefix("0X"));
    match hex {
        Some(digits) => digits.bytes().all(|byte| byte.is_ascii_hexdigit()),
        None => label.bytes().all(|byte| byte.is_ascii_digit()),
    }
}

impl fmt::Display for EgressHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(IpAddr::V6(address)) => write!(f, "[{address}]"),
            Self::Address(IpAddr::V4(address)) => write!(f, "{address}"),
            Self::Local => f.write_str("localhost"),
            Self::Name(name) => f.write_str(name),
        }
    }
}

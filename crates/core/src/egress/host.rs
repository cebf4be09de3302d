//! A host as it stands in an address, read so that nobody can take it for another.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::fmt;

use super::net::plain;

/// Bytes of a name; the standard's number.
const NAME_BYTES_MAX: usize = 253;

/// Bytes of one part of a name; the standard's number.
const LABEL_BYTES_MAX: usize = 63;

/// Who is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Host {
    /// An address, out of whatever it was wrapped in.
    Address(IpAddr),
    /// This machine, by its name. It is not looked up.
    Local,
    /// A name, in lower case and without a dot at its end.
    Name(Box<str>),
}

impl Host {
    /// The addresses of this machine that its name stands for.
    pub const LOCAL: [IpAddr; 2] = [
        IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(Ipv6Addr::LOCALHOST),
    ];

    /// Reads a host; addresses of version 6 may stand in brackets. Nothing is returned for what a
    /// resolver may read in another way than we do: numbers that are not four, `0x7f.1`, `127.1`,
    /// zones, escapes.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        if let Some(inside) = text.strip_prefix('[') {
            let address: Ipv6Addr = inside.strip_suffix(']')?.parse().ok()?;
            return Some(Self::Address(plain(address.into())));
        }
        if let Ok(address) = text.parse::<Ipv6Addr>() {
            return Some(Self::Address(plain(address.into())));
        }
        let name = text.strip_suffix('.').unwrap_or(text);
        if let Ok(address) = name.parse::<Ipv4Addr>() {
            return Some(Self::Address(address.into()));
        }
        match name_of(name)? {
            local if &*local == "localhost" => Some(Self::Local),
            name => Some(Self::Name(name)),
        }
    }
}

/// Reads a name; one that ends in a number is taken for an address by some, and is none.
pub(super) fn name_of(text: &str) -> Option<Box<str>> {
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
    (fits && !is_number(last)).then(|| text.to_ascii_lowercase().into())
}

/// Whether some read this as a number: in decimal, octal or hexadecimal.
fn is_number(label: &str) -> bool {
    let hex = label
        .strip_prefix("0x")
        .or_else(|| label.strip_prefix("0X"));
    match hex {
        Some(digits) => digits.bytes().all(|byte| byte.is_ascii_hexdigit()),
        None => label.bytes().all(|byte| byte.is_ascii_digit()),
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(IpAddr::V6(address)) => write!(f, "[{address}]"),
            Self::Address(IpAddr::V4(address)) => write!(f, "{address}"),
            Self::Local => f.write_str("localhost"),
            Self::Name(name) => f.write_str(name),
        }
    }
}

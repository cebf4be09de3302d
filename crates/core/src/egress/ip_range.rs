//! IP address ranges.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::fmt;

/// Prefix length of an IPv4-mapped IPv6 address.
const MAPPED_V4_PREFIX_LEN: u8 = 96;

/// A CIDR range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct IpRange {
    base: IpAddr,
    /// The prefix length.
    prefix_len: u8,
}

impl IpRange {
    pub(super) const fn from_address(address: IpAddr) -> Self {
        let prefix_len = match address {
            IpAddr::V4(_) => 32,
            IpAddr::V6(_) => 128,
        };
        Self {
            base: address,
            prefix_len,
        }
    }

    /// Returns an IPv4 range.
    pub(super) const fn new_v4(base: [u8; 4], prefix_len: u8) -> Self {
        let [a, b, c, d] = base;
        Self {
            base: IpAddr::V4(Ipv4Addr::new(a, b, c, d)),
            prefix_len,
        }
    }

    /// Returns an IPv6 range from the first four groups.
    pub(super) const fn new_v6(first: [u16; 4], prefix_len: u8) -> Self {
        let [a, b, c, d] = first;
        Self {
            base: IpAddr::V6(Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0)),
            prefix_len,
        }
    }

    /// Returns a single IPv6 address.
    pub(super) const fn new_v6_address(groups: [u16; 8]) -> Self {
        let [a, b, c, d, e, f, g, h] = groups;
        Self::from_address(IpAddr::V6(Ipv6Addr::new(a, b, c, d, e, f, g, h)))
    }

    /// Returns the range of this prefix length around an address.
    pub(super) fn containing(address: IpAddr, prefix_len: u8) -> Self {
        let base = match address {
            IpAddr::V4(address) => {
                IpAddr::V4(Ipv4Addr::from_bits(address.to_bits() & mask_v4(prefix_len)))
            }
            IpAddr::V6(address) => {
                IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & mask_v6(prefix_len)))
            }
        };
        Self { base, prefix_len }
    }

    /// Parses `10.0.0.0/8` or a single address. Returns `None` if host bits are set, since the
    /// author meant a different range.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (base, len) = match text.split_once('/') {
            None => return Some(Self::from_address(to_canonical(text.parse().ok()?))),
            Some((base, len)) => (base.parse::<IpAddr>().ok()?, len),
        };
        let is_digits = (1..=3).contains(&len.len()) && len.bytes().all(|b| b.is_ascii_digit());
        let len: u8 = is_digits.then(|| len.parse().ok()).flatten()?;
        if len > Self::from_address(base).prefix_len || Self::containing(base, len).base != base {
            return None;
        }
        match (to_canonical(base), base) {
            (IpAddr::V4(inner), IpAddr::V6(_)) if len >= MAPPED_V4_PREFIX_LEN => Some(Self {
                base: inner.into(),
                prefix_len: len - MAPPED_V4_PREFIX_LEN,
            }),
            // Ambiguous: the range may or may not mean the mapped IPv4 addresses.
            (IpAddr::V4(_), IpAddr::V6(_)) => None,
            _ => Some(Self {
                base,
                prefix_len: len,
            }),
        }
    }

    pub(super) const fn prefix_len(&self) -> u8 {
        self.prefix_len
    }

    pub(super) fn contains(&self, address: IpAddr) -> bool {
        address.is_ipv4() == self.base.is_ipv4()
            && Self::containing(address, self.prefix_len).base == self.base
    }

    /// Whether every address of the range lies in `other`.
    pub(super) fn is_subset_of(&self, other: &Self) -> bool {
        self.prefix_len >= other.prefix_len && other.contains(self.base)
    }
}

/// Converts an IPv4-mapped IPv6 address to IPv4.
pub(super) fn to_canonical(address: IpAddr) -> IpAddr {
    address.to_canonical()
}

fn mask_v4(len: u8) -> u32 {
    u32::MAX
        .checked_shl(32 - u32::from(len.min(32)))
        .unwrap_or(0)
}

fn mask_v6(len: u8) -> u128 {
    let len = u32::from(len.min(128));
    u128::MAX.checked_shl(128 - len).unwrap_or(0)
}

impl fmt::Display for IpRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            base,
            prefix_len: len,
        } = self;
        match (base, *self == Self::from_address(*base)) {
            (IpAddr::V4(base), true) => write!(f, "{base}"),
            (IpAddr::V4(base), false) => write!(f, "{base}/{len}"),
            (IpAddr::V6(base), true) => write!(f, "[{base}]"),
            (IpAddr::V6(base), false) => write!(f, "[{base}/{len}]"),
        }
    }
}

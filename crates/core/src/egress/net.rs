//! Ranges of addresses.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::fmt;

/// Bits of an address of version 6 before the one of version 4 that it wraps.
const WRAPPED_AT: u8 = 96;

/// All addresses that begin alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Net {
    base: IpAddr,
    /// How many bits are alike.
    len: u8,
}

impl Net {
    pub(super) const fn single(address: IpAddr) -> Self {
        let len = match address {
            IpAddr::V4(_) => 32,
            IpAddr::V6(_) => 128,
        };
        Self { base: address, len }
    }

    /// Returns the range of version 4 with these bits.
    pub(super) const fn v4(base: [u8; 4], len: u8) -> Self {
        let [a, b, c, d] = base;
        Self {
            base: IpAddr::V4(Ipv4Addr::new(a, b, c, d)),
            len,
        }
    }

    /// Returns the range of version 6 that begins with these groups.
    pub(super) const fn v6(first: [u16; 4], len: u8) -> Self {
        let [a, b, c, d] = first;
        Self {
            base: IpAddr::V6(Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0)),
            len,
        }
    }

    /// Returns one address of version 6.
    pub(super) const fn v6_whole(groups: [u16; 8]) -> Self {
        let [a, b, c, d, e, f, g, h] = groups;
        Self::single(IpAddr::V6(Ipv6Addr::new(a, b, c, d, e, f, g, h)))
    }

    /// Returns the range of what is like this address in its first bits.
    pub(super) fn around(address: IpAddr, len: u8) -> Self {
        let base = match address {
            IpAddr::V4(address) => {
                IpAddr::V4(Ipv4Addr::from_bits(address.to_bits() & mask_v4(len)))
            }
            IpAddr::V6(address) => {
                IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & mask_v6(len)))
            }
        };
        Self { base, len }
    }

    /// Reads `10.0.0.0/8`, or one address. Nothing is returned where bits are set that do not
    /// count: who wrote them meant something else.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (base, len) = match text.split_once('/') {
            None => return Some(Self::single(plain(text.parse().ok()?))),
            Some((base, len)) => (base.parse::<IpAddr>().ok()?, len),
        };
        let is_digits = (1..=3).contains(&len.len()) && len.bytes().all(|b| b.is_ascii_digit());
        let len: u8 = is_digits.then(|| len.parse().ok()).flatten()?;
        if len > Self::single(base).len || Self::around(base, len).base != base {
            return None;
        }
        match (plain(base), base) {
            (IpAddr::V4(inner), IpAddr::V6(_)) if len >= WRAPPED_AT => Some(Self {
                base: inner.into(),
                len: len - WRAPPED_AT,
            }),
            // Whether it means those of version 4 that are wrapped is not said.
            (IpAddr::V4(_), IpAddr::V6(_)) => None,
            _ => Some(Self { base, len }),
        }
    }

    pub(super) const fn bits(&self) -> u8 {
        self.len
    }

    pub(super) fn covers(&self, address: IpAddr) -> bool {
        address.is_ipv4() == self.base.is_ipv4()
            && Self::around(address, self.len).base == self.base
    }

    /// Whether each address of this is one of the other's.
    pub(super) fn is_within(&self, other: &Self) -> bool {
        self.len >= other.len && other.covers(self.base)
    }
}

/// Takes an address of version 4 out of one of version 6 that is only another way to write it.
pub(super) fn plain(address: IpAddr) -> IpAddr {
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

impl fmt::Display for Net {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { base, len } = self;
        match (base, *self == Self::single(*base)) {
            (IpAddr::V4(base), true) => write!(f, "{base}"),
            (IpAddr::V4(base), false) => write!(f, "{base}/{len}"),
            (IpAddr::V6(base), true) => write!(f, "[{base}]"),
            (IpAddr::V6(base), false) => write!(f, "[{base}/{len}]"),
        }
    }
}

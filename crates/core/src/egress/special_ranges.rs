//! Special-purpose ranges: this machine, private networks, metadata, tunnels.

use core::net::{IpAddr, Ipv4Addr};

use super::ip_range::IpRange;

/// Special IPv4 ranges. A narrow range precedes the enclosing wide range.
const SPECIAL_V4: [IpRange; 20] = [
    // Cloud metadata services and agents, including a public address.
    IpRange::new_v4([169, 254, 169, 254], 32),
    IpRange::new_v4([169, 254, 170, 2], 32),
    IpRange::new_v4([169, 254, 170, 23], 32),
    IpRange::new_v4([100, 100, 100, 200], 32),
    IpRange::new_v4([192, 0, 0, 192], 32),
    IpRange::new_v4([168, 63, 129, 16], 32),
    // This network, and loopback.
    IpRange::new_v4([0, 0, 0, 0], 8),
    IpRange::new_v4([127, 0, 0, 0], 8),
    // Private, carrier-grade NAT, and link-local.
    IpRange::new_v4([10, 0, 0, 0], 8),
    IpRange::new_v4([172, 16, 0, 0], 12),
    IpRange::new_v4([192, 168, 0, 0], 16),
    IpRange::new_v4([100, 64, 0, 0], 10),
    IpRange::new_v4([169, 254, 0, 0], 16),
    // Protocol assignments, documentation, 6to4 relay, benchmarking.
    IpRange::new_v4([192, 0, 0, 0], 24),
    IpRange::new_v4([192, 0, 2, 0], 24),
    IpRange::new_v4([198, 51, 100, 0], 24),
    IpRange::new_v4([203, 0, 113, 0], 24),
    IpRange::new_v4([192, 88, 99, 0], 24),
    IpRange::new_v4([198, 18, 0, 0], 15),
    // Multicast and reserved.
    IpRange::new_v4([224, 0, 0, 0], 3),
];

/// Special IPv6 ranges, in the same order. Everything outside `2000::/3` is special.
const SPECIAL_V6: [IpRange; 20] = [
    // Cloud metadata services.
    IpRange::new_v6_address([0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254]),
    IpRange::new_v6_address([0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254]),
    // Loopback and unspecified.
    IpRange::new_v6_address([0, 0, 0, 0, 0, 0, 0, 1]),
    IpRange::new_v6_address([0, 0, 0, 0, 0, 0, 0, 0]),
    // IPv4 embedded, translated (NAT64) or tunnelled.
    IpRange::new_v6([0, 0, 0, 0], 96),
    IpRange::new_v6([0x64, 0xff9b, 0, 0], 96),
    IpRange::new_v6([0x64, 0xff9b, 1, 0], 48),
    IpRange::new_v6([0x2001, 0, 0, 0], 32),
    IpRange::new_v6([0x2002, 0, 0, 0], 16),
    // Protocol assignments and documentation.
    IpRange::new_v6([0x2001, 0, 0, 0], 23),
    IpRange::new_v6([0x2001, 0xdb8, 0, 0], 32),
    IpRange::new_v6([0x3fff, 0, 0, 0], 20),
    // Unique local, link-local, site-local (deprecated), multicast.
    IpRange::new_v6([0xfc00, 0, 0, 0], 7),
    IpRange::new_v6([0xfe80, 0, 0, 0], 10),
    IpRange::new_v6([0xfec0, 0, 0, 0], 10),
    IpRange::new_v6([0xff00, 0, 0, 0], 8),
    // The remaining ranges.
    IpRange::new_v6([0x100, 0, 0, 0], 64),
    IpRange::new_v6([0, 0, 0, 0], 3),
    IpRange::new_v6([0x4000, 0, 0, 0], 2),
    IpRange::new_v6([0x8000, 0, 0, 0], 1),
];

/// IPv6 ranges with an embedded IPv4 address, and the bit offset of the address.
const EMBEDDED_V4: [(IpRange, u8); 3] = [
    (IpRange::new_v6([0, 0, 0, 0], 96), 96),
    (IpRange::new_v6([0x64, 0xff9b, 0, 0], 96), 96),
    (IpRange::new_v6([0x2002, 0, 0, 0], 16), 16),
];

/// Returns the narrowest special range of an address.
pub(super) fn special_range(address: IpAddr) -> Option<IpRange> {
    let ranges = match address {
        IpAddr::V4(_) => &SPECIAL_V4,
        IpAddr::V6(_) => &SPECIAL_V6,
    };
    let range = ranges.iter().find(|range| range.contains(address))?;
    Some(embedded_v4_range(address).unwrap_or(*range))
}

/// Returns the IPv6 form of the special range of an embedded IPv4 address.
fn embedded_v4_range(address: IpAddr) -> Option<IpRange> {
    let IpAddr::V6(outer) = address else {
        return None;
    };
    let (_, before) = EMBEDDED_V4
        .iter()
        .find(|(range, _)| range.contains(address))?;
    // `::` and `::1` are no tunnels.
    if outer.is_unspecified() || outer.is_loopback() {
        return None;
    }
    let bits = outer.to_bits() << before >> 96;
    let inner = Ipv4Addr::from_bits(u32::try_from(bits).ok()?);
    let range = special_range(inner.into())?;
    Some(IpRange::containing(address, before + range.prefix_len()))
}

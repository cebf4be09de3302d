//! Ranges that are not for everybody: this machine, private networks, metadata, tunnels.

use core::net::{IpAddr, Ipv4Addr};

use super::net::Net;

/// What is special of version 4. A narrow range stands before the wide one that holds it.
const V4: [Net; 20] = [
    // Metadata and agents of clouds, one of them at a public address.
    Net::v4([169, 254, 169, 254], 32),
    Net::v4([169, 254, 170, 2], 32),
    Net::v4([169, 254, 170, 23], 32),
    Net::v4([100, 100, 100, 200], 32),
    Net::v4([192, 0, 0, 192], 32),
    Net::v4([168, 63, 129, 16], 32),
    // This network, and this machine.
    Net::v4([0, 0, 0, 0], 8),
    Net::v4([127, 0, 0, 0], 8),
    // Private, shared by carriers, and of one link.
    Net::v4([10, 0, 0, 0], 8),
    Net::v4([172, 16, 0, 0], 12),
    Net::v4([192, 168, 0, 0], 16),
    Net::v4([100, 64, 0, 0], 10),
    Net::v4([169, 254, 0, 0], 16),
    // Protocols, examples, a relay of tunnels, measurements.
    Net::v4([192, 0, 0, 0], 24),
    Net::v4([192, 0, 2, 0], 24),
    Net::v4([198, 51, 100, 0], 24),
    Net::v4([203, 0, 113, 0], 24),
    Net::v4([192, 88, 99, 0], 24),
    Net::v4([198, 18, 0, 0], 15),
    // Many at once, and what is left.
    Net::v4([224, 0, 0, 0], 3),
];

/// What is special of version 6, in the same order. Whatever is not `2000::/3` is.
const V6: [Net; 20] = [
    // Metadata of clouds.
    Net::v6_whole([0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254]),
    Net::v6_whole([0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254]),
    // This machine, and none.
    Net::v6_whole([0, 0, 0, 0, 0, 0, 0, 1]),
    Net::v6_whole([0, 0, 0, 0, 0, 0, 0, 0]),
    // Version 4 in the clothes of version 6, translated, or in a tunnel.
    Net::v6([0, 0, 0, 0], 96),
    Net::v6([0x64, 0xff9b, 0, 0], 96),
    Net::v6([0x64, 0xff9b, 1, 0], 48),
    Net::v6([0x2001, 0, 0, 0], 32),
    Net::v6([0x2002, 0, 0, 0], 16),
    // Protocols, and examples.
    Net::v6([0x2001, 0, 0, 0], 23),
    Net::v6([0x2001, 0xdb8, 0, 0], 32),
    Net::v6([0x3fff, 0, 0, 0], 20),
    // Private, of one link, of one site as it once was, many at once.
    Net::v6([0xfc00, 0, 0, 0], 7),
    Net::v6([0xfe80, 0, 0, 0], 10),
    Net::v6([0xfec0, 0, 0, 0], 10),
    Net::v6([0xff00, 0, 0, 0], 8),
    // What is left.
    Net::v6([0x100, 0, 0, 0], 64),
    Net::v6([0, 0, 0, 0], 3),
    Net::v6([0x4000, 0, 0, 0], 2),
    Net::v6([0x8000, 0, 0, 0], 1),
];

/// Where an address of version 4 stands within one of version 6: after so many bits.
const INSIDE: [(Net, u8); 3] = [
    (Net::v6([0, 0, 0, 0], 96), 96),
    (Net::v6([0x64, 0xff9b, 0, 0], 96), 96),
    (Net::v6([0x2002, 0, 0, 0], 16), 16),
];

/// Returns the narrowest special range that an address lies in.
pub(super) fn range_of(address: IpAddr) -> Option<Net> {
    let ranges = match address {
        IpAddr::V4(_) => &V4,
        IpAddr::V6(_) => &V6,
    };
    let range = ranges.iter().find(|range| range.covers(address))?;
    Some(inside(address).unwrap_or(*range))
}

/// Returns the range, written in version 6, of the special address of version 4 that is inside.
fn inside(address: IpAddr) -> Option<Net> {
    let IpAddr::V6(outer) = address else {
        return None;
    };
    let (_, before) = INSIDE.iter().find(|(range, _)| range.covers(address))?;
    // `::` and `::1` are no tunnels.
    if outer.is_unspecified() || outer.is_loopback() {
        return None;
    }
    let bits = outer.to_bits() << before >> 96;
    let inner = Ipv4Addr::from_bits(u32::try_from(bits).ok()?);
    let range = range_of(inner.into())?;
    Some(Net::around(address, before + range.bits()))
}

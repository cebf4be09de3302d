//! Compact form of an audit row: the bytes on disk, which the chain hash covers.
//!
//! A call pays for writing its row, a reader for turning the row into JSON. A row is a version
//! byte, the sequence number in eight bytes, the kind, the time, and then each member that is
//! present: a tag byte and a value. Numbers are LEB128, texts have their length in front, digests
//! have 32 bytes. A new member gets a new tag; rows without it stay readable.

use std::borrow::Cow;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::Range;

use super::audit_row::{AuditPayload, AuditRow, AuditRowKind, BodyDigest, RowScope};

/// First byte of every row.
const VERSION: u8 = 1;

/// Position of the sequence number, which the writer assigns.
const SEQ_AT: Range<usize> = 1..9;

/// Bits of a number in each byte of its LEB128 form.
const LEB128_BITS: u32 = 7;

/// Members of a row, by the byte that announces them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum Tag {
    Ring = 1,
    Principal,
    Credential,
    PeerV4,
    PeerV6,
    Session,
    ScopeAll,
    ScopeServer,
    ScopeProfile,
    Server,
    Name,
    Method,
    Outcome,
    Class,
    Execution,
    Origin,
    Reason,
    Duration,
    Arguments,
    Result,
    Key,
    Id,
    Payload,
    PayloadArguments,
    PayloadResult,
    Count,
    Since,
    Lost,
    Prev,
    KeptFrom,
    LetGoEarly,
}

impl Tag {
    const ALL: [Self; 31] = [
        Self::Ring,
        Self::Principal,
        Self::Credential,
        Self::PeerV4,
        Self::PeerV6,
        Self::Session,
        Self::ScopeAll,
        Self::ScopeServer,
        Self::ScopeProfile,
        Self::Server,
        Self::Name,
        Self::Method,
        Self::Outcome,
        Self::Class,
        Self::Execution,
        Self::Origin,
        Self::Reason,
        Self::Duration,
        Self::Arguments,
        Self::Result,
        Self::Key,
        Self::Id,
        Self::Payload,
        Self::PayloadArguments,
        Self::PayloadResult,
        Self::Count,
        Self::Since,
        Self::Lost,
        Self::Prev,
        Self::KeptFrom,
        Self::LetGoEarly,
    ];

    fn from_byte(byte: u8) -> Option<Self> {
        let at = usize::from(byte).checked_sub(1)?;
        Self::ALL.get(at).copied()
    }
}

/// Positions of the digests in an encoded row, for bodies that are hashed later.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct DigestPositions {
    pub(super) arguments: Option<usize>,
    pub(super) result: Option<usize>,
}

/// Appends the compact form of a row. The positions count from the start of `to`.
pub(super) fn encode_row(row: &AuditRow<'_>, to: &mut Vec<u8>) -> DigestPositions {
    to.push(VERSION);
    to.extend_from_slice(&row.seq.to_be_bytes());
    to.push(row.kind as u8);
    put_number(to, row.at_ms);
    put_text(to, Tag::Ring, row.ring.as_deref());
    put_text(to, Tag::Principal, row.principal.as_deref());
    put_text(to, Tag::Credential, row.credential.as_deref());
    put_peer(to, row.peer);
    put_tagged(to, Tag::Session, row.session);
    match &row.scope {
        None => {}
        Some(RowScope::All) => to.push(Tag::ScopeAll as u8),
        Some(RowScope::Server(name)) => put_text(to, Tag::ScopeServer, Some(name)),
        Some(RowScope::Profile(name)) => put_text(to, Tag::ScopeProfile, Some(name)),
    }
    put_text(to, Tag::Server, row.server.as_deref());
    put_text(to, Tag::Name, row.name.as_deref());
    put_text(to, Tag::Method, row.method.as_deref());
    put_text(to, Tag::Outcome, row.outcome.as_deref());
    put_text(to, Tag::Class, row.class.as_deref());
    put_text(to, Tag::Execution, row.execution.as_deref());
    put_text(to, Tag::Origin, row.origin.as_deref());
    put_text(to, Tag::Reason, row.reason.as_deref());
    put_tagged(to, Tag::Duration, row.duration_us);
    let positions = DigestPositions {
        arguments: put_digest(to, Tag::Arguments, row.arguments),
        result: put_digest(to, Tag::Result, row.result),
    };
    put_text(to, Tag::Key, row.key.as_deref());
    put_text(to, Tag::Id, row.id.as_deref());
    if let Some(payload) = &row.payload {
        to.push(Tag::Payload as u8);
        put_text(to, Tag::PayloadArguments, payload.arguments.as_deref());
        put_text(to, Tag::PayloadResult, payload.result.as_deref());
    }
    put_tagged(to, Tag::Count, row.count);
    put_tagged(to, Tag::Since, row.since_ms);
    put_tagged(to, Tag::Lost, row.lost);
    put_text(to, Tag::Prev, row.prev.as_deref());
    put_tagged(to, Tag::KeptFrom, row.kept_from);
    put_tagged(to, Tag::LetGoEarly, row.let_go_early);
    positions
}

/// Writes the sequence number into an encoded row.
#[cfg(feature = "sqlite")]
pub(super) fn set_seq(encoded: &mut [u8], seq: u64) {
    if let Some(at) = encoded.get_mut(SEQ_AT) {
        at.copy_from_slice(&seq.to_be_bytes());
    }
}

/// Returns the row of a compact form; `None` for bytes that no trail wrote.
pub(super) fn decode_row(encoded: &[u8]) -> Option<AuditRow<'_>> {
    let mut rest = Reader { rest: encoded };
    if rest.take_byte()? != VERSION {
        return None;
    }
    let seq = u64::from_be_bytes(*rest.take(SEQ_AT.len())?.first_chunk()?);
    let kind = AuditRowKind::from_byte(rest.take_byte()?)?;
    let mut row = AuditRow::new(kind, rest.take_number()?);
    row.seq = seq;
    while !rest.rest.is_empty() {
        let tag = Tag::from_byte(rest.take_byte()?)?;
        decode_member(tag, &mut rest, &mut row)?;
    }
    Some(row)
}

fn decode_member<'a>(tag: Tag, rest: &mut Reader<'a>, row: &mut AuditRow<'a>) -> Option<()> {
    match tag {
        Tag::Ring => row.ring = Some(rest.take_text()?),
        Tag::Principal => row.principal = Some(rest.take_text()?),
        Tag::Credential => row.credential = Some(rest.take_text()?),
        Tag::PeerV4 => {
            let ip = Ipv4Addr::from(*rest.take(4)?.first_chunk::<4>()?);
            row.peer = Some(SocketAddr::new(IpAddr::V4(ip), rest.take_port()?));
        }
        Tag::PeerV6 => {
            let ip = Ipv6Addr::from(*rest.take(16)?.first_chunk::<16>()?);
            row.peer = Some(SocketAddr::new(IpAddr::V6(ip), rest.take_port()?));
        }
        Tag::Session => row.session = Some(rest.take_number()?),
        Tag::ScopeAll => row.scope = Some(RowScope::All),
        Tag::ScopeServer => row.scope = Some(RowScope::Server(rest.take_text()?)),
        Tag::ScopeProfile => row.scope = Some(RowScope::Profile(rest.take_text()?)),
        Tag::Server => row.server = Some(rest.take_text()?),
        Tag::Name => row.name = Some(rest.take_text()?),
        Tag::Method => row.method = Some(rest.take_text()?),
        Tag::Outcome => row.outcome = Some(rest.take_text()?),
        Tag::Class => row.class = Some(rest.take_text()?),
        Tag::Execution => row.execution = Some(rest.take_text()?),
        Tag::Origin => row.origin = Some(rest.take_text()?),
        Tag::Reason => row.reason = Some(rest.take_text()?),
        Tag::Duration => row.duration_us = Some(rest.take_number()?),
        Tag::Arguments => row.arguments = Some(rest.take_digest()?),
        Tag::Result => row.result = Some(rest.take_digest()?),
        Tag::Key => row.key = Some(rest.take_text()?),
        Tag::Id => row.id = Some(rest.take_text()?),
        Tag::Payload => row.payload = Some(AuditPayload::default()),
        Tag::PayloadArguments => row.payload.as_mut()?.arguments = Some(rest.take_text()?),
        Tag::PayloadResult => row.payload.as_mut()?.result = Some(rest.take_text()?),
        Tag::Count => row.count = Some(rest.take_number()?),
        Tag::Since => row.since_ms = Some(rest.take_number()?),
        Tag::Lost => row.lost = Some(rest.take_number()?),
        Tag::Prev => row.prev = Some(rest.take_text()?),
        Tag::KeptFrom => row.kept_from = Some(rest.take_number()?),
        Tag::LetGoEarly => row.let_go_early = Some(rest.take_number()?),
    }
    Some(())
}

fn put_number(to: &mut Vec<u8>, mut number: u64) {
    while number >= 1 << LEB128_BITS {
        to.push(number.to_le_bytes()[0] | (1 << LEB128_BITS));
        number >>= LEB128_BITS;
    }
    to.push(number.to_le_bytes()[0]);
}

fn put_tagged(to: &mut Vec<u8>, tag: Tag, number: Option<u64>) {
    if let Some(number) = number {
        to.push(tag as u8);
        put_number(to, number);
    }
}

fn put_text(to: &mut Vec<u8>, tag: Tag, text: Option<&str>) {
    if let Some(text) = text {
        to.push(tag as u8);
        put_number(to, text.len() as u64);
        to.extend_from_slice(text.as_bytes());
    }
}

fn put_peer(to: &mut Vec<u8>, peer: Option<SocketAddr>) {
    let Some(peer) = peer else { return };
    match peer.ip() {
        IpAddr::V4(ip) => {
            to.push(Tag::PeerV4 as u8);
            to.extend_from_slice(&ip.octets());
        }
        IpAddr::V6(ip) => {
            to.push(Tag::PeerV6 as u8);
            to.extend_from_slice(&ip.octets());
        }
    }
    to.extend_from_slice(&peer.port().to_be_bytes());
}

fn put_digest(to: &mut Vec<u8>, tag: Tag, digest: Option<BodyDigest>) -> Option<usize> {
    let digest = digest?;
    to.push(tag as u8);
    let at = to.len();
    to.extend_from_slice(&digest.0);
    Some(at)
}

/// Reads values from the front of an encoded row.
struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    fn take(&mut self, bytes: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(bytes)?;
        self.rest = rest;
        Some(taken)
    }

    fn take_byte(&mut self) -> Option<u8> {
        self.take(1)?.first().copied()
    }

    fn take_number(&mut self) -> Option<u64> {
        let mut number = 0;
        for shift in (0..u64::BITS).step_by(LEB128_BITS as usize) {
            let byte = self.take_byte()?;
            let bits = u64::from(byte & !(1 << LEB128_BITS));
            let shifted = bits << shift;
            // Bits beyond the number make no number.
            if shifted >> shift != bits {
                return None;
            }
            number |= shifted;
            if byte < 1 << LEB128_BITS {
                return Some(number);
            }
        }
        None
    }

    fn take_text(&mut self) -> Option<Cow<'a, str>> {
        let bytes = usize::try_from(self.take_number()?).ok()?;
        let text = std::str::from_utf8(self.take(bytes)?).ok()?;
        Some(Cow::Borrowed(text))
    }

    fn take_port(&mut self) -> Option<u16> {
        Some(u16::from_be_bytes(*self.take(2)?.first_chunk()?))
    }

    fn take_digest(&mut self) -> Option<BodyDigest> {
        Some(BodyDigest(*self.take(32)?.first_chunk()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn full_row() -> AuditRow<'static> {
        let text = |text: &'static str| Some(Cow::Borrowed(text));
        AuditRow {
            seq: 0x0102_0304_0506_0708,
            at_ms: 1_763_000_000_123,
            kind: AuditRowKind::Unauthenticated,
            ring: text("denials"),
            principal: text("ann"),
            credential: text("tok-1"),
            peer: Some("127.0.0.1:41238".parse().unwrap()),
            session: Some(u64::MAX),
            scope: Some(RowScope::Profile("écriture".into())),
            server: text("demo"),
            name: text(""),
            method: text("tools/call"),
            outcome: text("ok"),
            class: text("timeout"),
            execution: text("completed"),
            origin: text("live"),
            reason: text("no \"such\" thing\n"),
            duration_us: Some(0),
            arguments: Some(BodyDigest::from_body(b"{}")),
            result: Some(BodyDigest([0xfe; 32])),
            key: text("k"),
            id: text("w-1"),
            payload: Some(AuditPayload {
                arguments: text("{}"),
                result: None,
            }),
            count: Some(127),
            since_ms: Some(128),
            lost: Some(1 << 63),
            prev: text("00"),
            kept_from: Some(1),
            let_go_early: Some(300),
        }
    }

    fn encode(row: &AuditRow<'_>) -> Vec<u8> {
        let mut encoded = Vec::new();
        encode_row(row, &mut encoded);
        encoded
    }

    #[test]
    fn rows_decode_to_what_was_encoded() {
        let full = full_row();
        assert_eq!(decode_row(&encode(&full)), Some(full.clone()));
        let mut other = AuditRow::new(AuditRowKind::Call, 0);
        assert_eq!(decode_row(&encode(&other)), Some(other.clone()));
        other.peer = Some("[2001:db8::1]:443".parse().unwrap());
        other.scope = Some(RowScope::All);
        other.payload = Some(AuditPayload::default());
        assert_eq!(decode_row(&encode(&other)), Some(other));
        for (nth, tag) in Tag::ALL.into_iter().enumerate() {
            assert_eq!(tag as usize, nth + 1, "a tag is its position");
        }
        for kind in AuditRowKind::ALL {
            assert_eq!(AuditRowKind::from_byte(kind as u8), Some(kind));
        }
    }

    #[test]
    fn digests_stand_at_reported_positions() {
        let row = full_row();
        let mut encoded = vec![7; 5];
        let positions = encode_row(&row, &mut encoded);
        let at = positions.result.unwrap();
        assert_eq!(encoded[at..at + 32], [0xfe; 32]);
        let at = positions.arguments.unwrap();
        assert_eq!(encoded[at..at + 32], BodyDigest::from_body(b"{}").0);
    }

    #[test]
    fn foreign_bytes_are_no_row() {
        let encoded = encode(&full_row());
        for cut in 0..encoded.len() {
            // A cut between two members leaves a row with fewer members.
            let _row = decode_row(&encoded[..cut]);
        }
        assert_eq!(decode_row(b""), None);
        assert_eq!(decode_row(b"{\"seq\":1}"), None);
        let mut seed = fastrand::Rng::with_seed(50);
        for _ in 0..20_000 {
            let mut odd = encoded.clone();
            for _ in 0..seed.usize(1..4) {
                let at = seed.usize(..odd.len());
                odd[at] = seed.u8(..);
            }
            if let Some(row) = decode_row(&odd) {
                // Every decoded row can be shown.
                serde_json::to_string(&row).unwrap();
            }
        }
    }
}

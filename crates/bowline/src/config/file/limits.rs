//! `[limits]`: how much the gateway takes on, and how much of it is one principal's.

use std::ops::{Range, RangeInclusive};

use bowline_core::shares::Resource;

use super::super::size;
use super::super::tree::{Entry, Node};
use super::reader::Reader;
use super::{File, keys};

/// Calls that one principal may have in flight.
const PRINCIPAL_CALLS: RangeInclusive<u32> = 1..=1_000_000;

/// Servers that may be started at the same time.
const STARTS: RangeInclusive<u32> = 1..=1_024;

/// Shares of a resource that is counted in pieces.
const SHARE_COUNT: RangeInclusive<u32> = 1..=10_000_000;

/// Shares of a resource that is counted in bytes.
const SHARE_BYTES: RangeInclusive<u64> = size::MIB..=1024 * 1024 * size::MIB;

/// Requests of one principal in a second, and at once.
const RATE_REQUESTS: RangeInclusive<u32> = 1..=10_000_000;

/// Bytes of one principal in a second, and at once.
const RATE_BYTES: RangeInclusive<u64> = 1024..=1024 * 1024 * size::MIB;

/// Connections that have not proved who they are.
const UNPROVEN_CONNECTIONS: RangeInclusive<u32> = 16..=1_000_000;

/// What stands before the name of a resource in the key of one principal's share.
const PRINCIPAL: &str = "principal_";

/// Who may hold an amount of a resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ShareHolder {
    /// All principals together.
    All,
    /// Each principal.
    Principal,
}

/// One amount that the file gives.
#[derive(Clone, Debug)]
pub(crate) struct WrittenShare {
    /// Of which resource.
    pub(crate) resource: Resource,
    /// Who may hold it.
    pub(crate) holder: ShareHolder,
    /// How much.
    pub(crate) amount: u64,
    /// Where it stands.
    pub(crate) span: Range<usize>,
}

pub(super) fn read(reader: &mut Reader, node: &Node, place: &str, file: &mut File) {
    for entry in reader.table(node, "limits", place, &keys::LIMITS) {
        match entry.key.as_str() {
            "principal_calls" => {
                file.principal_calls = reader.count_within(entry, &PRINCIPAL_CALLS);
            }
            "starts" => file.starts = reader.count_within(entry, &STARTS),
            "first_list_wait" => file.first_list_wait = reader.duration(entry),
            "stop_wait" => file.stop_wait = reader.duration(entry),
            "principal_requests_per_s" => {
                file.requests_per_s = reader.count_within(entry, &RATE_REQUESTS);
            }
            "principal_requests_burst" => {
                file.requests_burst = reader.count_within(entry, &RATE_REQUESTS);
            }
            "principal_bytes_per_s" => file.bytes_per_s = reader.size_within(entry, &RATE_BYTES),
            "principal_bytes_burst" => file.bytes_burst = reader.size_within(entry, &RATE_BYTES),
            "unproven_connections" => {
                file.unproven_connections = reader.count_within(entry, &UNPROVEN_CONNECTIONS);
            }
            "address_connections" => {
                file.address_connections = reader.count_within(entry, &SHARE_COUNT);
            }
            _ => file.shares.extend(share(reader, entry)),
        }
    }
}

fn share(reader: &mut Reader, entry: &Entry) -> Option<WrittenShare> {
    let (holder, name) = match entry.key.strip_prefix(PRINCIPAL) {
        Some(name) => (ShareHolder::Principal, name),
        None => (ShareHolder::All, entry.key.as_str()),
    };
    let resource = Resource::parse(name)?;
    let amount = if resource.is_bytes() {
        reader.size_within(entry, &SHARE_BYTES)?
    } else {
        reader.count_within(entry, &SHARE_COUNT)?.into()
    };
    Some(WrittenShare {
        resource,
        holder,
        amount,
        span: entry.span.clone(),
    })
}

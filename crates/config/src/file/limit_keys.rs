//! `[limits]`: limits of the gateway and of each principal.

use std::ops::{Range, RangeInclusive};

use bowline_core::shares::SharedResource;

use super::super::size;
use super::super::tree::{ConfigEntry, ConfigNode};
use super::tree_reader::TreeReader;
use super::{ConfigFile, known_keys};

/// Range of calls in flight of a principal.
const PRINCIPAL_CALLS_RANGE: RangeInclusive<u32> = 1..=1_000_000;

/// Range of concurrent server starts.
const STARTS_RANGE: RangeInclusive<u32> = 1..=1_024;

/// Range of shares of a counted resource.
const SHARE_COUNT_RANGE: RangeInclusive<u32> = 1..=10_000_000;

/// Range of shares of a resource in bytes.
const SHARE_BYTES_RANGE: RangeInclusive<u64> = size::MIB..=1024 * 1024 * size::MIB;

/// Range of request rates and bursts of a principal.
const RATE_REQUESTS_RANGE: RangeInclusive<u32> = 1..=10_000_000;

/// Range of byte rates and bursts of a principal.
const RATE_BYTES_RANGE: RangeInclusive<u64> = 1024..=1024 * 1024 * size::MIB;

/// Range of unauthenticated connections.
const UNAUTHENTICATED_CONNECTIONS_RANGE: RangeInclusive<u32> = 16..=1_000_000;

/// Key prefix of a principal's share of a resource.
const PRINCIPAL_PREFIX: &str = "principal_";

/// Holder of a share of a resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ShareHolder {
    /// All principals together.
    All,
    /// Each principal.
    Principal,
}

/// One configured share.
#[derive(Clone, Debug)]
pub(crate) struct ShareSetting {
    /// The resource.
    pub(crate) resource: SharedResource,
    /// The holder.
    pub(crate) holder: ShareHolder,
    /// The amount.
    pub(crate) amount: u64,
    /// Span of the key.
    pub(crate) span: Range<usize>,
}

pub(super) fn parse_limits(
    reader: &mut TreeReader,
    node: &ConfigNode,
    table_path: &str,
    file: &mut ConfigFile,
) {
    for entry in reader.read_table(node, "limits", table_path, &known_keys::LIMITS) {
        match entry.key.as_str() {
            "principal_calls" => {
                file.principal_calls = reader.read_count(entry, &PRINCIPAL_CALLS_RANGE);
            }
            "starts" => file.starts = reader.read_count(entry, &STARTS_RANGE),
            "first_list_wait" => file.first_list_wait = reader.read_duration(entry),
            "stop_wait" => file.stop_wait = reader.read_duration(entry),
            "principal_requests_per_s" => {
                file.requests_per_s = reader.read_count(entry, &RATE_REQUESTS_RANGE);
            }
            "principal_requests_burst" => {
                file.requests_burst = reader.read_count(entry, &RATE_REQUESTS_RANGE);
            }
            "principal_bytes_per_s" => {
                file.bytes_per_s = reader.read_size(entry, &RATE_BYTES_RANGE)
            }
            "principal_bytes_burst" => {
                file.bytes_burst = reader.read_size(entry, &RATE_BYTES_RANGE)
            }
            "unproven_connections" => {
                file.unproven_connections =
                    reader.read_count(entry, &UNAUTHENTICATED_CONNECTIONS_RANGE);
            }
            "address_connections" => {
                file.address_connections = reader.read_count(entry, &SHARE_COUNT_RANGE);
            }
            _ => file.shares.extend(parse_share(reader, entry)),
        }
    }
}

fn parse_share(reader: &mut TreeReader, entry: &ConfigEntry) -> Option<ShareSetting> {
    let (holder, name) = match entry.key.strip_prefix(PRINCIPAL_PREFIX) {
        Some(name) => (ShareHolder::Principal, name),
        None => (ShareHolder::All, entry.key.as_str()),
    };
    let resource = SharedResource::parse(name)?;
    let amount = if resource.is_bytes() {
        reader.read_size(entry, &SHARE_BYTES_RANGE)?
    } else {
        reader.read_count(entry, &SHARE_COUNT_RANGE)?.into()
    };
    Some(ShareSetting {
        resource,
        holder,
        amount,
        span: entry.span.clone(),
    })
}

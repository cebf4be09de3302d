//! `[limits]`: limits of the gateway and of each principal.

use std::ops::{Range, RangeInclusive};

use bowline_core::shares::SharedResource;

use super::super::size;
use super::super::tree::{ConfigEntry, ConfigNode};
use super::ConfigFile;
use super::config_table::config_table;
use super::tree_reader::TreeReader;

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

config_table! {
    /// `[limits]`: limits of the gateway and of each principal.
    pub(super) enum LimitKey {
        /// Calls in flight of a principal.
        PrincipalCalls = "principal_calls" takes "a whole number",
        /// Servers that start at a time.
        Starts = "starts" takes "a whole number",
        /// Wait of a first list for servers that start.
        FirstListWait = "first_list_wait" takes "a duration",
        /// Wait for calls in flight at a stop.
        StopWait = "stop_wait" takes "a duration",
        /// Sessions of all principals.
        Sessions = "sessions" takes "a whole number",
        /// Sessions of a principal.
        PrincipalSessions = "principal_sessions" takes "a whole number",
        /// Open event streams of all principals.
        Streams = "streams" takes "a whole number",
        /// Open event streams of a principal.
        PrincipalStreams = "principal_streams" takes "a whole number",
        /// Subscriptions of all principals.
        Subscriptions = "subscriptions" takes "a whole number",
        /// Subscriptions of a principal.
        PrincipalSubscriptions = "principal_subscriptions" takes "a whole number",
        /// Request bodies of all principals in memory.
        BodyBytes = "body_bytes" takes "a size",
        /// Request bodies of a principal in memory.
        PrincipalBodyBytes = "principal_body_bytes" takes "a size",
        /// Responses of all principals in memory.
        ResponseBytes = "response_bytes" takes "a size",
        /// Responses of a principal in memory.
        PrincipalResponseBytes = "principal_response_bytes" takes "a size",
        /// Broker deliveries of all principals in work.
        DeliveryBytes = "delivery_bytes" takes "a size",
        /// Broker deliveries of a principal in work.
        PrincipalDeliveryBytes = "principal_delivery_bytes" takes "a size",
        /// Journal entries of all principals.
        JournalBytes = "journal_bytes" takes "a size",
        /// Journal entries of a principal.
        PrincipalJournalBytes = "principal_journal_bytes" takes "a size",
        /// Connections of all principals.
        Connections = "connections" takes "a whole number",
        /// Connections of a principal.
        PrincipalConnections = "principal_connections" takes "a whole number",
        /// Requests of a principal per second.
        PrincipalRequestsPerS = "principal_requests_per_s" takes "a whole number",
        /// Burst of requests of a principal.
        PrincipalRequestsBurst = "principal_requests_burst" takes "a whole number",
        /// Bytes of a principal per second.
        PrincipalBytesPerS = "principal_bytes_per_s" takes "a size",
        /// Burst of bytes of a principal.
        PrincipalBytesBurst = "principal_bytes_burst" takes "a size",
        /// Connections that have not authenticated.
        UnprovenConnections = "unproven_connections" takes "a whole number",
        /// Such connections of one address.
        AddressConnections = "address_connections" takes "a whole number",
    }
}

pub(super) fn parse_limits(
    reader: &mut TreeReader,
    node: &ConfigNode,
    table_path: &str,
    file: &mut ConfigFile,
) {
    for (key, entry) in reader.read_table::<LimitKey>(node, "limits", table_path) {
        match key {
            LimitKey::PrincipalCalls => {
                file.principal_calls = reader.read_count(entry, &PRINCIPAL_CALLS_RANGE);
            }
            LimitKey::Starts => file.starts = reader.read_count(entry, &STARTS_RANGE),
            LimitKey::FirstListWait => file.first_list_wait = reader.read_duration(entry),
            LimitKey::StopWait => file.stop_wait = reader.read_duration(entry),
            LimitKey::PrincipalRequestsPerS => {
                file.requests_per_s = reader.read_count(entry, &RATE_REQUESTS_RANGE);
            }
            LimitKey::PrincipalRequestsBurst => {
                file.requests_burst = reader.read_count(entry, &RATE_REQUESTS_RANGE);
            }
            LimitKey::PrincipalBytesPerS => {
                file.bytes_per_s = reader.read_size(entry, &RATE_BYTES_RANGE)
            }
            LimitKey::PrincipalBytesBurst => {
                file.bytes_burst = reader.read_size(entry, &RATE_BYTES_RANGE)
            }
            LimitKey::UnprovenConnections => {
                file.unproven_connections =
                    reader.read_count(entry, &UNAUTHENTICATED_CONNECTIONS_RANGE);
            }
            LimitKey::AddressConnections => {
                file.address_connections = reader.read_count(entry, &SHARE_COUNT_RANGE);
            }
            // Every other key is the share of a resource.
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

//! How much the gateway takes on, and how much of it is one principal's or one address's.

use bowline_core::cache::CacheLimits;
use bowline_core::rates::RateLimits;
use bowline_core::shares::{Resource, ShareLimit, ShareLimits};

use super::file::{File, ShareHolder, WrittenShare};
use super::frame::place;
use super::resolve::Origin;
use super::{Config, HostLimits, Warning};

/// How many connections are kept that have not proved who they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionLimits {
    /// In all; one more closes the oldest of them.
    pub unproven_max: usize,
    /// From one address that is not this machine's; one more closes the oldest of that address.
    pub address_max: usize,
}

impl Default for ConnectionLimits {
    fn default() -> Self {
        Self {
            unproven_max: 4_096,
            address_max: 256,
        }
    }
}

/// Returns what the host takes on.
pub(super) fn host(file: &File) -> HostLimits {
    let host = HostLimits::default();
    HostLimits {
        principal_calls_max: file.principal_calls.unwrap_or(host.principal_calls_max),
        starts_max: file
            .starts
            .map_or(host.starts_max, |starts| starts as usize),
        first_list_wait: file.first_list_wait.unwrap_or(host.first_list_wait),
        stop_wait: file.stop_wait.unwrap_or(host.stop_wait),
        cache: cache(file),
        shares: shares(file),
        rates: rates(file),
    }
}

/// Returns how fast each principal may send.
fn rates(file: &File) -> RateLimits {
    let mut limits = RateLimits::default();
    for (written, limit) in [
        (
            file.requests_per_s.map(u64::from),
            &mut limits.requests.per_s,
        ),
        (
            file.requests_burst.map(u64::from),
            &mut limits.requests.burst,
        ),
        (file.bytes_per_s, &mut limits.bytes.per_s),
        (file.bytes_burst, &mut limits.bytes.burst),
    ] {
        *limit = written.unwrap_or(*limit);
    }
    limits
}

/// Returns the limits of every resource. The share of a principal is at most half of the total.
fn shares(file: &File) -> ShareLimits {
    let mut limits = ShareLimits::default();
    for resource in Resource::ALL {
        let written = |holder| {
            let mut written = file.shares.iter();
            let found = written.find(|one| one.resource == resource && one.holder == holder);
            found.map(|one| one.amount)
        };
        let fallback = limits.get(resource);
        let total = written(ShareHolder::All).unwrap_or(fallback.total);
        let per_principal = written(ShareHolder::Principal).unwrap_or(fallback.per_principal);
        limits = limits.with(resource, ShareLimit::new(total, per_principal));
    }
    limits
}

/// Returns what is kept of connections that proved nothing.
pub(super) fn connections(file: &File) -> ConnectionLimits {
    let fallback = ConnectionLimits::default();
    ConnectionLimits {
        unproven_max: file
            .unproven_connections
            .map_or(fallback.unproven_max, |count| count as usize),
        address_max: file
            .address_connections
            .map_or(fallback.address_max, |count| count as usize),
    }
}

fn cache(file: &File) -> CacheLimits {
    let fallback = CacheLimits::default();
    CacheLimits {
        entries_max: file
            .cache_entries
            .map_or(fallback.entries_max, |count| count as usize),
        bytes_max: (file.cache_bytes)
            .and_then(|bytes| usize::try_from(bytes).ok())
            .unwrap_or(fallback.bytes_max),
        per_tool_max: file
            .cache_per_tool
            .map_or(fallback.per_tool_max, |count| count as usize),
        ttl_max: file.cache_ttl_max.unwrap_or(fallback.ttl_max),
        ..fallback
    }
}

/// Says where the share of one principal is more than it may be.
pub(super) fn warn_of_shares(shares: &[WrittenShare], origin: Origin<'_>, config: &mut Config) {
    let own = shares
        .iter()
        .filter(|share| share.holder == ShareHolder::Principal);
    for share in own {
        let limit = config.limits.shares.get(share.resource);
        if share.amount <= limit.per_principal {
            continue;
        }
        let (name, total, counts) = (share.resource.name(), limit.total, limit.per_principal);
        config.warnings.push(Warning {
            place: Some(place(origin.text, share.span.start)),
            message: format!(
                "`principal_{name}` is more than half of the {total} there are; {counts} counts"
            ),
        });
    }
}

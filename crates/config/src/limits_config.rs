//! Limits of the gateway, in total, per principal and per address.

use bowline_core::cache::CacheLimits;
use bowline_core::rate_limiter::RateLimits;
use bowline_core::shares::{ShareLimit, ShareLimits, SharedResource};

use super::config_problem::position_at;
use super::file::{ConfigFile, ShareHolder, ShareSetting};
use super::resolve::ResolveInput;
use super::{Config, ConfigWarning, HostLimits};

/// Limits of unauthenticated connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionLimits {
    /// Maximum in total; an excess connection closes the oldest.
    pub unauthenticated_max: usize,
    /// Maximum from a remote address; an excess connection closes the oldest of the address.
    pub address_max: usize,
}

impl Default for ConnectionLimits {
    fn default() -> Self {
        Self {
            unauthenticated_max: 4_096,
            address_max: 256,
        }
    }
}

/// Resolves the limits of the host.
pub(super) fn resolve_host_limits(file: &ConfigFile) -> HostLimits {
    let host = HostLimits::default();
    HostLimits {
        principal_calls_max: file.principal_calls.unwrap_or(host.principal_calls_max),
        starts_max: file
            .starts
            .map_or(host.starts_max, |starts| starts as usize),
        first_list_wait: file.first_list_wait.unwrap_or(host.first_list_wait),
        stop_wait: file.stop_wait.unwrap_or(host.stop_wait),
        cache: resolve_cache_limits(file),
        shares: resolve_shares(file),
        rates: resolve_rates(file),
    }
}

/// Resolves the request and byte rates of each principal.
fn resolve_rates(file: &ConfigFile) -> RateLimits {
    let mut limits = RateLimits::default();
    for (setting, limit) in [
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
        *limit = setting.unwrap_or(*limit);
    }
    limits
}

/// Resolves the limits of shared resources. A principal's share is at most half of the total.
fn resolve_shares(file: &ConfigFile) -> ShareLimits {
    let mut limits = ShareLimits::default();
    for resource in SharedResource::ALL {
        let setting = |holder| {
            let mut setting = file.shares.iter();
            let found = setting.find(|share| share.resource == resource && share.holder == holder);
            found.map(|share| share.amount)
        };
        let fallback = limits.get(resource);
        let total = setting(ShareHolder::All).unwrap_or(fallback.total);
        let per_principal = setting(ShareHolder::Principal).unwrap_or(fallback.per_principal);
        limits = limits.with_limit(resource, ShareLimit::new(total, per_principal));
    }
    limits
}

/// Resolves the limits of unauthenticated connections.
pub(super) fn resolve_connection_limits(file: &ConfigFile) -> ConnectionLimits {
    let fallback = ConnectionLimits::default();
    ConnectionLimits {
        unauthenticated_max: file
            .unproven_connections
            .map_or(fallback.unauthenticated_max, |count| count as usize),
        address_max: file
            .address_connections
            .map_or(fallback.address_max, |count| count as usize),
    }
}

fn resolve_cache_limits(file: &ConfigFile) -> CacheLimits {
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

/// Warns about shares of a principal above the maximum.
pub(super) fn warn_about_shares(
    shares: &[ShareSetting],
    input: ResolveInput<'_>,
    config: &mut Config,
) {
    let principal_shares = shares
        .iter()
        .filter(|share| share.holder == ShareHolder::Principal);
    for share in principal_shares {
        let limit = config.limits.shares.get(share.resource);
        if share.amount <= limit.per_principal {
            continue;
        }
        let (name, total, counts) = (share.resource.name(), limit.total, limit.per_principal);
        config.warnings.push(ConfigWarning {
            position: Some(position_at(input.text, share.span.start)),
            message: format!(
                "`principal_{name}` is more than half of the {total} there are; {counts} counts"
            ),
        });
    }
}

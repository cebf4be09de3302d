//! Fair shares of gateway resources: limits and usage per principal.
//!
//! Each resource has a process-wide total, a limit per principal of at most half the total, and a
//! reserve for the owner, so that no principal can lock out the rest.

use std::collections::HashMap;
use std::sync::Arc;

use foldhash::fast::RandomState;

/// A resource shared by principals.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SharedResource {
    /// Sessions in memory.
    Sessions,
    /// Open event streams.
    Streams,
    /// Resource subscriptions.
    Subscriptions,
    /// Bytes of incomplete request bodies.
    BodyBytes,
    /// Bytes of responses not yet written to their connections.
    ResponseBytes,
    /// Bytes of broker deliveries in progress.
    DeliveryBytes,
    /// Bytes stored in the journal.
    JournalBytes,
    /// Authenticated connections.
    Connections,
}

impl SharedResource {
    /// Every resource, in index order.
    pub const ALL: [Self; RESOURCE_COUNT] = [
        Self::Sessions,
        Self::Streams,
        Self::Subscriptions,
        Self::BodyBytes,
        Self::ResponseBytes,
        Self::DeliveryBytes,
        Self::JournalBytes,
        Self::Connections,
    ];

    /// Parses the resource name.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|resource| resource.name() == name)
    }

    /// Whether the resource is counted in bytes.
    #[must_use]
    pub const fn is_bytes(self) -> bool {
        matches!(
            self,
            Self::BodyBytes | Self::ResponseBytes | Self::DeliveryBytes | Self::JournalBytes
        )
    }

    /// Returns the name used in `[limits]`, metrics and errors.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sessions => "sessions",
            Self::Streams => "streams",
            Self::Subscriptions => "subscriptions",
            Self::BodyBytes => "body_bytes",
            Self::ResponseBytes => "response_bytes",
            Self::DeliveryBytes => "delivery_bytes",
            Self::JournalBytes => "journal_bytes",
            Self::Connections => "connections",
        }
    }
}

/// The number of resources.
const RESOURCE_COUNT: usize = 8;

/// Limits of one resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShareLimit {
    /// Total of all principals.
    pub total: u64,
    /// Limit per principal.
    pub per_principal: u64,
    /// Part of the total reserved for the owner.
    pub owner_reserve: u64,
}

impl ShareLimit {
    /// Returns a limit with a share of at most half the total, and an owner reserve of a sixteenth.
    #[must_use]
    pub const fn new(total: u64, per_principal: u64) -> Self {
        let half = total / 2;
        Self {
            total,
            per_principal: if per_principal < half {
                per_principal
            } else {
                half
            },
            owner_reserve: total.div_ceil(16),
        }
    }
}

const MIB: u64 = 1024 * 1024;

/// The limits of all resources.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShareLimits([ShareLimit; RESOURCE_COUNT]);

impl Default for ShareLimits {
    fn default() -> Self {
        Self([
            ShareLimit::new(65_536, 16_384),
            ShareLimit::new(8_192, 2_048),
            ShareLimit::new(262_144, 16_384),
            ShareLimit::new(256 * MIB, 32 * MIB),
            ShareLimit::new(256 * MIB, 32 * MIB),
            ShareLimit::new(128 * MIB, 16 * MIB),
            ShareLimit::new(4 * 1024 * MIB, 256 * MIB),
            ShareLimit::new(12_288, 4_096),
        ])
    }
}

impl ShareLimits {
    /// Returns the limit of one resource.
    #[must_use]
    pub const fn get(&self, resource: SharedResource) -> ShareLimit {
        let [
            sessions,
            streams,
            subscriptions,
            bodies,
            responses,
            deliveries,
            journal,
            connections,
        ] = self.0;
        match resource {
            SharedResource::Sessions => sessions,
            SharedResource::Streams => streams,
            SharedResource::Subscriptions => subscriptions,
            SharedResource::BodyBytes => bodies,
            SharedResource::ResponseBytes => responses,
            SharedResource::DeliveryBytes => deliveries,
            SharedResource::JournalBytes => journal,
            SharedResource::Connections => connections,
        }
    }

    /// Returns these limits with a changed limit for `resource`.
    #[must_use]
    pub fn with_limit(mut self, resource: SharedResource, limit: ShareLimit) -> Self {
        if let Some(slot) = self.0.get_mut(resource as usize) {
            *slot = limit;
        }
        self
    }
}

/// Whether the owner's reserve is open to a principal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OwnerReserve {
    /// Open: the owner.
    Open,
    /// Closed: any principal except the owner.
    Closed,
}

/// Why a share was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ShareError {
    /// The principal's limit is reached.
    #[error("this principal may hold {limit} of `{}` and holds them", resource.name())]
    Principal {
        /// The resource.
        resource: SharedResource,
        /// The limit per principal.
        limit: u64,
    },
    /// The total is exhausted.
    #[error("all {limit} of `{}` are in use", resource.name())]
    Total {
        /// The resource.
        resource: SharedResource,
        /// The total available to the principal: without the reserve, or with the reserve for the
        /// owner.
        limit: u64,
    },
}

impl ShareError {
    /// Returns the resource.
    #[must_use]
    pub const fn resource(&self) -> SharedResource {
        match self {
            Self::Principal { resource, .. } | Self::Total { resource, .. } => *resource,
        }
    }

    /// Returns the limit.
    #[must_use]
    pub const fn limit(&self) -> u64 {
        match self {
            Self::Principal { limit, .. } | Self::Total { limit, .. } => *limit,
        }
    }
}

/// Amounts by resource index.
type ResourceAmounts = [u64; RESOURCE_COUNT];

/// The amounts held by every principal.
#[derive(Debug, Default)]
pub struct ResourceShares {
    limits: ShareLimits,
    /// Sums over all principals.
    total_held: ResourceAmounts,
    /// Principals without any amount have no entry.
    by_principal: HashMap<Arc<str>, ResourceAmounts, RandomState>,
    /// Refusals since the start.
    refusals: ResourceAmounts,
}

/// Usage of one resource, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShareView {
    /// The resource.
    pub resource: SharedResource,
    /// The limits.
    pub limit: ShareLimit,
    /// The total in use.
    pub used: u64,
    /// Amounts by principal, sorted by name.
    pub by_principal: Vec<(Arc<str>, u64)>,
    /// Refusals since the start.
    pub refusals: u64,
}

impl ResourceShares {
    /// Returns unused shares.
    #[must_use]
    pub fn new(limits: ShareLimits) -> Self {
        Self {
            limits,
            ..Self::default()
        }
    }

    /// Changes the limits; held amounts stay.
    pub const fn set_limits(&mut self, limits: ShareLimits) {
        self.limits = limits;
    }

    /// Returns the limit of one resource.
    #[must_use]
    pub const fn limit(&self, resource: SharedResource) -> ShareLimit {
        self.limits.get(resource)
    }

    /// Acquires `amount` of a resource for a principal: all or nothing.
    ///
    /// # Errors
    /// The limit of the principal or the total would be exceeded.
    pub fn try_acquire(
        &mut self,
        principal: &Arc<str>,
        reserve: OwnerReserve,
        resource: SharedResource,
        amount: u64,
    ) -> Result<(), ShareError> {
        let index = resource as usize;
        let checked = self.check_acquire(principal, reserve, resource, amount);
        let (Some(total), Some(refused)) =
            (self.total_held.get_mut(index), self.refusals.get_mut(index))
        else {
            return checked;
        };
        if checked.is_err() {
            *refused = refused.saturating_add(1);
            return checked;
        }
        *total = total.saturating_add(amount);
        let amounts = match self.by_principal.get_mut(principal) {
            Some(amounts) => amounts,
            None => self.by_principal.entry(Arc::clone(principal)).or_default(),
        };
        if let Some(own) = amounts.get_mut(index) {
            *own = own.saturating_add(amount);
        }
        Ok(())
    }

    /// Checks whether `amount` could be acquired.
    ///
    /// # Errors
    /// As for [`try_acquire`](Self::try_acquire), but the refusal is not counted.
    pub fn check_acquire(
        &self,
        principal: &Arc<str>,
        reserve: OwnerReserve,
        resource: SharedResource,
        amount: u64,
    ) -> Result<(), ShareError> {
        let limit = self.limits.get(resource);
        let own = self.held_amount(principal, resource);
        if reserve == OwnerReserve::Closed && own.saturating_add(amount) > limit.per_principal {
            return Err(ShareError::Principal {
                resource,
                limit: limit.per_principal,
            });
        }
        let open = match reserve {
            OwnerReserve::Open => limit.total,
            OwnerReserve::Closed => limit.total.saturating_sub(limit.owner_reserve),
        };
        let total = self.total_held.get(resource as usize).copied();
        if total.unwrap_or(u64::MAX).saturating_add(amount) > open {
            return Err(ShareError::Total {
                resource,
                limit: open,
            });
        }
        Ok(())
    }

    /// Releases `amount` of a resource.
    pub fn release_amount(&mut self, principal: &Arc<str>, resource: SharedResource, amount: u64) {
        let index = resource as usize;
        let Some(amounts) = self.by_principal.get_mut(principal) else {
            debug_assert!(amount == 0, "nothing is given back that was not taken");
            return;
        };
        if let (Some(own), Some(total)) = (amounts.get_mut(index), self.total_held.get_mut(index)) {
            debug_assert!(*own >= amount, "nothing is given back that was not taken");
            *own = own.saturating_sub(amount);
            *total = total.saturating_sub(amount);
        }
        if amounts.iter().all(|own| *own == 0) {
            self.by_principal.remove(principal);
        }
    }

    /// Returns the amount of a resource held by a principal.
    #[must_use]
    pub fn held_amount(&self, principal: &Arc<str>, resource: SharedResource) -> u64 {
        let amounts = self.by_principal.get(principal);
        amounts
            .and_then(|amounts| amounts.get(resource as usize).copied())
            .unwrap_or_default()
    }

    /// Returns the usage of every resource.
    #[must_use]
    pub fn resource_views(&self) -> Vec<ShareView> {
        let resource_view = |resource: SharedResource| {
            let index = resource as usize;
            let mut by_principal: Vec<_> = self
                .by_principal
                .iter()
                .filter_map(|(name, held)| Some((Arc::clone(name), *held.get(index)?)))
                .filter(|(_, held)| *held > 0)
                .collect();
            by_principal.sort();
            ShareView {
                resource,
                limit: self.limits.get(resource),
                used: self.total_held.get(index).copied().unwrap_or_default(),
                by_principal,
                refusals: self.refusals.get(index).copied().unwrap_or_default(),
            }
        };
        SharedResource::ALL.into_iter().map(resource_view).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shares() -> ResourceShares {
        let limit = ShareLimit {
            total: 10,
            per_principal: 4,
            owner_reserve: 2,
        };
        ResourceShares::new(ShareLimits::default().with_limit(SharedResource::Streams, limit))
    }

    #[test]
    fn shares_of_one_principal_are_bounded() {
        let mut shares = shares();
        let (ann, bob): (Arc<str>, Arc<str>) = ("ann".into(), "bob".into());
        assert_eq!(
            shares.try_acquire(&ann, OwnerReserve::Closed, SharedResource::Streams, 4),
            Ok(())
        );
        let refused = ShareError::Principal {
            resource: SharedResource::Streams,
            limit: 4,
        };
        assert_eq!(
            shares.try_acquire(&ann, OwnerReserve::Closed, SharedResource::Streams, 1),
            Err(refused)
        );
        assert_eq!(
            shares.try_acquire(&bob, OwnerReserve::Closed, SharedResource::Streams, 4),
            Ok(())
        );
        assert_eq!(shares.held_amount(&ann, SharedResource::Streams), 4);
        assert_eq!(shares.held_amount(&ann, SharedResource::Sessions), 0);
    }

    #[test]
    fn owner_reserve_is_closed_to_others() {
        let mut shares = shares();
        let names: [Arc<str>; 3] = ["ann".into(), "bob".into(), "cat".into()];
        let owner: Arc<str> = "owner".into();
        for name in names.iter().take(2) {
            assert_eq!(
                shares.try_acquire(name, OwnerReserve::Closed, SharedResource::Streams, 4),
                Ok(())
            );
        }
        let refused = ShareError::Total {
            resource: SharedResource::Streams,
            limit: 8,
        };
        assert_eq!(
            shares.try_acquire(&names[2], OwnerReserve::Closed, SharedResource::Streams, 1),
            Err(refused)
        );
        assert_eq!(
            shares.try_acquire(&owner, OwnerReserve::Open, SharedResource::Streams, 2),
            Ok(())
        );
        assert!(
            shares
                .try_acquire(&owner, OwnerReserve::Open, SharedResource::Streams, 1)
                .is_err()
        );
    }

    #[test]
    fn principals_holding_nothing_are_forgotten() {
        let mut shares = shares();
        let ann: Arc<str> = "ann".into();
        assert_eq!(
            shares.try_acquire(&ann, OwnerReserve::Closed, SharedResource::Streams, 3),
            Ok(())
        );
        shares.release_amount(&ann, SharedResource::Streams, 3);
        assert!(shares.by_principal.is_empty());
        assert_eq!(shares.total_held, ResourceAmounts::default());
    }

    #[test]
    fn resource_numbers_match_their_order() {
        for (index, resource) in SharedResource::ALL.into_iter().enumerate() {
            assert_eq!(resource as usize, index);
            let limit = ShareLimit::new(1_000 + index as u64, 7);
            let limits = ShareLimits::default().with_limit(resource, limit);
            assert_eq!(limits.get(resource), limit);
        }
    }

    #[test]
    fn default_share_is_at_most_half() {
        for resource in SharedResource::ALL {
            let limit = ShareLimits::default().get(resource);
            assert!(limit.per_principal <= limit.total / 2, "{resource:?}");
            assert!(limit.owner_reserve > 0, "{resource:?}");
        }
    }
}

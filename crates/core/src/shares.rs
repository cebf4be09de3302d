//! Fair shares of the gateway's resources: how much each principal holds of each, and may hold.
//!
//! A resource has a total for the process, a limit for one principal that is never more than half
//! of it, and a reserve that only the owner may use, so that no principal can lock another out.

use std::collections::HashMap;
use std::sync::Arc;

use foldhash::fast::RandomState;

/// A resource that principals share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Resource {
    /// Sessions in memory.
    Sessions,
    /// Event streams that are open.
    Streams,
    /// Subscriptions to resources.
    Subscriptions,
    /// Bytes of request bodies that have not arrived whole.
    BodyBytes,
    /// Bytes of responses that have not been written to their connections.
    ResponseBytes,
    /// Bytes of broker deliveries that are being handled.
    DeliveryBytes,
    /// Bytes that the journal stores.
    JournalBytes,
    /// Connections that have proved who they are.
    Connections,
}

impl Resource {
    /// Every resource, in the order of their numbers.
    pub const ALL: [Self; COUNT] = [
        Self::Sessions,
        Self::Streams,
        Self::Subscriptions,
        Self::BodyBytes,
        Self::ResponseBytes,
        Self::DeliveryBytes,
        Self::JournalBytes,
        Self::Connections,
    ];

    /// Returns the resource of this name.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|resource| resource.name() == name)
    }

    /// Whether it is counted in bytes.
    #[must_use]
    pub const fn is_bytes(self) -> bool {
        matches!(
            self,
            Self::BodyBytes | Self::ResponseBytes | Self::DeliveryBytes | Self::JournalBytes
        )
    }

    /// Returns the key of this resource in `[limits]`, in metrics and in errors.
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

/// How many resources there are.
const COUNT: usize = 8;

/// How much of one resource may be held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShareLimit {
    /// By all principals together.
    pub total: u64,
    /// By one principal.
    pub per_principal: u64,
    /// Of the total, what nobody but the owner may use.
    pub owner_reserve: u64,
}

impl ShareLimit {
    /// Returns a limit whose share of one principal is at most half of the total, and whose
    /// reserve of the owner is a sixteenth of it.
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
pub struct ShareLimits([ShareLimit; COUNT]);

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
    pub const fn get(&self, resource: Resource) -> ShareLimit {
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
            Resource::Sessions => sessions,
            Resource::Streams => streams,
            Resource::Subscriptions => subscriptions,
            Resource::BodyBytes => bodies,
            Resource::ResponseBytes => responses,
            Resource::DeliveryBytes => deliveries,
            Resource::JournalBytes => journal,
            Resource::Connections => connections,
        }
    }

    /// Returns these limits with another one for `resource`.
    #[must_use]
    pub fn with(mut self, resource: Resource, limit: ShareLimit) -> Self {
        if let Some(slot) = self.0.get_mut(resource as usize) {
            *slot = limit;
        }
        self
    }
}

/// Whether the reserve of the owner is open to a principal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reserve {
    /// It is the owner.
    Open,
    /// It is any other principal.
    Closed,
}

/// Why a share was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ShareError {
    /// The principal holds its share already.
    #[error("this principal may hold {limit} of `{}` and holds them", resource.name())]
    Principal {
        /// Of what.
        resource: Resource,
        /// How much one principal may hold.
        limit: u64,
    },
    /// All principals together hold all there is.
    #[error("all {limit} of `{}` are in use", resource.name())]
    Total {
        /// Of what.
        resource: Resource,
        /// How much there is for principals other than the owner, or in all for the owner.
        limit: u64,
    },
}

impl ShareError {
    /// Returns what was wanted.
    #[must_use]
    pub const fn resource(&self) -> Resource {
        match self {
            Self::Principal { resource, .. } | Self::Total { resource, .. } => *resource,
        }
    }

    /// Returns how much there may be.
    #[must_use]
    pub const fn limit(&self) -> u64 {
        match self {
            Self::Principal { limit, .. } | Self::Total { limit, .. } => *limit,
        }
    }
}

/// What one principal holds, by the number of the resource.
type Held = [u64; COUNT];

/// What every principal holds of every resource.
#[derive(Debug, Default)]
pub struct Shares {
    limits: ShareLimits,
    /// By all principals together.
    total: Held,
    /// Principals that hold nothing have no entry.
    by_principal: HashMap<Arc<str>, Held, RandomState>,
    /// Shares refused since the start.
    refused: Held,
}

/// What a person sees of one resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShareView {
    /// Which resource.
    pub resource: Resource,
    /// Its limits.
    pub limit: ShareLimit,
    /// What all principals hold together.
    pub used: u64,
    /// What each principal holds that holds any, by name.
    pub by_principal: Vec<(Arc<str>, u64)>,
    /// Refusals since the start.
    pub refused: u64,
}

impl Shares {
    /// Returns shares of which nothing is held.
    #[must_use]
    pub fn new(limits: ShareLimits) -> Self {
        Self {
            limits,
            ..Self::default()
        }
    }

    /// Changes the limits. What is held stays held.
    pub const fn set_limits(&mut self, limits: ShareLimits) {
        self.limits = limits;
    }

    /// Returns the limit of one resource.
    #[must_use]
    pub const fn limit(&self, resource: Resource) -> ShareLimit {
        self.limits.get(resource)
    }

    /// Takes `amount` of a resource for a principal: all of it, or nothing.
    ///
    /// # Errors
    /// The principal, or all together, would hold more than they may.
    pub fn take(
        &mut self,
        principal: &Arc<str>,
        reserve: Reserve,
        resource: Resource,
        amount: u64,
    ) -> Result<(), ShareError> {
        let index = resource as usize;
        let checked = self.check(principal, reserve, resource, amount);
        let (Some(total), Some(refused)) = (self.total.get_mut(index), self.refused.get_mut(index))
        else {
            return checked;
        };
        if checked.is_err() {
            *refused = refused.saturating_add(1);
            return checked;
        }
        *total = total.saturating_add(amount);
        let held = match self.by_principal.get_mut(principal) {
            Some(held) => held,
            None => self.by_principal.entry(Arc::clone(principal)).or_default(),
        };
        if let Some(own) = held.get_mut(index) {
            *own = own.saturating_add(amount);
        }
        Ok(())
    }

    /// Whether so much could be taken.
    ///
    /// # Errors
    /// As for [`take`](Self::take), but the refusal is not counted.
    pub fn check(
        &self,
        principal: &Arc<str>,
        reserve: Reserve,
        resource: Resource,
        amount: u64,
    ) -> Result<(), ShareError> {
        let limit = self.limits.get(resource);
        let own = self.held(principal, resource);
        if reserve == Reserve::Closed && own.saturating_add(amount) > limit.per_principal {
            return Err(ShareError::Principal {
                resource,
                limit: limit.per_principal,
            });
        }
        let open = match reserve {
            Reserve::Open => limit.total,
            Reserve::Closed => limit.total.saturating_sub(limit.owner_reserve),
        };
        let total = self.total.get(resource as usize).copied();
        if total.unwrap_or(u64::MAX).saturating_add(amount) > open {
            return Err(ShareError::Total {
                resource,
                limit: open,
            });
        }
        Ok(())
    }

    /// Gives back `amount` of a resource.
    pub fn give_back(&mut self, principal: &Arc<str>, resource: Resource, amount: u64) {
        let index = resource as usize;
        let Some(held) = self.by_principal.get_mut(principal) else {
            debug_assert!(amount == 0, "nothing is given back that was not taken");
            return;
        };
        if let (Some(own), Some(total)) = (held.get_mut(index), self.total.get_mut(index)) {
            debug_assert!(*own >= amount, "nothing is given back that was not taken");
            *own = own.saturating_sub(amount);
            *total = total.saturating_sub(amount);
        }
        if held.iter().all(|own| *own == 0) {
            self.by_principal.remove(principal);
        }
    }

    /// Returns how much of a resource a principal holds.
    #[must_use]
    pub fn held(&self, principal: &Arc<str>, resource: Resource) -> u64 {
        let held = self.by_principal.get(principal);
        held.and_then(|held| held.get(resource as usize).copied())
            .unwrap_or_default()
    }

    /// Returns what a person sees of every resource.
    #[must_use]
    pub fn view(&self) -> Vec<ShareView> {
        let of = |resource: Resource| {
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
                used: self.total.get(index).copied().unwrap_or_default(),
                by_principal,
                refused: self.refused.get(index).copied().unwrap_or_default(),
            }
        };
        Resource::ALL.into_iter().map(of).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shares() -> Shares {
        let limit = ShareLimit {
            total: 10,
            per_principal: 4,
            owner_reserve: 2,
        };
        Shares::new(ShareLimits::default().with(Resource::Streams, limit))
    }

    #[test]
    fn shares_of_one_principal_are_bounded() {
        let mut shares = shares();
        let (ann, bob): (Arc<str>, Arc<str>) = ("ann".into(), "bob".into());
        assert_eq!(
            shares.take(&ann, Reserve::Closed, Resource::Streams, 4),
            Ok(())
        );
        let refused = ShareError::Principal {
            resource: Resource::Streams,
            limit: 4,
        };
        assert_eq!(
            shares.take(&ann, Reserve::Closed, Resource::Streams, 1),
            Err(refused)
        );
        assert_eq!(
            shares.take(&bob, Reserve::Closed, Resource::Streams, 4),
            Ok(())
        );
        assert_eq!(shares.held(&ann, Resource::Streams), 4);
        assert_eq!(shares.held(&ann, Resource::Sessions), 0);
    }

    #[test]
    fn owner_reserve_is_closed_to_others() {
        let mut shares = shares();
        let names: [Arc<str>; 3] = ["ann".into(), "bob".into(), "cat".into()];
        let owner: Arc<str> = "owner".into();
        for name in names.iter().take(2) {
            assert_eq!(
                shares.take(name, Reserve::Closed, Resource::Streams, 4),
                Ok(())
            );
        }
        let refused = ShareError::Total {
            resource: Resource::Streams,
            limit: 8,
        };
        assert_eq!(
            shares.take(&names[2], Reserve::Closed, Resource::Streams, 1),
            Err(refused)
        );
        assert_eq!(
            shares.take(&owner, Reserve::Open, Resource::Streams, 2),
            Ok(())
        );
        assert!(
            shares
                .take(&owner, Reserve::Open, Resource::Streams, 1)
                .is_err()
        );
    }

    #[test]
    fn principals_holding_nothing_are_forgotten() {
        let mut shares = shares();
        let ann: Arc<str> = "ann".into();
        assert_eq!(
            shares.take(&ann, Reserve::Closed, Resource::Streams, 3),
            Ok(())
        );
        shares.give_back(&ann, Resource::Streams, 3);
        assert!(shares.by_principal.is_empty());
        assert_eq!(shares.total, Held::default());
    }

    #[test]
    fn resource_numbers_match_their_order() {
        for (index, resource) in Resource::ALL.into_iter().enumerate() {
            assert_eq!(resource as usize, index);
            let limit = ShareLimit::new(1_000 + index as u64, 7);
            let limits = ShareLimits::default().with(resource, limit);
            assert_eq!(limits.get(resource), limit);
        }
    }

    #[test]
    fn default_share_is_at_most_half() {
        for resource in Resource::ALL {
            let limit = ShareLimits::default().get(resource);
            assert!(limit.per_principal <= limit.total / 2, "{resource:?}");
            assert!(limit.owner_reserve > 0, "{resource:?}");
        }
    }
}

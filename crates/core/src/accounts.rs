//! Accounts of principals: usage of shared resources, and request rates.
//!
//! A [`ResourceShare`] is a guard: dropping it returns the amount, so a future dropped at any await
//! leaks nothing.

use std::sync::{Arc, Mutex};

use crate::call::{Principal, Role};
use crate::rate_limiter::{RateDecision, RateLimiter, RateLimits, RequestCost};
use crate::shares::{
    OwnerReserve, ResourceShares, ShareError, ShareLimit, ShareLimits, ShareView, SharedResource,
};
use crate::sync::lock;
use crate::time::MonotonicTime;

/// The accounts of all principals. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct PrincipalAccounts {
    shares: Arc<Mutex<ResourceShares>>,
    rates: Arc<Mutex<RateLimiter>>,
}

impl PrincipalAccounts {
    /// Creates accounts without usage.
    #[must_use]
    pub fn new(limits: ShareLimits) -> Self {
        Self {
            shares: Arc::new(Mutex::new(ResourceShares::new(limits))),
            rates: Arc::default(),
        }
    }

    /// Sets the request rates.
    #[must_use]
    pub fn with_rates(self, limits: RateLimits) -> Self {
        self.set_rates(limits);
        self
    }

    /// Changes the request rates. Debt stays.
    pub fn set_rates(&self, limits: RateLimits) {
        lock(&self.rates).set_limits(limits);
    }

    /// Charges a request to a principal; returns when it may proceed. The owner has no rate limit,
    /// nor the single anonymous principal if authentication is off.
    #[must_use]
    pub fn charge_request(
        &self,
        principal: &Principal,
        cost: RequestCost,
        now: impl FnOnce() -> MonotonicTime,
    ) -> RateDecision {
        match principal.role {
            Role::Owner | Role::AnonymousLocal => RateDecision::Immediate,
            Role::OwnersAgent | Role::Named(_) | Role::None => {
                lock(&self.rates).charge_request(&principal.name, cost, now())
            }
        }
    }

    /// Changes the limits. Amounts in use stay.
    pub fn set_limits(&self, limits: ShareLimits) {
        lock(&self.shares).set_limits(limits);
    }

    /// Takes `amount` of a resource for a principal until the share is dropped.
    ///
    /// # Errors
    /// The limit of the principal, or the total limit, would be exceeded.
    pub fn take_share(
        &self,
        principal: &Principal,
        resource: SharedResource,
        amount: u64,
    ) -> Result<ResourceShare, ShareError> {
        let reserve = share_reserve(principal);
        lock(&self.shares).try_acquire(&principal.name, reserve, resource, amount)?;
        Ok(ResourceShare {
            accounts: self.clone(),
            principal: Arc::clone(&principal.name),
            reserve,
            resource,
            amount,
        })
    }

    /// True if `amount` of a resource is available to a principal; counts no refusal.
    #[must_use]
    pub fn has_room(&self, principal: &Principal, resource: SharedResource, amount: u64) -> bool {
        let reserve = share_reserve(principal);
        let shares = lock(&self.shares);
        shares
            .check_acquire(&principal.name, reserve, resource, amount)
            .is_ok()
    }

    /// Returns the limit of a resource.
    #[must_use]
    pub fn limit(&self, resource: SharedResource) -> ShareLimit {
        lock(&self.shares).limit(resource)
    }

    /// Returns the amount of a resource used by a principal.
    #[must_use]
    pub fn usage_of(&self, principal: &Arc<str>, resource: SharedResource) -> u64 {
        lock(&self.shares).held_amount(principal, resource)
    }

    /// Returns the usage of every resource.
    #[must_use]
    pub fn usage(&self) -> Vec<ShareView> {
        lock(&self.shares).resource_views()
    }
}

fn share_reserve(principal: &Principal) -> OwnerReserve {
    match principal.role {
        Role::Owner => OwnerReserve::Open,
        Role::OwnersAgent | Role::AnonymousLocal | Role::Named(_) | Role::None => {
            OwnerReserve::Closed
        }
    }
}

/// A principal's share of a resource, returned on drop.
#[derive(Debug)]
#[must_use]
pub struct ResourceShare {
    accounts: PrincipalAccounts,
    principal: Arc<str>,
    reserve: OwnerReserve,
    resource: SharedResource,
    amount: u64,
}

impl ResourceShare {
    /// Returns the amount.
    #[must_use]
    pub const fn amount(&self) -> u64 {
        self.amount
    }

    /// Takes `more` of the same resource.
    ///
    /// # Errors
    /// The limit of the principal, or the total limit, would be exceeded; the share is unchanged.
    pub fn grow(&mut self, more: u64) -> Result<(), ShareError> {
        lock(&self.accounts.shares).try_acquire(
            &self.principal,
            self.reserve,
            self.resource,
            more,
        )?;
        self.amount = self.amount.saturating_add(more);
        Ok(())
    }

    /// Returns up to `less` of the amount.
    pub fn shrink(&mut self, less: u64) {
        let less = less.min(self.amount);
        lock(&self.accounts.shares).release_amount(&self.principal, self.resource, less);
        self.amount -= less;
    }
}

impl Drop for ResourceShare {
    fn drop(&mut self) {
        lock(&self.accounts.shares).release_amount(&self.principal, self.resource, self.amount);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dropped_share_is_returned() {
        let limits =
            ShareLimits::default().with_limit(SharedResource::BodyBytes, ShareLimit::new(100, 50));
        let accounts = PrincipalAccounts::new(limits);
        let ann = Principal::new("ann", Role::None);
        let mut share = accounts
            .take_share(&ann, SharedResource::BodyBytes, 10)
            .unwrap();
        share.grow(40).unwrap();
        assert!(share.grow(1).is_err());
        assert_eq!(accounts.usage_of(&ann.name, SharedResource::BodyBytes), 50);
        share.shrink(20);
        assert_eq!(share.amount(), 30);
        drop(share);
        assert_eq!(accounts.usage_of(&ann.name, SharedResource::BodyBytes), 0);
    }
}

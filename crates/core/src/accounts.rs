//! Accounts of principals: usage of shared resources, request rates, and calls in flight.
//!
//! A [`ResourceShare`] is a guard: dropping it returns the amount, so a future dropped at any await
//! leaks nothing.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use foldhash::fast::RandomState;

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

/// Counts the calls in flight by principal.
#[derive(Debug)]
pub struct ConcurrencyCounter {
    /// Calls one principal may have in flight.
    limit: u32,
    /// Idle principals have no entry.
    in_flight: HashMap<Arc<str>, u32, RandomState>,
    /// Refused calls.
    refused_calls: u64,
}

/// Calls in flight, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConcurrencyView {
    /// The limit per principal.
    pub limit: u32,
    /// Calls in flight per principal, by name.
    pub in_flight: Vec<(Arc<str>, u32)>,
    /// Calls refused for this limit since the start.
    pub refused_calls: u64,
}

impl ConcurrencyCounter {
    /// Returns an empty counter with a limit per principal.
    #[must_use]
    pub fn new(limit: u32) -> Self {
        Self {
            limit,
            in_flight: HashMap::default(),
            refused_calls: 0,
        }
    }

    /// Changes the limit; calls in flight are unaffected.
    pub const fn set_limit(&mut self, limit: u32) {
        self.limit = limit;
    }

    /// Counts a call, or returns the limit if reached.
    pub fn try_acquire(&mut self, principal: &Arc<str>) -> Result<(), u32> {
        match self.in_flight.get_mut(principal) {
            Some(count) if *count < self.limit => {
                *count += 1;
                Ok(())
            }
            None if self.limit > 0 => {
                self.in_flight.insert(Arc::clone(principal), 1);
                Ok(())
            }
            Some(_) | None => {
                self.refused_calls += 1;
                Err(self.limit)
            }
        }
    }

    /// Returns the current counts.
    #[must_use]
    pub fn view(&self) -> ConcurrencyView {
        let mut in_flight: Vec<_> = self
            .in_flight
            .iter()
            .map(|(principal, in_flight)| (Arc::clone(principal), *in_flight))
            .collect();
        in_flight.sort();
        ConcurrencyView {
            limit: self.limit,
            in_flight,
            refused_calls: self.refused_calls,
        }
    }

    /// Releases the permit of a call.
    pub fn release_permit(&mut self, principal: &Arc<str>) {
        if let Some(count) = self.in_flight.get_mut(principal) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                self.in_flight.remove(principal);
            }
        }
    }
}

#[cfg(test)]
mod tests;

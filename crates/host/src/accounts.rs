//! The account of each principal: what it holds of the resources that all principals share.
//!
//! A [`Share`] is a guard: dropping it gives the amount back, so that a future that is dropped at
//! any await leaks nothing.

use std::sync::{Arc, Mutex};

use bowline_core::call::{Principal, Role};
use bowline_core::rates::{Pace, RateLimits, Rates, RequestCost};
use bowline_core::shares::{
    Reserve, Resource, ShareError, ShareLimit, ShareLimits, ShareView, Shares,
};
use bowline_core::sync::lock;
use bowline_core::time::Now;

/// The accounts of all principals. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct PrincipalAccounts {
    shares: Arc<Mutex<Shares>>,
    rates: Arc<Mutex<Rates>>,
}

impl PrincipalAccounts {
    /// Returns accounts on which nothing is held.
    #[must_use]
    pub fn new(limits: ShareLimits) -> Self {
        Self {
            shares: Arc::new(Mutex::new(Shares::new(limits))),
            rates: Arc::default(),
        }
    }

    /// Returns the same accounts, whose principals may send this fast.
    #[must_use]
    pub fn with_rates(self, limits: RateLimits) -> Self {
        self.set_rates(limits);
        self
    }

    /// Changes how fast principals may send. What is owed stays owed.
    pub fn set_rates(&self, limits: RateLimits) {
        lock(&self.rates).set_limits(limits);
    }

    /// Charges a request to a principal, and says when it may go on. The owner is not held to any
    /// rate, nor is the one principal that all are where authentication is off.
    #[must_use]
    pub fn charge(
        &self,
        principal: &Principal,
        cost: RequestCost,
        now: impl FnOnce() -> Now,
    ) -> Pace {
        match principal.role {
            Role::Owner | Role::AnonymousLocal => Pace::Now,
            Role::OwnersAgent | Role::Named(_) | Role::None => {
                lock(&self.rates).charge(&principal.name, cost, now())
            }
        }
    }

    /// Changes the limits. What is held stays held.
    pub fn set_limits(&self, limits: ShareLimits) {
        lock(&self.shares).set_limits(limits);
    }

    /// Takes `amount` of a resource for a principal until the share is dropped.
    ///
    /// # Errors
    /// The principal, or all together, would hold more than they may.
    pub fn take(
        &self,
        principal: &Principal,
        resource: Resource,
        amount: u64,
    ) -> Result<Share, ShareError> {
        let reserve = reserve_of(principal);
        lock(&self.shares).take(&principal.name, reserve, resource, amount)?;
        Ok(Share {
            accounts: self.clone(),
            principal: Arc::clone(&principal.name),
            reserve,
            resource,
            amount,
        })
    }

    /// Whether `amount` of a resource could be taken for a principal; no refusal is counted.
    #[must_use]
    pub fn has_room(&self, principal: &Principal, resource: Resource, amount: u64) -> bool {
        let reserve = reserve_of(principal);
        let shares = lock(&self.shares);
        shares
            .check(&principal.name, reserve, resource, amount)
            .is_ok()
    }

    /// Returns the limit of one resource.
    #[must_use]
    pub fn limit(&self, resource: Resource) -> ShareLimit {
        lock(&self.shares).limit(resource)
    }

    /// Returns how much of a resource a principal holds.
    #[must_use]
    pub fn held(&self, principal: &Arc<str>, resource: Resource) -> u64 {
        lock(&self.shares).held(principal, resource)
    }

    /// Returns what a person sees of every resource.
    #[must_use]
    pub fn view(&self) -> Vec<ShareView> {
        lock(&self.shares).view()
    }
}

fn reserve_of(principal: &Principal) -> Reserve {
    match principal.role {
        Role::Owner => Reserve::Open,
        Role::OwnersAgent | Role::AnonymousLocal | Role::Named(_) | Role::None => Reserve::Closed,
    }
}

/// What one principal holds of one resource, until it is dropped.
#[derive(Debug)]
#[must_use]
pub struct Share {
    accounts: PrincipalAccounts,
    principal: Arc<str>,
    reserve: Reserve,
    resource: Resource,
    amount: u64,
}

impl Share {
    /// Returns how much is held.
    #[must_use]
    pub const fn amount(&self) -> u64 {
        self.amount
    }

    /// Takes `more` of the same resource for the same principal.
    ///
    /// # Errors
    /// The principal, or all together, would hold more than they may; the share is as before.
    pub fn grow(&mut self, more: u64) -> Result<(), ShareError> {
        lock(&self.accounts.shares).take(&self.principal, self.reserve, self.resource, more)?;
        self.amount = self.amount.saturating_add(more);
        Ok(())
    }

    /// Gives back `less` of what is held, at most all.
    pub fn shrink(&mut self, less: u64) {
        let less = less.min(self.amount);
        lock(&self.accounts.shares).give_back(&self.principal, self.resource, less);
        self.amount -= less;
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        lock(&self.accounts.shares).give_back(&self.principal, self.resource, self.amount);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dropping_a_share_gives_it_back() {
        let limits = ShareLimits::default().with(Resource::BodyBytes, ShareLimit::new(100, 50));
        let accounts = PrincipalAccounts::new(limits);
        let ann = Principal::new("ann", Role::None);
        let mut share = accounts.take(&ann, Resource::BodyBytes, 10).unwrap();
        share.grow(40).unwrap();
        assert!(share.grow(1).is_err());
        assert_eq!(accounts.held(&ann.name, Resource::BodyBytes), 50);
        share.shrink(20);
        assert_eq!(share.amount(), 30);
        drop(share);
        assert_eq!(accounts.held(&ann.name, Resource::BodyBytes), 0);
    }
}

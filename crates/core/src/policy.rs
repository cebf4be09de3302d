//! Who may call what. Narrows, never widens.

use crate::call::{Kind, Principal, Role};

/// What the policy says of one principal and one thing that a server offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// The principal sees and may use it.
    Allow,
    /// It does neither.
    Deny,
}

/// The rules in force; immutable, so that a reload swaps the whole value.
///
/// There are two roles so far, both of the machine's own user, and both may do all that the
/// gateway offers over MCP. Listing and calling ask the same function.
#[derive(Clone, Copy, Debug, Default)]
pub struct Policy;

impl Policy {
    /// Whether `principal` may see and use all there is, so that no entry need be looked at.
    #[must_use]
    pub const fn sees_all(&self, principal: &Principal) -> bool {
        match principal.role {
            Role::Owner | Role::AnonymousLocal => true,
            Role::None => false,
        }
    }

    /// Decides whether `principal` may see and use what `server` calls `name`.
    #[must_use]
    pub const fn decide(
        &self,
        principal: &Principal,
        _server: &str,
        _kind: Kind,
        _name: &str,
    ) -> Decision {
        match principal.role {
            Role::Owner | Role::AnonymousLocal => Decision::Allow,
            Role::None => Decision::Deny,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_principal_without_a_role_may_do_nothing() {
        let decide = |role| Policy.decide(&Principal::new("p", role), "s", Kind::Tool, "t");
        assert_eq!(decide(Role::Owner), Decision::Allow);
        assert_eq!(decide(Role::AnonymousLocal), Decision::Allow);
        assert_eq!(decide(Role::None), Decision::Deny);
    }
}

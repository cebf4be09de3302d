//! The tables of policy keys.

use crate::file::config_table::config_table;

config_table! {
    /// `[policy]`: what applies without a rule.
    pub(in crate::file) enum PolicyKey {
        /// Whether principals without a role may call everything or nothing.
        Default = "default" takes "a choice",
        /// Document with the servers that may run.
        Allowlist = "allowlist" takes "a path",
    }
}

config_table! {
    /// `[roles.NAME]`: rights of principals.
    pub(in crate::file) enum RoleKey {
        /// Tools that the role may call.
        Allow = "allow" takes "a list of patterns",
        /// Tools that the role may not call.
        Deny = "deny" takes "a list of patterns",
        /// Conditions on the arguments of calls.
        When = "when" takes "a list of tables",
        /// Calls per period.
        Budget = "budget" takes "a table",
        /// Calls per period, refilled continuously.
        Rate = "rate" takes "a table",
    }
}

config_table! {
    /// `[[roles.NAME.when]]`: a condition.
    pub(in crate::file) enum WhenKey {
        /// Calls that the condition applies to.
        On = "on" takes "a pattern",
        /// The condition.
        If = "if" takes "an expression in CEL",
    }
}

config_table! {
    /// `[principals.NAME]`: role and peer rights of a principal.
    pub(in crate::file) enum PrincipalKey {
        /// Role of the principal.
        Role = "role" takes "the name of a role",
        /// Whether the principal may join as a peer.
        Broker = "broker" takes "true or false",
        /// Mailboxes that the peer may send to.
        To = "to" takes "a list of texts",
        /// Kinds of messages that the peer may send.
        Kinds = "kinds" takes "a list of texts",
        /// Servers that the peer may offer.
        Offers = "offers" takes "a list of patterns",
        /// Names under which the principal may join as an executor.
        Executors = "executors" takes "a list of patterns",
    }
}

config_table! {
    /// `[context.NAME]`: tools that a context hides.
    pub(in crate::file) enum ContextKey {
        /// Hidden tools.
        Hide = "hide" takes "a list of patterns",
    }
}

config_table! {
    /// `[profiles.NAME]`: a selection of tools.
    pub(in crate::file) enum ProfileKey {
        /// Tools of the profile.
        Allow = "allow" takes "a list of patterns",
        /// Tools that are left out.
        Deny = "deny" takes "a list of patterns",
    }
}

config_table! {
    /// `[tokens]`: tokens that the gateway issues.
    pub(in crate::file) enum TokensKey {
        /// Lifetime of a new token.
        Lifetime = "lifetime" takes "a duration or \"unlimited\"",
    }
}

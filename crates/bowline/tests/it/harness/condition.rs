//! A gateway whose one role has one condition.

use serde_json::json;

use super::{Gateway, Session, fixture};

/// Returns the configuration of a role `r` that may call `one.echo` under this condition.
pub(crate) fn config(condition: &str) -> String {
    format!(
        "[roles.r]\nallow = [\"one.*\"]\nwhen = [{{ on = \"one.echo\", if = {} }}]\n{}",
        json!(condition),
        fixture("one", &[])
    )
}

/// Starts a gateway with this condition, and opens a session of `ann` in the role `r`.
pub(crate) fn up(condition: &str) -> (Gateway, Session) {
    let gateway = Gateway::up(&config(condition));
    gateway.wait_for("one", "ready");
    let (_, token) = gateway.token_of(&json!({"principal": "ann", "role": "r"}));
    let session = gateway.session_as(&token, "/mcp");
    (gateway, session)
}

//! A gateway with one role and one condition.

use serde_json::json;

use super::{Gateway, Session, fixture_config};

/// Returns the configuration of a role `r` with `one.echo` allowed under this condition.
pub(crate) fn condition_config(condition: &str) -> String {
    format!(
        "[roles.r]\nallow = [\"one.*\"]\nwhen = [{{ on = \"one.echo\", if = {} }}]\n{}",
        json!(condition),
        fixture_config("one", &[])
    )
}

/// Starts a gateway with this condition, and opens a session of `ann` in the role `r`.
pub(crate) fn start_with_condition(condition: &str) -> (Gateway, Session) {
    let gateway = Gateway::start(&condition_config(condition));
    gateway.wait_for_state("one", "ready");
    let (_, token) = gateway.create_token(&json!({"principal": "ann", "role": "r"}));
    let session = gateway.open_session_as(&token, "/mcp");
    (gateway, session)
}

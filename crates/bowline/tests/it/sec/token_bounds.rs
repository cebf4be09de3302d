//! What a token is bound to when it is made: its end, and a profile.

use serde_json::{Value, json};

use crate::harness::Gateway;

const ROLES: &str = "[roles.reader]\nallow = [\"*\"]\n";

/// Seconds from making to expiry of a new token; none where it has no end.
fn life_of(gateway: &Gateway, more: &Value) -> Option<u64> {
    let mut wanted = json!({"principal": "ann", "role": "reader"});
    let more = more.as_object().unwrap().clone();
    wanted.as_object_mut().unwrap().extend(more);
    let made = gateway.ask_api("POST", "/api/v1/tokens", &wanted);
    assert_eq!(made.status, 200, "{}", made.text());
    seconds(&made.json())
}

fn seconds(token: &Value) -> Option<u64> {
    let end = token["expires_at_ms"].as_u64()?;
    Some((end - token["created_at_ms"].as_u64().unwrap()) / 1_000)
}

#[test]
fn sec_104_tokens_expire_by_default() {
    const DAY: u64 = 24 * 3_600;
    let mut gateway = Gateway::up(ROLES);
    assert_eq!(life_of(&gateway, &json!({})), Some(90 * DAY));
    assert_eq!(life_of(&gateway, &json!({"expires_s": 60})), Some(60));
    assert_eq!(life_of(&gateway, &json!({"expires": "never"})), None);
    for wrong in [
        json!({"principal": "ann", "role": "reader", "expires": "never", "expires_s": 60}),
        json!({"principal": "ann", "role": "reader", "expires": "later"}),
    ] {
        let refused = gateway.ask_api("POST", "/api/v1/tokens", &wrong);
        assert!((400..500).contains(&refused.status), "{}", refused.text());
    }
    let create = ["token", "create", "--principal", "ann", "--role", "reader"];
    for (more, said) in [
        (&[][..], "expires    in 90 d"),
        (&["--expires", "2d"], "expires    in 2 d"),
        (&["--expires", "never"], "expires    never"),
    ] {
        let made = gateway.cli(&[&create[..], more].concat());
        let noted = String::from_utf8(made.stderr).unwrap();
        assert!(noted.contains(said), "{more:?}: {noted}");
    }
    // Another lifetime counts for tokens that are made later, also after a restart.
    gateway.reconfigure(&format!("{ROLES}[tokens]\nlifetime = \"30d\"\n"));
    assert_eq!(life_of(&gateway, &json!({})), Some(30 * DAY));
    gateway.restart_after_kill();
    assert_eq!(life_of(&gateway, &json!({})), Some(30 * DAY));
    let listed = gateway.api("/api/v1/tokens");
    assert_eq!(seconds(&listed["tokens"][0]), Some(90 * DAY), "{listed}");
    gateway.reconfigure(&format!("{ROLES}[tokens]\nlifetime = \"never\"\n"));
    assert_eq!(life_of(&gateway, &json!({})), None);
}

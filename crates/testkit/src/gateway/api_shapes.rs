//! Responses of the API against the shared type of each route: a field that the type lacks or
//! writes in another form fails the test.

use bowline_api::{
    audit_trail, broker, calls, error, events, executors, logs, outbox, pins, readiness, reload,
    roles, servers, sessions, status, tokens, tools,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// Asserts that the type `T` holds the whole body.
fn assert_round_trip<T: Serialize + DeserializeOwned>(body: &[u8]) {
    let text = String::from_utf8_lossy(body);
    let typed: T = serde_json::from_slice(body).unwrap_or_else(|why| panic!("{why}: {text}"));
    let written = serde_json::to_string(&typed).unwrap();
    let written: Value = serde_json::from_str(&written).unwrap();
    let received: Value = serde_json::from_slice(body).unwrap();
    assert_eq!(written, received, "the shared type loses something");
}

/// Asserts that the type of an event in the stream holds the whole data.
pub fn assert_event_shape(name: &str, data: &Value) {
    let data = data.to_string();
    match name {
        "hello" => assert_round_trip::<events::HelloEvent>(data.as_bytes()),
        "missed" => assert_round_trip::<events::MissedEvents>(data.as_bytes()),
        _ => assert_round_trip::<events::HostEvent>(data.as_bytes()),
    }
}

/// Asserts that the type of a route holds the whole response.
pub fn assert_api_shape(method: &str, path: &str, status: u16, body: &[u8]) {
    let path = path.split('?').next().unwrap();
    let parts: Vec<_> = path.trim_start_matches("/api/v1/").split('/').collect();
    if path == "/readyz" {
        return assert_round_trip::<readiness::ReadyResponse>(body);
    }
    if status >= 300 {
        return assert_round_trip::<error::ErrorResponse>(body);
    }
    match (method, parts.as_slice()) {
        ("GET", ["status"]) => assert_round_trip::<status::StatusResponse>(body),
        ("GET", ["servers"]) => assert_round_trip::<servers::ServersResponse>(body),
        (_, ["refresh"] | ["servers", _, "refresh"]) => {
            assert_round_trip::<reload::RefreshResponse>(body);
        }
        (_, ["servers", ..]) => assert_round_trip::<servers::ServerResponse>(body),
        (_, ["reload"]) => assert_round_trip::<reload::ReloadResponse>(body),
        (_, ["tools"]) => assert_round_trip::<tools::ToolsResponse>(body),
        (_, ["discover"]) => assert_round_trip::<tools::DiscoverResponse>(body),
        (_, ["search"]) => assert_round_trip::<tools::SearchResponse>(body),
        (_, ["exposure"]) => assert_round_trip::<tools::ExposureResponse>(body),
        (_, ["call"]) => assert_round_trip::<calls::ToolCallResponse>(body),
        (_, ["logs"]) => assert_round_trip::<logs::LogsResponse>(body),
        (_, ["audit"]) => assert_round_trip::<audit_trail::AuditResponse>(body),
        (_, ["audit", "verify"]) => assert_round_trip::<audit_trail::AuditVerifyResponse>(body),
        (_, ["roles"]) => assert_round_trip::<roles::RolesResponse>(body),
        (_, ["roles", "test"]) => assert_round_trip::<roles::PolicyTestResponse>(body),
        ("GET", ["sessions"]) => assert_round_trip::<sessions::SessionsResponse>(body),
        ("PUT", ["sessions", ..]) => assert_round_trip::<sessions::SessionNarrowResponse>(body),
        ("DELETE", ["sessions", _]) => assert_round_trip::<sessions::SessionEndResponse>(body),
        ("GET", ["tokens"]) => assert_round_trip::<tokens::TokensResponse>(body),
        ("POST", ["tokens"]) | ("PUT", ["tokens", ..]) => {
            assert_round_trip::<tokens::TokenResponse>(body);
        }
        (_, ["tokens", ..]) => assert_round_trip::<tokens::TokenRevokeResponse>(body),
        (_, ["owner-token", "rotate"]) => assert_round_trip::<tokens::TokenRotateResponse>(body),
        (_, ["pins"]) => assert_round_trip::<pins::PinsResponse>(body),
        (_, ["pins", "accept"]) => assert_round_trip::<pins::PinAcceptResponse>(body),
        (_, ["pins", ..]) => assert_round_trip::<pins::PinDiffResponse>(body),
        (_, ["outbox"]) => assert_round_trip::<outbox::OutboxResponse>(body),
        (_, ["outbox", ..]) => assert_round_trip::<outbox::QueuedCallResponse>(body),
        (_, ["broker"]) => assert_round_trip::<broker::BrokerResponse>(body),
        (_, ["broker", "dead"]) => assert_round_trip::<broker::DeadLettersResponse>(body),
        (_, ["broker", ..]) => assert_round_trip::<broker::DeadLetterResponse>(body),
        (_, ["executors"]) => assert_round_trip::<executors::ExecutorsResponse>(body),
        _ => panic!("no shared type for {method} {path}"),
    }
}

//! Modern HTTP servers: detection and requests.

use bowline_link::{LinkExit, Revision};

use super::*;
use crate::scripted_server::{SeenRequest, result_body};

mod change_streams;
mod era_change;
mod era_detection;
mod http_rounds;
mod legacy_fallback;
mod modern_calls;
mod request_headers;

/// Returns a link to a server that answered `server/discover`.
async fn modern_scene() -> HttpScene {
    modern_scene_with("{}", |_| {}).await
}

async fn modern_scene_with(capabilities: &str, change: impl FnOnce(&mut HttpSpec)) -> HttpScene {
    let mut server = ScriptedServer::start().await;
    let mut spec = http_spec(&server);
    spec.era_setting = EraSetting::Auto;
    change(&mut spec);
    let connecting = spawn_task(connect(spec));
    answer_discover(&mut server, capabilities).await;
    let (link, events) = connecting.await.unwrap().unwrap();
    HttpScene {
        server,
        link,
        events,
    }
}

/// Answers `server/discover`.
async fn answer_discover(server: &mut ScriptedServer, capabilities: &str) {
    let seen = server.next_post().await;
    assert_eq!(seen.header("mcp-method"), Some("server/discover"));
    seen.respond_result(&discover_result(capabilities)).await;
}

fn discover_result(capabilities: &str) -> String {
    format!(
        r#"{{"resultType":"complete","supportedVersions":["2026-07-28"],"capabilities":{capabilities},"ttlMs":0,"cacheScope":"private","_meta":{{"io.modelcontextprotocol/serverInfo":{{"name":"t","version":"1.2"}}}}}}"#
    )
}

/// Returns a modern request with the caller id `"a"`.
fn modern_request(method: &'static str, params: &str) -> LinkRequest {
    let meta = r#""_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}"#;
    let params = match params {
        "" => format!("{{{meta}}}"),
        params => format!("{{{params},{meta}}}"),
    };
    let mut request = test_request(method);
    request.message.params = params.into();
    request.message.era = Era::Modern;
    request
}

/// Returns a JSON-RPC error body.
fn error_body(id: &str, code: i64) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{{"code":{code},"message":"no"}}}}"#)
}

const JSON: &str = "Content-Type: application/json\r\n";

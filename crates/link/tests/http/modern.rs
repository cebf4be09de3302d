//! Servers that keep no sessions: how they are found, and how they are spoken to.

use bowline_link::{Exit, Revision};

use super::*;
use crate::server::{Seen, result};

mod calls;
mod changed;
mod changes;
mod found;
mod labels;
mod rounds;

/// A link with a server that answered `server/discover`.
async fn scene() -> Scene {
    scene_with("{}", |_| {}).await
}

async fn scene_with(capabilities: &str, change: impl FnOnce(&mut HttpSpec)) -> Scene {
    let mut server = Server::start().await;
    let mut spec = spec(&server);
    spec.speaks = Speaks::Auto;
    change(&mut spec);
    let connecting = spawn(connect(spec));
    discovers(&mut server, capabilities).await;
    let (link, events) = connecting.await.unwrap().unwrap();
    Scene {
        server,
        link,
        events,
    }
}

/// Answers `server/discover`.
async fn discovers(server: &mut Server, capabilities: &str) {
    let seen = server.post().await;
    assert_eq!(seen.header("mcp-method"), Some("server/discover"));
    seen.result(&discovered(capabilities)).await;
}

fn discovered(capabilities: &str) -> String {
    format!(
        r#"{{"resultType":"complete","supportedVersions":["2026-07-28"],"capabilities":{capabilities},"ttlMs":0,"cacheScope":"private","_meta":{{"io.modelcontextprotocol/serverInfo":{{"name":"t","version":"1.2"}}}}}}"#
    )
}

/// A request of the modern era under the caller's id `"a"`.
fn modern(method: &'static str, params: &str) -> Request {
    let meta = r#""_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}"#;
    let params = match params {
        "" => format!("{{{meta}}}"),
        params => format!("{{{params},{meta}}}"),
    };
    Request {
        params: Some(params.into()),
        era: Era::Modern,
        ..request(method)
    }
}

/// An error of a server as a body.
fn error(id: &str, code: i64) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{{"code":{code},"message":"no"}}}}"#)
}

const JSON: &str = "Content-Type: application/json\r\n";

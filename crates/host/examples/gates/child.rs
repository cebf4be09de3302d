//! A minimal server over real pipes: the minimum cost of a live call.

use std::io::{self, BufRead as _, Write as _};

use bowline_core::era::Era;
use bowline_wire::mcp::meta;
use serde_json::{Value, json};

/// Serves an era until the end of input.
pub(crate) fn serve_stdio(era: Era) -> io::Result<()> {
    let mut out = io::stdout().lock();
    for line in io::stdin().lock().lines() {
        let asked: Value = serde_json::from_str(&line?).unwrap_or_default();
        let Some(id) = asked.get("id") else { continue };
        let method = asked.get("method").and_then(Value::as_str);
        let mut result = match method {
            Some("server/discover") => json!({
                "supportedVersions": ["2026-07-28"],
                "capabilities": {"tools": {}},
            }),
            Some("initialize") => json!({
                "protocolVersion": "2025-06-18",
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "child", "version": "1"},
            }),
            Some("tools/list") => json!({"tools": [
                {"name": "do", "inputSchema": {"type": "object"}},
                {"name": "kept", "inputSchema": {"type": "object"}},
            ]}),
            Some("tools/call") => {
                let params = asked.get("params").unwrap_or(&Value::Null);
                match params.get("name").and_then(Value::as_str) {
                    Some("kept") => {
                        json!({"content": [], "ttlMs": 3_600_000, "cacheScope": "private"})
                    }
                    _ => json!({"content": []}),
                }
            }
            _ => json!({}),
        };
        if era == Era::Modern
            && let Some(result) = result.as_object_mut()
        {
            result.insert("resultType".to_owned(), json!("complete"));
            let child = json!({meta::SERVER_INFO: {"name": "child", "version": "1"}});
            result.insert("_meta".to_owned(), child);
        }
        let answer = json!({"jsonrpc": "2.0", "id": id, "result": result});
        writeln!(out, "{answer}")?;
        out.flush()?;
    }
    Ok(())
}

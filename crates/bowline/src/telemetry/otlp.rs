//! Spans as OTLP/HTTP writes them in JSON.

use serde_json::{Value, json};

use super::log::Secrets;
use super::spans::{Span, Told};

/// A span that waits for somebody else to answer.
const KIND_CLIENT: u8 = 3;

/// The status of a span whose call failed.
const STATUS_ERROR: u8 = 2;

/// The outcome of a call whose caller went away.
const CANCELLED: &str = "cancelled";

/// The outcome of a call that was answered with a result.
const OK: &str = "ok";

/// The method that runs a tool.
const TOOLS_CALL: &str = "tools/call";

/// Returns the body of one export.
pub(super) fn request(service: &str, spans: &[Span], secrets: &Secrets) -> Vec<u8> {
    let version = env!("CARGO_PKG_VERSION");
    let spans: Vec<_> = spans.iter().filter_map(|one| span(one, secrets)).collect();
    let resource = [
        text("service.name", service),
        text("service.version", version),
    ];
    let body = json!({"resourceSpans": [{
        "resource": {"attributes": resource},
        "scopeSpans": [{"scope": {"name": "bowline", "version": version}, "spans": spans}],
    }]});
    body.to_string().into_bytes()
}

fn span(span: &Span, secrets: &Secrets) -> Option<Value> {
    let told = &span.told;
    let clean = |text: &Option<String>| {
        let text = text.as_deref();
        text.map(|text| secrets.clean(text).into_owned())
    };
    let method = told.method.as_deref().unwrap_or(TOOLS_CALL);
    // What other requests name can be an address, which may hold anything.
    let tool = clean(&told.tool).filter(|_| method == TOOLS_CALL);
    let outcome = told.outcome.as_deref().unwrap_or(CANCELLED);
    let name = match &tool {
        Some(tool) => format!("{method} {tool}"),
        None => method.to_owned(),
    };
    let ended = span.began + span.took;
    let mut written = json!({
        "traceId": told.trace?.to_string(),
        "spanId": told.span?.to_string(),
        "name": name,
        "kind": KIND_CLIENT,
        "startTimeUnixNano": span.began.as_nanos().to_string(),
        "endTimeUnixNano": ended.as_nanos().to_string(),
        "attributes": attributes(told, method, tool.as_deref(), outcome, clean(&told.server)),
        "status": if outcome == OK { json!({}) } else { json!({"code": STATUS_ERROR}) },
    });
    if let (Some(parent), Some(members)) = (told.parent, written.as_object_mut()) {
        members.insert("parentSpanId".to_owned(), json!(parent.to_string()));
    }
    Some(written)
}

fn attributes(
    told: &Told,
    method: &str,
    tool: Option<&str>,
    outcome: &str,
    server: Option<String>,
) -> Vec<Value> {
    let mut all = vec![text("mcp.method.name", method)];
    if let Some(tool) = tool {
        all.push(text("gen_ai.operation.name", "execute_tool"));
        all.push(text("gen_ai.tool.name", tool));
    }
    if let Some(server) = server {
        all.push(text("bowline.server", &server));
    }
    if let Some(generation) = told.generation {
        let number = json!({"intValue": generation.to_string()});
        all.push(json!({"key": "bowline.generation", "value": number}));
    }
    if let Some(origin) = &told.origin {
        all.push(text("bowline.origin", origin));
    }
    all.push(text("bowline.outcome", outcome));
    if outcome != OK {
        all.push(text("error.type", outcome));
    }
    all
}

fn text(key: &str, value: &str) -> Value {
    json!({"key": key, "value": {"stringValue": value}})
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use bowline_core::redact::Redactor;
    use bowline_core::trace::{SpanId, TraceId};

    use super::*;

    fn ended(told: Told) -> Span {
        Span {
            began: Duration::from_nanos(1_700_000_000_000_000_001),
            took: Duration::from_nanos(9),
            told,
        }
    }

    fn named() -> Told {
        Told {
            trace: TraceId::parse("0af7651916cd43dd8448eb211c80319c"),
            span: SpanId::parse("b7ad6b7169203331"),
            ..Told::default()
        }
    }

    fn written(told: Told, secrets: &Secrets) -> Value {
        let body = request("svc", &[ended(told)], secrets);
        serde_json::from_slice(&body).unwrap()
    }

    #[test]
    fn a_call_is_written_by_the_conventions_for_mcp() {
        let told = Told {
            parent: SpanId::parse("00f067aa0ba902b7"),
            method: Some("tools/call".into()),
            server: Some("files".into()),
            tool: Some("read".into()),
            generation: Some(3),
            outcome: Some("timeout".into()),
            ..named()
        };
        let body = written(told, &Secrets::default());
        let version = env!("CARGO_PKG_VERSION");
        let want = json!({"resourceSpans": [{
            "resource": {"attributes": [
                {"key": "service.name", "value": {"stringValue": "svc"}},
                {"key": "service.version", "value": {"stringValue": version}},
            ]},
            "scopeSpans": [{
                "scope": {"name": "bowline", "version": version},
                "spans": [{
                    "traceId": "0af7651916cd43dd8448eb211c80319c",
                    "spanId": "b7ad6b7169203331",
                    "parentSpanId": "00f067aa0ba902b7",
                    "name": "tools/call read",
                    "kind": 3,
                    "startTimeUnixNano": "1700000000000000001",
                    "endTimeUnixNano": "1700000000000000010",
                    "attributes": [
                        {"key": "mcp.method.name", "value": {"stringValue": "tools/call"}},
                        {"key": "gen_ai.operation.name", "value": {"stringValue": "execute_tool"}},
                        {"key": "gen_ai.tool.name", "value": {"stringValue": "read"}},
                        {"key": "bowline.server", "value": {"stringValue": "files"}},
                        {"key": "bowline.generation", "value": {"intValue": "3"}},
                        {"key": "bowline.outcome", "value": {"stringValue": "timeout"}},
                        {"key": "error.type", "value": {"stringValue": "timeout"}},
                    ],
                    "status": {"code": 2},
                }],
            }],
        }]});
        assert_eq!(body, want);
    }

    #[test]
    fn a_call_whose_caller_went_away_is_cancelled_and_an_answered_one_is_no_error() {
        let outcome = |outcome: Option<&str>| {
            let told = Told {
                outcome: outcome.map(str::to_owned),
                ..named()
            };
            written(told, &Secrets::default()).to_string()
        };
        assert!(outcome(None).contains(r#""error.type","value":{"stringValue":"cancelled"}"#));
        assert!(outcome(Some("ok")).contains(r#""status":{}"#));
    }

    #[test]
    fn addresses_and_secrets_are_not_written() {
        let told = Told {
            method: Some("resources/read".into()),
            tool: Some("file:///home/someone".into()),
            server: Some("hunter22".into()),
            ..named()
        };
        let secrets = Secrets::default();
        secrets.replace(Redactor::new([("S", "hunter22")]));
        let body = written(told, &secrets).to_string();
        assert!(!body.contains("someone"), "{body}");
        assert!(!body.contains("hunter22"), "{body}");
        assert!(body.contains(r#""name":"resources/read""#), "{body}");
    }
}

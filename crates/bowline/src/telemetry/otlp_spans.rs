//! Encodes spans as OTLP/HTTP JSON.

use bowline_core::redact::LogRedactor;
use serde_json::{Value, json};

use super::spans::{CallSpan, CallSpanFields};

/// Span kind of a client request.
const KIND_CLIENT: u8 = 3;

/// Status code of a failed call.
const STATUS_ERROR: u8 = 2;

/// Outcome of a call after a disconnect of the caller.
const OUTCOME_CANCELLED: &str = "cancelled";

/// Outcome of a successful call.
const OUTCOME_OK: &str = "ok";

/// The method for running a tool.
const TOOLS_CALL: &str = "tools/call";

/// Encodes the body of an export request.
pub(super) fn encode_spans(service: &str, spans: &[CallSpan], secrets: &LogRedactor) -> Vec<u8> {
    let version = env!("CARGO_PKG_VERSION");
    let spans: Vec<_> = spans
        .iter()
        .filter_map(|span| encode_span(span, secrets))
        .collect();
    let resource = [
        string_attribute("service.name", service),
        string_attribute("service.version", version),
    ];
    let body = json!({"resourceSpans": [{
        "resource": {"attributes": resource},
        "scopeSpans": [{"scope": {"name": "bowline", "version": version}, "spans": spans}],
    }]});
    body.to_string().into_bytes()
}

fn encode_span(span: &CallSpan, secrets: &LogRedactor) -> Option<Value> {
    let fields = &span.fields;
    let redact = |text: &Option<String>| {
        let text = text.as_deref();
        text.map(|text| secrets.redact(text).into_owned())
    };
    let method = fields.method.as_deref().unwrap_or(TOOLS_CALL);
    // Other targets may be URIs with sensitive parts, so only tool names are exported.
    let tool = redact(&fields.tool).filter(|_| method == TOOLS_CALL);
    let outcome = fields.outcome.as_deref().unwrap_or(OUTCOME_CANCELLED);
    let name = match &tool {
        Some(tool) => format!("{method} {tool}"),
        None => method.to_owned(),
    };
    let ended_at = span.started_at + span.duration;
    let server = redact(&fields.server);
    let mut encoded = json!({
        "traceId": fields.trace?.to_string(),
        "spanId": fields.span?.to_string(),
        "name": name,
        "kind": KIND_CLIENT,
        "startTimeUnixNano": span.started_at.as_nanos().to_string(),
        "endTimeUnixNano": ended_at.as_nanos().to_string(),
        "attributes": span_attributes(fields, method, tool.as_deref(), outcome, server),
        "status": if outcome == OUTCOME_OK { json!({}) } else { json!({"code": STATUS_ERROR}) },
    });
    if let (Some(parent), Some(members)) = (fields.parent, encoded.as_object_mut()) {
        members.insert("parentSpanId".to_owned(), json!(parent.to_string()));
    }
    Some(encoded)
}

fn span_attributes(
    fields: &CallSpanFields,
    method: &str,
    tool: Option<&str>,
    outcome: &str,
    server: Option<String>,
) -> Vec<Value> {
    let mut attributes = vec![string_attribute("mcp.method.name", method)];
    if let Some(tool) = tool {
        attributes.push(string_attribute("gen_ai.operation.name", "execute_tool"));
        attributes.push(string_attribute("gen_ai.tool.name", tool));
    }
    if let Some(server) = server {
        attributes.push(string_attribute("bowline.server", &server));
    }
    if let Some(generation) = fields.generation {
        let number = json!({"intValue": generation.to_string()});
        attributes.push(json!({"key": "bowline.generation", "value": number}));
    }
    if let Some(origin) = &fields.origin {
        attributes.push(string_attribute("bowline.origin", origin));
    }
    attributes.push(string_attribute("bowline.outcome", outcome));
    if outcome != OUTCOME_OK {
        attributes.push(string_attribute("error.type", outcome));
    }
    attributes
}

fn string_attribute(key: &str, value: &str) -> Value {
    json!({"key": key, "value": {"stringValue": value}})
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use bowline_core::redact::Redactor;
    use bowline_core::trace::{SpanId, TraceId};

    use super::*;

    fn ended_span(told: CallSpanFields) -> CallSpan {
        CallSpan {
            started_at: Duration::from_nanos(1_700_000_000_000_000_001),
            duration: Duration::from_nanos(9),
            fields: told,
        }
    }

    fn sampled_fields() -> CallSpanFields {
        CallSpanFields {
            trace: TraceId::parse("0af7651916cd43dd8448eb211c80319c"),
            span: SpanId::parse("b7ad6b7169203331"),
            ..CallSpanFields::default()
        }
    }

    fn encode_one(told: CallSpanFields, secrets: &LogRedactor) -> Value {
        let body = encode_spans("svc", &[ended_span(told)], secrets);
        serde_json::from_slice(&body).unwrap()
    }

    #[test]
    fn call_span_follows_mcp_conventions() {
        let told = CallSpanFields {
            parent: SpanId::parse("00f067aa0ba902b7"),
            method: Some("tools/call".into()),
            server: Some("files".into()),
            tool: Some("read".into()),
            generation: Some(3),
            outcome: Some("timeout".into()),
            ..sampled_fields()
        };
        let body = encode_one(told, &LogRedactor::default());
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
    fn abandoned_call_is_cancelled_and_success_is_ok() {
        let outcome = |outcome: Option<&str>| {
            let told = CallSpanFields {
                outcome: outcome.map(str::to_owned),
                ..sampled_fields()
            };
            encode_one(told, &LogRedactor::default()).to_string()
        };
        assert!(outcome(None).contains(r#""error.type","value":{"stringValue":"cancelled"}"#));
        assert!(outcome(Some("ok")).contains(r#""status":{}"#));
    }

    #[test]
    fn uris_and_secrets_are_not_exported() {
        let told = CallSpanFields {
            method: Some("resources/read".into()),
            tool: Some("file:///home/someone".into()),
            server: Some("hunter22".into()),
            ..sampled_fields()
        };
        let secrets = LogRedactor::default();
        secrets.replace_current(&Redactor::new([("S", "hunter22")]));
        let body = encode_one(told, &secrets).to_string();
        assert!(!body.contains("someone"), "{body}");
        assert!(!body.contains("hunter22"), "{body}");
        assert!(body.contains(r#""name":"resources/read""#), "{body}");
    }
}

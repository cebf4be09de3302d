//! Rows as log records of OTLP/HTTP in JSON.

use std::borrow::Cow;
use std::sync::Arc;

use bowline_journal::audit::RowText;
use bowline_link::http::client::{HttpClient, Lines, Outgoing, Upload, Wait};
use bowline_link::http::endpoint::Endpoint;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Method};
use serde_json::{Value, json};

use super::{ExportError, is_refusal, noted_ms};

/// Where collectors take logs, below their base address.
const LOGS_PATH: &str = "v1/logs";

/// The same for traces, where an address may end.
const TRACES_PATH: &str = "v1/traces";

/// What a collector answers with is read as far as this, and not looked at.
const ANSWER_BYTES_MAX: usize = 64 * 1024;

/// Severities of log records.
const INFO: u8 = 9;
const WARN: u8 = 13;

/// A collector.
#[derive(Debug)]
pub(super) struct Collector {
    to: Endpoint,
    service: String,
    http: Arc<dyn HttpClient>,
}

impl Collector {
    pub(super) fn new(base: &Endpoint, service: &str, http: Arc<dyn HttpClient>) -> Self {
        Self {
            to: logs_of(base),
            service: service.to_owned(),
            http,
        }
    }

    /// Sends rows; none is too long.
    pub(super) async fn send(&self, rows: &[RowText]) -> Result<u64, ExportError> {
        let body = request(&self.service, rows);
        let mut request = Outgoing::new(Method::POST, &self.to);
        let mut lines = Lines::default();
        lines.push(&CONTENT_TYPE, &HeaderValue::from_static("application/json"));
        request.lines = Cow::Owned(lines);
        request.body = Upload::Whole(&body);
        let wait = Wait {
            connect: None,
            first_byte: None,
            leaving: &|| {},
        };
        let mut response = self.http.send(request, wait).await?;
        // Read to its end, so that the connection can be used again.
        let _ignored = response.body.whole(ANSWER_BYTES_MAX).await;
        match response.status {
            status if status.is_success() => Ok(0),
            status => Err(ExportError::Refused(status)),
        }
    }
}

fn request(service: &str, rows: &[RowText]) -> Vec<u8> {
    let version = env!("CARGO_PKG_VERSION");
    let text = |key: &str, value: &str| json!({"key": key, "value": {"stringValue": value}});
    let records: Vec<Value> = rows.iter().map(record).collect();
    let body = json!({"resourceLogs": [{
        "resource": {"attributes": [
            text("service.name", service),
            text("service.version", version),
        ]},
        "scopeLogs": [{
            "scope": {"name": "bowline.audit", "version": version},
            "logRecords": records,
        }],
    }]});
    body.to_string().into_bytes()
}

fn record(row: &RowText) -> Value {
    let (severity, name) = if is_refusal(row) {
        (WARN, "WARN")
    } else {
        (INFO, "INFO")
    };
    let nanos = u128::from(noted_ms(row)) * 1_000_000;
    json!({
        "timeUnixNano": nanos.to_string(),
        "severityNumber": severity,
        "severityText": name,
        "eventName": "bowline.audit",
        "body": {"stringValue": row.line()},
    })
}

/// Returns where a collector at `base` takes logs.
fn logs_of(base: &Endpoint) -> Endpoint {
    let path = base.uri().path();
    let path = path.strip_suffix(TRACES_PATH).unwrap_or(path);
    let mut path = format!("{}/{LOGS_PATH}", path.trim_end_matches('/'));
    if let Some(query) = base.uri().query() {
        path.push('?');
        path.push_str(query);
    }
    base.resolve(&path).unwrap_or_else(|_| base.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logs_go_below_the_base_address_of_the_collector() {
        for (base, want) in [
            ("http://c:4318", "http://c:4318/v1/logs"),
            ("https://c/otlp?key=k", "https://c/otlp/v1/logs?key=k"),
            ("https://c/v1/traces", "https://c/v1/logs"),
        ] {
            let base = Endpoint::parse(base).unwrap();
            assert_eq!(logs_of(&base).uri().to_string(), want);
        }
    }
}

//! Encodes audit rows as OTLP/HTTP JSON log records.

use std::borrow::Cow;
use std::sync::Arc;

use bowline_journal::audit::RowText;
use bowline_link::http::endpoint::HttpEndpoint;
use bowline_link::http::http_client::{
    HeaderLines, HttpClient, HttpRequest, RequestBody, SendOptions,
};
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Method};
use serde_json::{Value, json};

use super::{AuditExportError, is_denial_row, row_timestamp_ms};

/// Path of the logs endpoint below the base URL of a collector.
const LOGS_PATH: &str = "v1/logs";

/// Path of the traces endpoint, a possible suffix of the configured URL.
const TRACES_PATH: &str = "v1/traces";

/// Maximum bytes read of a collector's response; the content is ignored.
const RESPONSE_BYTES_MAX: usize = 64 * 1024;

/// Severity numbers of log records.
const SEVERITY_INFO: u8 = 9;
const SEVERITY_WARN: u8 = 13;

/// Client of an OTLP collector.
#[derive(Debug)]
pub(super) struct OtlpLogClient {
    endpoint: HttpEndpoint,
    service: String,
    http: Arc<dyn HttpClient>,
}

impl OtlpLogClient {
    pub(super) fn new(base: &HttpEndpoint, service: &str, http: Arc<dyn HttpClient>) -> Self {
        Self {
            endpoint: logs_endpoint(base),
            service: service.to_owned(),
            http,
        }
    }

    /// Sends rows; returns 0, since no row is too long.
    pub(super) async fn send_rows(&self, rows: &[RowText]) -> Result<u64, AuditExportError> {
        let body = encode_rows(&self.service, rows);
        let mut request = HttpRequest::new(Method::POST, &self.endpoint);
        let mut lines = HeaderLines::default();
        lines.push(&CONTENT_TYPE, &HeaderValue::from_static("application/json"));
        request.shared_headers = Cow::Owned(lines);
        request.body = RequestBody::Whole(&body);
        let wait = SendOptions {
            connect_by: None,
            first_byte_by: None,
            on_send: &|| {},
        };
        let mut response = self.http.send(request, wait).await?;
        // Read to the end, so the connection can be reused.
        let _ignored = response.body.read_whole(RESPONSE_BYTES_MAX).await;
        match response.status {
            status if status.is_success() => Ok(0),
            status => Err(AuditExportError::Refused(status)),
        }
    }
}

fn encode_rows(service: &str, rows: &[RowText]) -> Vec<u8> {
    let version = env!("CARGO_PKG_VERSION");
    let text = |key: &str, value: &str| json!({"key": key, "value": {"stringValue": value}});
    let records: Vec<Value> = rows.iter().map(encode_row).collect();
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

fn encode_row(row: &RowText) -> Value {
    let (severity, name) = if is_denial_row(row) {
        (SEVERITY_WARN, "WARN")
    } else {
        (SEVERITY_INFO, "INFO")
    };
    let nanos = u128::from(row_timestamp_ms(row)) * 1_000_000;
    json!({
        "timeUnixNano": nanos.to_string(),
        "severityNumber": severity,
        "severityText": name,
        "eventName": "bowline.audit",
        "body": {"stringValue": row.to_json_line()},
    })
}

/// Returns the logs endpoint of a collector at `base`.
fn logs_endpoint(base: &HttpEndpoint) -> HttpEndpoint {
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
    fn logs_path_is_appended_to_collector_base() {
        for (base, want) in [
            ("http://c:4318", "http://c:4318/v1/logs"),
            ("https://c/otlp?key=k", "https://c/otlp/v1/logs?key=k"),
            ("https://c/v1/traces", "https://c/v1/logs"),
        ] {
            let base = HttpEndpoint::parse(base).unwrap();
            assert_eq!(logs_endpoint(&base).uri().to_string(), want);
        }
    }
}

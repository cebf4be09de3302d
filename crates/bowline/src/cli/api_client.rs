//! A blocking client for the gateway's API.

use std::time::Duration;

use bowline_api::error::{ErrorBody, ErrorResponse};
use bowline_core::error::display_chain;
use bowline_link::http::http_client::{HttpBody, HttpResponse};
use bowline_wire::sse::{OwnedSseEvent, SseDecoder, SseLimits};
use bytes::Bytes;
use http::{Method, StatusCode};

use super::CommandContext;
use super::failure::{CliExit, CliFailure};
use super::gateway_finder::GatewayFinder;
use bowline_edge::{GatewayAccess, GatewayHttp, GatewayRequest, RESPONSE_BYTES_MAX, is_unreached};

/// Timeout of requests that involve no server.
pub(crate) const QUICK_TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum size of an event.
const EVENT_LIMITS: SseLimits = SseLimits {
    line_bytes_max: 16 * 1024 * 1024,
    event_bytes_max: 16 * 1024 * 1024,
};

/// A blocking client for the lifetime of one command.
#[derive(Debug)]
pub(crate) struct ApiClient {
    runtime: tokio::runtime::Runtime,
    http: GatewayHttp,
    finder: GatewayFinder,
    gateway: GatewayAccess,
}

/// Creates the single-threaded runtime of a command.
pub(crate) fn create_runtime() -> Result<tokio::runtime::Runtime, CliFailure> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| CliFailure::unexpected(format!("cannot start a runtime: {error}")))
}

/// Creates the HTTP client of a command.
pub(crate) fn create_http() -> Result<GatewayHttp, CliFailure> {
    GatewayHttp::new().map_err(|error| CliFailure::unexpected(display_chain(&error)))
}

impl ApiClient {
    /// Locates the gateway. Sends nothing yet.
    pub(crate) fn new(context: &CommandContext) -> Result<Self, CliFailure> {
        let finder = GatewayFinder::new(context);
        let daemon = finder.find_gateway()?;
        Ok(Self {
            runtime: create_runtime()?,
            http: create_http()?,
            finder,
            gateway: daemon,
        })
    }

    /// Sends a GET request and returns the raw JSON response.
    pub(crate) fn get(&self, path: &str, deadline: Duration) -> Result<Bytes, CliFailure> {
        self.send_request(Method::GET, path, Bytes::new(), deadline)
    }

    /// Sends a POST request and returns the raw JSON response.
    pub(crate) fn post(
        &self,
        path: &str,
        body: Bytes,
        deadline: Duration,
    ) -> Result<Bytes, CliFailure> {
        self.send_request(Method::POST, path, body, deadline)
    }

    /// Sends a PUT request and returns the raw JSON response.
    pub(crate) fn put(
        &self,
        path: &str,
        body: Bytes,
        deadline: Duration,
    ) -> Result<Bytes, CliFailure> {
        self.send_request(Method::PUT, path, body, deadline)
    }

    /// Sends a DELETE request and returns the raw JSON response.
    pub(crate) fn delete(&self, path: &str, deadline: Duration) -> Result<Bytes, CliFailure> {
        self.send_request(Method::DELETE, path, Bytes::new(), deadline)
    }

    fn send_request(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
        deadline: Duration,
    ) -> Result<Bytes, CliFailure> {
        let request = self.build_request(method, path, body, "application/json")?;
        let exchange = async { tokio::time::timeout(deadline, self.send_and_read(request)).await };
        let exchanged = self.runtime.block_on(exchange);
        let (status, body) = exchanged.map_err(|_elapsed| timeout_failure(deadline))??;
        if status.is_success() {
            return Ok(body);
        }
        Err(to_failure(status, &body, &self.gateway))
    }

    fn build_request(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
        accept: &'static str,
    ) -> Result<GatewayRequest, CliFailure> {
        GatewayRequest::new(method, &self.gateway, path, accept, body)
            .map_err(|error| CliFailure::unexpected(format!("cannot form the request: {error}")))
    }

    /// Opens an event stream.
    pub(crate) fn open_event_stream(&self, path: &str) -> Result<ApiEventStream<'_>, CliFailure> {
        let request = self.build_request(Method::GET, path, Bytes::new(), "text/event-stream")?;
        let opening = async { tokio::time::timeout(QUICK_TIMEOUT, self.send_http(&request)).await };
        let mut response = self
            .runtime
            .block_on(opening)
            .map_err(|_| timeout_failure(QUICK_TIMEOUT))??;
        if !response.status.is_success() {
            let rest = self.runtime.block_on(read_body(&mut response.body))?;
            return Err(to_failure(response.status, &rest, &self.gateway));
        }
        Ok(ApiEventStream {
            client: self,
            body: response.body,
            decoder: SseDecoder::new(EVENT_LIMITS),
        })
    }

    async fn send_and_read(
        &self,
        request: GatewayRequest,
    ) -> Result<(StatusCode, Bytes), CliFailure> {
        let mut response = self.send_http(&request).await?;
        let body = read_body(&mut response.body).await?;
        Ok((response.status, body))
    }

    async fn send_http(&self, request: &GatewayRequest) -> Result<HttpResponse, CliFailure> {
        self.http.send(request).await.map_err(|error| {
            if is_unreached(&error) {
                self.finder.unreachable_failure(&self.gateway.url)
            } else {
                connection_lost()
            }
        })
    }
}

/// An open event stream.
#[derive(Debug)]
pub(crate) struct ApiEventStream<'a> {
    client: &'a ApiClient,
    body: HttpBody,
    decoder: SseDecoder,
}

/// Result of waiting for an event.
#[derive(Debug)]
pub(crate) enum ApiEventPoll {
    /// An event arrived.
    Event(OwnedSseEvent),
    /// No event arrived in time.
    Quiet,
    /// The stream has ended.
    Ended,
}

impl ApiEventStream<'_> {
    /// Waits up to `patience` for the next event.
    pub(crate) fn next_event(&mut self, timeout: Duration) -> Result<ApiEventPoll, CliFailure> {
        let Self {
            client,
            body,
            decoder,
        } = self;
        let reading = async {
            loop {
                if let Some(event) = decoder.next() {
                    return Ok(ApiEventPoll::Event(event));
                }
                let Some(chunk) = body.next_chunk().await else {
                    return Ok(ApiEventPoll::Ended);
                };
                let chunk = chunk.map_err(|_error| connection_lost())?;
                decoder.push(&chunk).map_err(|fault| {
                    let message = format!("the gateway\'s events cannot be read: {fault}");
                    CliFailure::new(CliExit::Unexpected, "bad_answer", message)
                })?;
            }
        };
        let reading = async { tokio::time::timeout(timeout, reading).await };
        client
            .runtime
            .block_on(reading)
            .unwrap_or(Ok(ApiEventPoll::Quiet))
    }
}

async fn read_body(body: &mut HttpBody) -> Result<Bytes, CliFailure> {
    let body = body.read_whole(RESPONSE_BYTES_MAX).await;
    body.map_err(|_error| connection_lost())
}

fn timeout_failure(deadline: Duration) -> CliFailure {
    let seconds = deadline.as_secs();
    let message = format!("the gateway did not answer within {seconds} s");
    CliFailure::new(CliExit::Unreachable, "timeout", message)
}

fn connection_lost() -> CliFailure {
    let message = "the connection to the gateway was lost before the answer was complete";
    let mut failure = CliFailure::new(CliExit::Unreachable, "lost", message);
    failure.details.insert("execution".into(), "unknown".into());
    failure
}

/// Builds the failure for an error response, with its exit code.
fn to_failure(status: StatusCode, body: &[u8], gateway: &GatewayAccess) -> CliFailure {
    let ErrorResponse { error } = serde_json::from_slice(body).unwrap_or_default();
    let ErrorBody {
        mut code,
        mut message,
        hint,
        suggestions,
        mut details,
    } = error;
    if code.is_empty() {
        code = format!("http_{}", status.as_u16());
    }
    if message.is_empty() {
        message = format!("the gateway answered {status}");
    }
    if !suggestions.is_empty() {
        details.insert("suggestions".to_owned(), suggestions.into());
    }
    let exit = match status.as_u16() {
        401 => CliExit::Auth,
        403 => CliExit::Denied,
        400 | 404 | 405 | 409 | 413 | 422 => CliExit::Usage,
        // The server responded with an error of its own.
        _ if details.contains_key("rpc") => CliExit::Tool,
        502..=504 => CliExit::Unreachable,
        _ => CliExit::Unexpected,
    };
    let mut failure = CliFailure::new(exit, &code, message);
    failure.details = details;
    failure.hints.extend(hint);
    if exit == CliExit::Auth {
        failure.hints.push(format!(
            "the token came from {}",
            gateway.token_file.display()
        ));
    }
    failure
}

/// Percent-encodes a name for a path or query.
pub(crate) fn percent_encode(name: &str) -> String {
    let mut out = String::with_capacity(name.len());
    for byte in name.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => {
                out.push(char::from(byte));
            }
            _ => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::fake_gateway::{FakeGateway, json_response};

    fn get_failure(status: u16, body: &str) -> CliFailure {
        let fake = FakeGateway::start([("GET /x", json_response(status, body))]);
        let (context, ..) = fake.command_context(crate::cli::OutputFormat::Human);
        ApiClient::new(&context)
            .unwrap()
            .get("/x", QUICK_TIMEOUT)
            .unwrap_err()
    }

    #[test]
    fn request_carries_owner_token() {
        let fake = FakeGateway::start([("GET /x", json_response(200, "{\"v\":1}"))]);
        let (context, ..) = fake.command_context(crate::cli::OutputFormat::Human);
        let body = ApiClient::new(&context)
            .unwrap()
            .get("/x", QUICK_TIMEOUT)
            .unwrap();
        assert_eq!(body, "{\"v\":1}");
        let authorization = format!("Bearer {}", fake.owner_token());
        assert_eq!(
            fake.requests()[0].header("authorization"),
            Some(authorization.as_str())
        );
    }

    #[test]
    fn error_status_maps_to_exit_code() {
        let error = r#"{"error":{"code":"c","message":"m","hint":"h","execution":"unknown"}}"#;
        for (status, exit) in [
            (401, CliExit::Auth),
            (403, CliExit::Denied),
            (404, CliExit::Usage),
            (503, CliExit::Unreachable),
            (504, CliExit::Unreachable),
            (502, CliExit::Unreachable),
            (500, CliExit::Unexpected),
        ] {
            let failure = get_failure(status, error);
            assert_eq!(
                (failure.exit, failure.code.as_str()),
                (exit, "c"),
                "{status}"
            );
            assert_eq!(failure.hints[0], "h");
            assert_eq!(failure.details["execution"], "unknown");
        }
        let rpc = r#"{"error":{"code":"protocol_error","message":"m","rpc":{"code":-1}}}"#;
        assert_eq!(get_failure(502, rpc).exit, CliExit::Tool);
        assert_eq!(get_failure(500, "<html>").code, "http_500");
    }

    #[test]
    fn refused_connection_is_exit_4() {
        let fake = FakeGateway::start([]);
        let (context, ..) = fake.command_context(crate::cli::OutputFormat::Human);
        let client = ApiClient::new(&context).unwrap();
        drop(fake);
        let failure = client.get("/x", QUICK_TIMEOUT).unwrap_err();
        assert_eq!(
            (failure.exit, failure.code.as_str()),
            (CliExit::Unreachable, "unreachable")
        );
    }

    #[test]
    fn response_timeout_is_exit_4() {
        let fake = FakeGateway::start([("GET /x", crate::cli::fake_gateway::no_response())]);
        let (context, ..) = fake.command_context(crate::cli::OutputFormat::Human);
        let client = ApiClient::new(&context).unwrap();
        let failure = client.get("/x", Duration::from_millis(50)).unwrap_err();
        assert_eq!(
            (failure.exit, failure.code.as_str()),
            (CliExit::Unreachable, "timeout")
        );
    }

    #[test]
    fn names_are_percent_encoded() {
        assert_eq!(percent_encode("a-b_1"), "a-b_1");
        assert_eq!(percent_encode("a/../b?x=ü"), "a%2F..%2Fb%3Fx%3D%C3%BC");
    }
}

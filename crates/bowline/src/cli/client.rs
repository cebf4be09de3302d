//! A small HTTP client for the gateway's own API.

use std::time::Duration;

use bowline_wire::sse::{Decoder, Limits, OwnedEvent};
use bytes::Bytes;
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde_json::{Map, Value};

use super::Context;
use super::daemon::{Daemon, Finder};
use super::failure::{Exit, Failure};

/// Largest answer that is taken.
pub(crate) const ANSWER_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Longest wait for an answer that needs no server.
pub(crate) const QUICK: Duration = Duration::from_secs(30);
/// Largest event that is taken.
const EVENTS: Limits = Limits {
    line_bytes_max: 16 * 1024 * 1024,
    event_bytes_max: 16 * 1024 * 1024,
};
/// Longest wait for a connection.
const CONNECT: Duration = Duration::from_secs(5);

/// The pooled client underneath.
pub(crate) type Http = legacy::Client<HttpConnector, Full<Bytes>>;

/// A client with the lifetime of one command; every request waits for its answer.
#[derive(Debug)]
pub(crate) struct Client {
    runtime: tokio::runtime::Runtime,
    http: Http,
    finder: Finder,
    daemon: Daemon,
}

/// A pooled client that keeps to the deadline for connecting.
pub(crate) fn http() -> Http {
    let mut connector = HttpConnector::new();
    connector.set_connect_timeout(Some(CONNECT));
    connector.set_nodelay(true);
    legacy::Client::builder(TokioExecutor::new()).build(connector)
}

/// The runtime of a command, which needs one thread only.
pub(crate) fn runtime() -> Result<tokio::runtime::Runtime, Failure> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::unexpected(format!("cannot start a runtime: {error}")))
}

impl Client {
    /// Finds the gateway. Nothing is sent yet.
    pub(crate) fn new(context: &Context) -> Result<Self, Failure> {
        let finder = Finder::new(context);
        let daemon = finder.find()?;
        Ok(Self {
            runtime: runtime()?,
            http: http(),
            finder,
            daemon,
        })
    }

    /// Asks for something; the answer is JSON as it came.
    pub(crate) fn get(&self, path: &str, deadline: Duration) -> Result<Bytes, Failure> {
        self.send(Method::GET, path, Bytes::new(), deadline)
    }

    /// Has something done; the answer is JSON as it came.
    pub(crate) fn post(
        &self,
        path: &str,
        body: Bytes,
        deadline: Duration,
    ) -> Result<Bytes, Failure> {
        self.send(Method::POST, path, body, deadline)
    }

    /// Puts something in place of what was there; the answer is JSON as it came.
    pub(crate) fn put(
        &self,
        path: &str,
        body: Bytes,
        deadline: Duration,
    ) -> Result<Bytes, Failure> {
        self.send(Method::PUT, path, body, deadline)
    }

    /// Has something taken away; the answer is JSON as it came.
    pub(crate) fn delete(&self, path: &str, deadline: Duration) -> Result<Bytes, Failure> {
        self.send(Method::DELETE, path, Bytes::new(), deadline)
    }

    fn send(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
        deadline: Duration,
    ) -> Result<Bytes, Failure> {
        let request = self.request(method, path, body, "application/json")?;
        let exchange = async { tokio::time::timeout(deadline, self.exchange(request)).await };
        let exchanged = self.runtime.block_on(exchange);
        let (status, body) = exchanged.map_err(|_elapsed| late(deadline))??;
        if status.is_success() {
            return Ok(body);
        }
        Err(refusal(status, &body, &self.daemon))
    }

    fn request(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
        accept: &str,
    ) -> Result<Request<Full<Bytes>>, Failure> {
        Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.daemon.url))
            .header(
                header::AUTHORIZATION,
                format!("Bearer {}", self.daemon.token.expose()),
            )
            .header(header::CONTENT_TYPE, "application/json")
            .header(header::ACCEPT, accept)
            .body(Full::new(body))
            .map_err(|error| Failure::unexpected(format!("cannot form the request: {error}")))
    }

    /// Asks for a stream of events, which is read until it ends.
    pub(crate) fn follow(&self, path: &str) -> Result<Stream<'_>, Failure> {
        let request = self.request(Method::GET, path, Bytes::new(), "text/event-stream")?;
        let opening = async { tokio::time::timeout(QUICK, self.open(request)).await };
        let answer = self.runtime.block_on(opening).map_err(|_| late(QUICK))??;
        if !answer.status().is_success() {
            let status = answer.status();
            let rest = self.runtime.block_on(read(answer.into_body()))?;
            return Err(refusal(status, &rest, &self.daemon));
        }
        Ok(Stream {
            client: self,
            body: answer.into_body(),
            decoder: Decoder::new(EVENTS),
        })
    }

    async fn exchange(
        &self,
        request: Request<Full<Bytes>>,
    ) -> Result<(StatusCode, Bytes), Failure> {
        let answer = self.open(request).await?;
        let status = answer.status();
        Ok((status, read(answer.into_body()).await?))
    }

    async fn open(&self, request: Request<Full<Bytes>>) -> Result<Response<Incoming>, Failure> {
        self.http.request(request).await.map_err(|error| {
            if error.is_connect() {
                self.finder.unreachable(&self.daemon.url)
            } else {
                lost()
            }
        })
    }
}

/// A stream of events, read by whoever holds it.
#[derive(Debug)]
pub(crate) struct Stream<'a> {
    client: &'a Client,
    body: Incoming,
    decoder: Decoder,
}

/// What came of waiting for an event.
#[derive(Debug)]
pub(crate) enum Step {
    /// One happened.
    Event(OwnedEvent),
    /// None did.
    Quiet,
    /// None will.
    Ended,
}

impl Stream<'_> {
    /// Waits so long for the next event.
    pub(crate) fn next(&mut self, patience: Duration) -> Result<Step, Failure> {
        let Self {
            client,
            body,
            decoder,
        } = self;
        let reading = async {
            loop {
                if let Some(event) = decoder.next() {
                    return Ok(Step::Event(event));
                }
                let Some(frame) = body.frame().await else {
                    return Ok(Step::Ended);
                };
                let frame = frame.map_err(|_error| lost())?;
                let chunk = frame.into_data().unwrap_or_default();
                decoder.push(&chunk).map_err(|fault| {
                    let message = format!("the gateway\'s events cannot be read: {fault}");
                    Failure::new(Exit::Unexpected, "bad_answer", message)
                })?;
            }
        };
        let reading = async { tokio::time::timeout(patience, reading).await };
        client.runtime.block_on(reading).unwrap_or(Ok(Step::Quiet))
    }
}

async fn read(body: Incoming) -> Result<Bytes, Failure> {
    let body = Limited::new(body, ANSWER_BYTES_MAX).collect().await;
    Ok(body.map_err(|_error| lost())?.to_bytes())
}

fn late(deadline: Duration) -> Failure {
    let seconds = deadline.as_secs();
    let message = format!("the gateway did not answer within {seconds} s");
    Failure::new(Exit::Unreachable, "timeout", message)
}

fn lost() -> Failure {
    let message = "the connection to the gateway was lost before the answer was complete";
    let mut failure = Failure::new(Exit::Unreachable, "lost", message);
    failure.details.insert("execution".into(), "unknown".into());
    failure
}

/// What the gateway says when it refuses, with the exit code that goes with it.
fn refusal(status: StatusCode, body: &[u8], daemon: &Daemon) -> Failure {
    let body: Value = serde_json::from_slice(body).unwrap_or_default();
    let mut error: Map<String, Value> = match body.get("error") {
        Some(Value::Object(error)) => error.clone(),
        _ => Map::new(),
    };
    let mut word = |key: &str| match error.remove(key) {
        Some(Value::String(text)) => Some(text),
        _ => None,
    };
    let code = word("code").unwrap_or_else(|| format!("http_{}", status.as_u16()));
    let message = word("message").unwrap_or_else(|| format!("the gateway answered {status}"));
    let hint = word("hint");
    let exit = match status.as_u16() {
        401 => Exit::Auth,
        403 => Exit::Denied,
        400 | 404 | 405 | 409 | 413 | 422 => Exit::Usage,
        // The server answered, with an error of its own.
        _ if error.contains_key("rpc") => Exit::Tool,
        502..=504 => Exit::Unreachable,
        _ => Exit::Unexpected,
    };
    let mut failure = Failure::new(exit, &code, message);
    failure.details = error;
    failure.hints.extend(hint);
    if exit == Exit::Auth {
        failure.hints.push(format!(
            "the token came from {}",
            daemon.token_file.display()
        ));
    }
    failure
}

/// A name as one part of a path or a query.
pub(crate) fn encode(name: &str) -> String {
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
    use crate::cli::fake::{Fake, answer};

    fn exit_of(status: u16, body: &str) -> Failure {
        let fake = Fake::start([("GET /x", answer(status, body))]);
        let (context, ..) = fake.context(crate::cli::Format::Human);
        Client::new(&context).unwrap().get("/x", QUICK).unwrap_err()
    }

    #[test]
    fn a_request_carries_the_token() {
        let fake = Fake::start([("GET /x", answer(200, "{\"v\":1}"))]);
        let (context, ..) = fake.context(crate::cli::Format::Human);
        let body = Client::new(&context).unwrap().get("/x", QUICK).unwrap();
        assert_eq!(body, "{\"v\":1}");
        let authorization = format!("Bearer {}", fake.token());
        assert_eq!(
            fake.requests()[0].header("authorization"),
            Some(authorization.as_str())
        );
    }

    #[test]
    fn every_refusal_has_its_exit_code() {
        let error = r#"{"error":{"code":"c","message":"m","hint":"h","execution":"unknown"}}"#;
        for (status, exit) in [
            (401, Exit::Auth),
            (403, Exit::Denied),
            (404, Exit::Usage),
            (503, Exit::Unreachable),
            (504, Exit::Unreachable),
            (502, Exit::Unreachable),
            (500, Exit::Unexpected),
        ] {
            let failure = exit_of(status, error);
            assert_eq!(
                (failure.exit, failure.code.as_str()),
                (exit, "c"),
                "{status}"
            );
            assert_eq!(failure.hints[0], "h");
            assert_eq!(failure.details["execution"], "unknown");
        }
        let rpc = r#"{"error":{"code":"protocol_error","message":"m","rpc":{"code":-1}}}"#;
        assert_eq!(exit_of(502, rpc).exit, Exit::Tool);
        assert_eq!(exit_of(500, "<html>").code, "http_500");
    }

    #[test]
    fn nobody_at_the_address_is_exit_4() {
        let fake = Fake::start([]);
        let (context, ..) = fake.context(crate::cli::Format::Human);
        let client = Client::new(&context).unwrap();
        drop(fake);
        let failure = client.get("/x", QUICK).unwrap_err();
        assert_eq!(
            (failure.exit, failure.code.as_str()),
            (Exit::Unreachable, "unreachable")
        );
    }

    #[test]
    fn an_answer_that_never_comes_is_exit_4() {
        let fake = Fake::start([("GET /x", crate::cli::fake::silence())]);
        let (context, ..) = fake.context(crate::cli::Format::Human);
        let client = Client::new(&context).unwrap();
        let failure = client.get("/x", Duration::from_millis(50)).unwrap_err();
        assert_eq!(
            (failure.exit, failure.code.as_str()),
            (Exit::Unreachable, "timeout")
        );
    }

    #[test]
    fn names_are_escaped_in_addresses() {
        assert_eq!(encode("a-b_1"), "a-b_1");
        assert_eq!(encode("a/../b?x=ü"), "a%2F..%2Fb%3Fx%3D%C3%BC");
    }
}

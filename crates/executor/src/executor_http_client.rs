//! HTTP client of a server, with requests through an executor.

use std::sync::Arc;
use std::time::Duration;

use bowline_core::BoxFuture;
use bowline_core::error::ExecutionStatus;
use bowline_link::http::http_client::{
    HttpClient, HttpError, HttpRequest, HttpResponse, RequestBody, SendOptions,
};
use bowline_runtime::Clock;

use crate::connection::{EXECUTOR_AWAY, ExecutorRequest};
use crate::frames::SecretHeader;
use tokio::time::{Instant, timeout_at};

use super::registry::{CurrentConnection, ExecutorEntry};

/// Wait for the end of an unwritable connection.
const CLOSE_WAIT: Duration = Duration::from_secs(5);

/// Sends the requests of a server through an executor, over the current connection.
#[derive(Debug)]
pub(super) struct ExecutorHttpClient {
    executor: Arc<ExecutorEntry>,
    clock: Arc<dyn Clock>,
    server: Arc<str>,
    fills: Vec<SecretHeader>,
}

impl ExecutorHttpClient {
    pub(super) fn new(
        executor: Arc<ExecutorEntry>,
        clock: Arc<dyn Clock>,
        server: &str,
        fills: Vec<SecretHeader>,
    ) -> Self {
        Self {
            executor,
            clock,
            server: server.into(),
            fills,
        }
    }

    async fn send_with_retry(
        &self,
        request: HttpRequest<'_>,
        wait: SendOptions<'_>,
    ) -> Result<HttpResponse, HttpError> {
        let retry = clone_request(&request);
        let current = self
            .executor
            .wait_connection(&*self.clock, wait.connect_by)
            .await?;
        let first = self.send_once(&current, request, wait).await;
        match (first, retry) {
            // The connection ended before the send: retry over the next connection.
            (Err(error), Some(request)) if is_unsent(&error, &current) => {
                self.wait_closed(&current, wait.connect_by).await;
                let current = self
                    .executor
                    .wait_connection(&*self.clock, wait.connect_by)
                    .await?;
                self.send_once(&current, request, wait).await
            }
            (first, _) => first,
        }
    }

    /// Waits for the end of a connection that cannot be written to: the connection may stay
    /// readable for a moment.
    async fn wait_closed(&self, current: &CurrentConnection, until: Option<Instant>) {
        let end = self.clock.instant(self.clock.now().plus(CLOSE_WAIT));
        let until = until.map_or(end, |until| until.min(end));
        // On timeout, the wait for the next connection fails.
        let _ = timeout_at(until, current.connection.wait_closed()).await;
    }

    async fn send_once(
        &self,
        current: &CurrentConnection,
        request: HttpRequest<'_>,
        wait: SendOptions<'_>,
    ) -> Result<HttpResponse, HttpError> {
        let executor_request = ExecutorRequest {
            server: &self.server,
            request,
            secret_headers: &self.fills,
        };
        current
            .connection
            .send_request(executor_request, wait)
            .await
    }
}

/// Whether a request was not sent because the connection had ended.
fn is_unsent(error: &HttpError, current: &CurrentConnection) -> bool {
    let is_away =
        matches!(error, HttpError::RemoteFailure(failure) if &*failure.code == EXECUTOR_AWAY);
    error.execution() == ExecutionStatus::NotStarted
        && (is_away || current.connection.disconnect_reason().is_some())
}

/// Clones a request, if the whole body is in memory.
fn clone_request<'a>(request: &HttpRequest<'a>) -> Option<HttpRequest<'a>> {
    let RequestBody::Whole(body) = request.body else {
        return None;
    };
    Some(HttpRequest {
        method: request.method.clone(),
        endpoint: request.endpoint,
        shared_headers: request.shared_headers.clone(),
        headers: request.headers.clone(),
        body: RequestBody::Whole(body),
    })
}

impl HttpClient for ExecutorHttpClient {
    fn send<'a>(
        &'a self,
        request: HttpRequest<'a>,
        wait: SendOptions<'a>,
    ) -> BoxFuture<'a, Result<HttpResponse, HttpError>> {
        Box::pin(self.send_with_retry(request, wait))
    }
}

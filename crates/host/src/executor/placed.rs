//! Requests of a server that leave from an executor.

use std::sync::Arc;
use std::time::Duration;

use bowline_core::error::Execution;
use bowline_link::BoxFuture;
use bowline_link::executor::{EXECUTOR_AWAY, Errand};
use bowline_link::http::client::{HttpClient, HttpError, Outgoing, Response, Upload, Wait};
use bowline_wire::executor::Fill;
use tokio::time::{Instant, timeout_at};

use super::registry::{Entry, Here};
use crate::ports::Clock;

/// How long it may take until a connection that cannot be written to is over.
const GONE_WAIT: Duration = Duration::from_secs(5);

/// Carries the requests of one server through one executor, over whichever connection it has.
#[derive(Debug)]
pub(super) struct Placed {
    executor: Arc<Entry>,
    clock: Arc<dyn Clock>,
    server: Arc<str>,
    fills: Vec<Fill>,
}

impl Placed {
    pub(super) fn new(
        executor: Arc<Entry>,
        clock: Arc<dyn Clock>,
        server: &str,
        fills: Vec<Fill>,
    ) -> Self {
        Self {
            executor,
            clock,
            server: server.into(),
            fills,
        }
    }

    async fn carry(&self, request: Outgoing<'_>, wait: Wait<'_>) -> Result<Response, HttpError> {
        let again = repeated(&request);
        let here = self.executor.connected(&*self.clock, wait.connect).await?;
        let first = self.over(&here, request, wait).await;
        match (first, again) {
            // It ended before anything left, so nobody has seen the request: over the next one.
            (Err(error), Some(request)) if never_left(&error, &here) => {
                self.gone(&here, wait.connect).await;
                let here = self.executor.connected(&*self.clock, wait.connect).await?;
                self.over(&here, request, wait).await
            }
            (first, _) => first,
        }
    }

    /// Waits until a connection over which nothing can be sent is known to be over: for a moment
    /// longer, it may still be read.
    async fn gone(&self, here: &Here, until: Option<Instant>) {
        let end = self.clock.instant(self.clock.now().plus(GONE_WAIT));
        let until = until.map_or(end, |until| until.min(end));
        // Where it takes longer, whoever asks for the next one is told so.
        let _ = timeout_at(until, here.carrier.over()).await;
    }

    async fn over(
        &self,
        here: &Here,
        request: Outgoing<'_>,
        wait: Wait<'_>,
    ) -> Result<Response, HttpError> {
        let errand = Errand {
            server: &self.server,
            request,
            fills: &self.fills,
        };
        here.carrier.carry(errand, wait).await
    }
}

/// Whether a request was not sent because its connection had ended.
fn never_left(error: &HttpError, here: &Here) -> bool {
    let is_away = matches!(error, HttpError::Elsewhere(failure) if &*failure.code == EXECUTOR_AWAY);
    error.execution() == Execution::NotStarted && (is_away || here.carrier.ended().is_some())
}

/// Returns the same request once more, where its body is here.
fn repeated<'a>(request: &Outgoing<'a>) -> Option<Outgoing<'a>> {
    let Upload::Whole(body) = request.body else {
        return None;
    };
    Some(Outgoing {
        method: request.method.clone(),
        to: request.to,
        lines: request.lines.clone(),
        headers: request.headers.clone(),
        body: Upload::Whole(body),
    })
}

impl HttpClient for Placed {
    fn send<'a>(
        &'a self,
        request: Outgoing<'a>,
        wait: Wait<'a>,
    ) -> BoxFuture<'a, Result<Response, HttpError>> {
        Box::pin(self.carry(request, wait))
    }
}

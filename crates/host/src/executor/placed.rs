//! Requests of a server that leave from an executor.

use std::sync::Arc;

use bowline_link::BoxFuture;
use bowline_link::executor::Errand;
use bowline_link::http::client::{HttpClient, HttpError, Outgoing, Response, Wait};
use bowline_wire::executor::Fill;

use super::registry::Entry;
use crate::ports::Clock;

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
        let here = self.executor.connected(&*self.clock, wait.connect).await?;
        let errand = Errand {
            server: &self.server,
            request,
            fills: &self.fills,
        };
        here.carrier.carry(errand, wait).await
    }
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

//! A link whose responses hold no secret.

use std::sync::Arc;

use bowline_core::caller::SessionKey;
use bowline_core::era::Era;
use bowline_link::{Answer, BoxFuture, Exit, Link, LinkError, Processes, Request, ServerInfo};
use tokio::time::Instant;

use super::ResultSecrets;
use super::caller::CleanCaller;

/// Passes everything on to the link of a server; what comes back is cleaned.
#[derive(Debug)]
pub(super) struct CleanLink {
    link: Arc<dyn Link>,
    secrets: Arc<ResultSecrets>,
    /// What the server said of itself, cleaned.
    server: ServerInfo,
}

impl CleanLink {
    pub(super) fn wrap(link: Arc<dyn Link>, secrets: &Arc<ResultSecrets>) -> Arc<dyn Link> {
        let server = link.server();
        let server = ServerInfo {
            initialize: secrets.clean(server.initialize.clone()),
            ..server.clone()
        };
        Arc::new(Self {
            secrets: Arc::clone(secrets),
            server,
            link,
        })
    }
}

impl Link for CleanLink {
    fn request(&self, request: Request) -> BoxFuture<'_, Result<Answer, LinkError>> {
        if self.secrets.is_empty() {
            return self.link.request(request);
        }
        let caller = request
            .caller
            .map(|one| CleanCaller::wrap(one, &self.secrets));
        let response = self.link.request(Request { caller, ..request });
        Box::pin(async move {
            let answer = response.await?;
            // The id before the body is the caller's own.
            let (bytes, body_at) = self.secrets.clean_part(answer.bytes, answer.body_at);
            Ok(Answer {
                bytes,
                body_at,
                ..answer
            })
        })
    }

    fn notify(&self, method: &str, params: Option<&[u8]>) -> Result<(), LinkError> {
        self.link.notify(method, params)
    }

    fn is_open(&self) -> bool {
        self.link.is_open()
    }

    fn closed(&self) -> BoxFuture<'_, Exit> {
        self.link.closed()
    }

    fn close(&self) -> BoxFuture<'_, Exit> {
        self.link.close()
    }

    fn pid(&self) -> Option<u32> {
        self.link.pid()
    }

    fn processes(&self) -> Option<Processes> {
        self.link.processes()
    }

    fn session_ended(&self, session: SessionKey) {
        self.link.session_ended(session);
    }

    fn roots_changed(&self, session: SessionKey) {
        self.link.roots_changed(session);
    }

    fn in_flight(&self) -> usize {
        self.link.in_flight()
    }

    fn server(&self) -> &ServerInfo {
        &self.server
    }

    fn era(&self) -> Era {
        self.link.era()
    }

    fn listen_to(
        &self,
        uris: Vec<Arc<str>>,
        deadline: Instant,
    ) -> BoxFuture<'_, Result<Vec<Arc<str>>, LinkError>> {
        self.link.listen_to(uris, deadline)
    }
}

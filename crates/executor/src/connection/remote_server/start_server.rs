//! Starts a server at an executor.

use std::sync::Arc;

use bowline_link::LinkError;
use bowline_link::http::to_link_error;

use crate::frames::{ExecutorFrame, SERVER_WINDOW_BYTES, StartServer};
use tokio::time::{Instant, timeout_at};

use super::{RemoteProcess, RemoteServer, RemoteStage};
use crate::connection::{ExecutorTunnel, fault_map};

impl ExecutorTunnel {
    /// Starts the named server at the executor and waits until it runs. Dropping the future, or an
    /// error, leaves no process behind.
    ///
    /// # Errors
    /// The executor refuses the start or is gone, as told by `RemoteFailure` or `Unreachable`.
    pub async fn start_server(
        &self,
        server: &str,
        deadline: Instant,
    ) -> Result<RemoteProcess, LinkError> {
        let permit = self
            .acquire_stream_permit(Some(deadline))
            .await
            .map_err(to_link_error)?;
        let session = self.session();
        let number = session.next_stream_id();
        let writer = self.writer().clone();
        let running = RemoteServer::new(number, Arc::clone(session), writer.clone(), permit);
        let running = Arc::new(running);
        let process = RemoteProcess {
            server: Arc::clone(&running),
            streams_taken: false,
        };
        let added = session.add_stream(self.connection_id(), number, Arc::clone(&running) as _);
        added.map_err(|reason| to_link_error(fault_map::away_error(&reason.to_string())))?;
        writer.push_frame(&ExecutorFrame::StartServer {
            stream: number,
            start: StartServer {
                server: server.into(),
                credit: SERVER_WINDOW_BYTES,
            },
        });
        let mut status = running.status.subscribe();
        let started = status.wait_for(|now| now.stage != RemoteStage::Requested);
        let late = |_| LinkError::Unreachable("the executor did not start it in time".into());
        let stage = timeout_at(deadline, started).await.map_err(late)?;
        match stage.map(|now| now.stage.clone()) {
            Ok(RemoteStage::Exited(_, Some(fault))) => {
                Err(to_link_error(fault_map::to_http_error(&fault)))
            }
            Ok(RemoteStage::Exited(_, None)) => Err(to_link_error(fault_map::away_error(
                "the executor was lost",
            ))),
            Ok(RemoteStage::Requested | RemoteStage::Running) | Err(_) => Ok(process),
        }
    }
}

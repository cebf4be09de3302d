//! Opens a connection to the hub and reads frames.

use std::sync::Arc;

use bowline_core::error::ExecutionStatus;
use bowline_link::websocket::close_codes;
use bowline_link::websocket::{self, DisconnectReason, WebSocketConnection, WebSocketReceiver};
use bytes::Bytes;
use tokio::time::Instant;

use super::super::{BrokerCallError, PeerManifest};
use super::broker_calls::to_refused_error;
use super::hub_connection::{HubConnection, HubConnectionEnd, LiveCallDeadline};
use super::{BrokerClientShared, BrokerConnectError};
use crate::broker_client::request_handler::HubSender;
use crate::frames::{
    BrokerFrame, BrokerHello, BrokerRefusal, BrokerRequest, BrokerResponse, BrokerWelcome,
    FrameError,
};

/// Error code with the same meaning.
const FENCED_CODE: &str = "fenced";

impl BrokerClientShared {
    /// Dials, authenticates, subscribes, and fetches the manifest.
    pub(super) async fn open_connection(
        self: &Arc<Self>,
        generation: u64,
    ) -> Result<(Arc<HubConnection>, Arc<PeerManifest>), BrokerConnectError> {
        let now = self.options.clock.now();
        let until = now.plus(self.options.connect_timeout);
        let at = self.options.clock.instant(until);
        let opened = tokio::time::timeout_at(at, self.handshake(generation, at)).await;
        let (connection, incoming) = opened.map_err(|_| BrokerConnectError::Timeout)??;
        let hangup = HangupGuard(Some(Arc::clone(&connection)));
        let shared = Arc::clone(self);
        let reading = Arc::clone(&connection);
        self.options.tasks.spawn("broker reader", async move {
            shared.read_frames(reading, incoming).await;
        });
        let subscribe = BrokerFrame::Subscribe.to_bytes();
        connection.outgoing.send(subscribe).await?;
        let manifest = match self.options.wants_manifest {
            true => {
                self.fetch_manifest(&connection, self.live_deadline(until))
                    .await?
            }
            false => Arc::default(),
        };
        hangup.disarm();
        Ok((connection, manifest))
    }

    /// Sends `hello` and waits for `welcome`.
    async fn handshake(
        &self,
        generation: u64,
        at: Instant,
    ) -> Result<(Arc<HubConnection>, WebSocketReceiver), BrokerConnectError> {
        let token = self.credential.read();
        let token =
            token.map_err(|error| BrokerConnectError::Credential(error.to_string().into()))?;
        let token = token.trim();
        let WebSocketConnection {
            sender: outgoing,
            receiver: mut incoming,
        } = websocket::dial(
            &self.endpoint,
            Some(token),
            at,
            self.options.socket,
            &self.options.tasks,
        )
        .await?;
        let hello = BrokerFrame::Hello(BrokerHello {
            claimed_mailbox: self.options.mailbox_part.clone().unwrap_or_default(),
            token: Some(token.into()),
            instance: Some(Arc::clone(&self.instance)),
            ..BrokerHello::default()
        });
        outgoing.send(hello.to_bytes()).await?;
        let welcome = wait_welcome(&mut incoming).await?;
        let tasks = &self.options.tasks;
        let connection = HubConnection::new(generation, &welcome, outgoing, tasks);
        Ok((Arc::new(connection), incoming))
    }

    /// Fetches the hub's manifest.
    pub(super) async fn fetch_manifest(
        &self,
        connection: &HubConnection,
        deadline: LiveCallDeadline,
    ) -> Result<Arc<PeerManifest>, BrokerConnectError> {
        let mut body = Vec::new();
        BrokerRequest::Manifest.write(&mut body);
        let result = connection
            .send_live(None, body.into(), deadline, None)
            .await;
        let body = result.map_err(|error| match connection.connection_end() {
            Some(HubConnectionEnd {
                reason,
                fenced: true,
            }) => BrokerConnectError::Fenced(reason),
            _ => to_connect_error(&error),
        })?;
        match BrokerResponse::parse(&body) {
            Ok(BrokerResponse::Manifest { items, revision }) => Ok(Arc::new(PeerManifest {
                revision,
                items,
                // A hub offers only tools.
                servers: Vec::new(),
            })),
            Ok(BrokerResponse::Failed(failure)) => {
                Err(BrokerConnectError::Manifest(failure.reason))
            }
            Ok(BrokerResponse::RpcError { .. } | BrokerResponse::Output { .. }) => Err(
                BrokerConnectError::Manifest("it answered something else".into()),
            ),
            Err(error) => Err(BrokerConnectError::Manifest(error.to_string().into())),
        }
    }

    /// Reads frames until the connection ends.
    async fn read_frames(
        self: Arc<Self>,
        connection: Arc<HubConnection>,
        mut incoming: WebSocketReceiver,
    ) {
        let hub = HubSender(Arc::clone(&connection));
        let mut fenced = None;
        let disconnect_reason = loop {
            match incoming.next().await {
                Ok(bytes) => match BrokerFrame::parse(&bytes) {
                    Ok(BrokerFrame::Error(refusal)) if is_fencing(&refusal) => {
                        fenced = Some(refusal.reason);
                    }
                    Ok(frame) => self.dispatch_frame(&connection, &hub, frame),
                    Err(error) => log_skipped_frame(&error, &bytes),
                },
                Err(disconnect_reason) => break disconnect_reason,
            }
        };
        let is_fenced = matches!(
            &disconnect_reason,
            DisconnectReason::Closed { code, .. } if *code == close_codes::FENCED
        );
        connection.finish(HubConnectionEnd {
            fenced: is_fenced || fenced.is_some(),
            reason: fenced.unwrap_or_else(|| disconnect_reason.to_string().into()),
        });
        if let Some(handler) = &self.handler {
            handler.on_disconnected(&hub);
        }
    }

    /// Dispatches one frame. Never waits: the reader must not depend on the writer.
    fn dispatch_frame(&self, connection: &Arc<HubConnection>, hub: &HubSender, frame: BrokerFrame) {
        match frame {
            BrokerFrame::Response { id, body } => {
                if !connection.complete_live(&id, Ok(body)) {
                    tracing::trace!(%id, "response without a pending request");
                }
            }
            BrokerFrame::Event { id, notification } => {
                let client = connection
                    .live_client(&id)
                    .or_else(|| self.stored_client(&id));
                if let Some(client) = client {
                    client.notify(notification);
                }
            }
            BrokerFrame::Delivered { id } => {
                connection.complete_receipt(&id, Ok(()));
            }
            BrokerFrame::Error(refusal) => self.on_refusal(connection, &refusal),
            BrokerFrame::Message(message) => self.on_message(message, hub),
            BrokerFrame::Request(request) => {
                if let Some(served) = &self.handler {
                    served.on_request(request, hub);
                }
            }
            BrokerFrame::Cancel { to, correlation_id } => {
                if let Some(served) = &self.handler {
                    served.on_cancel(to.as_ref(), &correlation_id, hub);
                }
            }
            BrokerFrame::Changed { revision } => {
                connection.manifest_revision.send_replace(revision);
            }
            BrokerFrame::ServerRequestReply { id, number, answer } => {
                if !connection.server_requests.complete(&id, number, answer) {
                    tracing::trace!(%id, "answer without a pending server request");
                }
            }
            BrokerFrame::Session {
                server,
                session,
                event,
            } => {
                if let Some(served) = &self.handler {
                    served.on_session_event(&server, &session, event);
                }
            }
            BrokerFrame::Hello(_)
            | BrokerFrame::Welcome(_)
            | BrokerFrame::BrokerIdentity { .. }
            | BrokerFrame::Deliver { .. }
            | BrokerFrame::Subscribe
            | BrokerFrame::Ack { .. }
            | BrokerFrame::AckWithReceipt { .. }
            | BrokerFrame::AckResult { .. }
            | BrokerFrame::Nak { .. }
            | BrokerFrame::ListConnected { .. }
            | BrokerFrame::Connected { .. }
            | BrokerFrame::ListDead { .. }
            | BrokerFrame::Dead { .. }
            | BrokerFrame::Offer { .. }
            | BrokerFrame::ServerRequest { .. }
            | BrokerFrame::CancelServerRequest { .. }
            | BrokerFrame::MissingCapability { .. }
            | BrokerFrame::SessionNotification { .. }
            | BrokerFrame::Unknown { .. } => {}
        }
    }

    fn on_refusal(&self, connection: &HubConnection, refusal: &BrokerRefusal) {
        let waited = match &refusal.id {
            Some(id) => {
                connection.complete_receipt(id, Err(refusal.clone()))
                    || connection.complete_live(
                        id,
                        Err(to_refused_error(refusal, ExecutionStatus::NotStarted)),
                    )
            }
            None => false,
        };
        if !waited {
            tracing::warn!(reason = %refusal.reason, "hub refused a frame");
            if let Some(served) = &self.handler {
                served.on_refused(refusal);
            }
        }
    }

    /// Sends a frame without delivery guarantee: the next connection sends the frame again.
    pub(super) fn send_best_effort(&self, connection: &Arc<HubConnection>, frame: &BrokerFrame) {
        let Err(frame) = connection.outgoing.try_send(frame.to_bytes()) else {
            return;
        };
        let outgoing = connection.outgoing.clone();
        self.options.tasks.spawn("broker send", async move {
            let _ = outgoing.send(frame).await;
        });
    }

    /// Converts a deadline for the local timer and for the hub.
    pub(super) fn live_deadline(&self, at: bowline_core::time::MonotonicTime) -> LiveCallDeadline {
        let clock = &self.options.clock;
        LiveCallDeadline {
            at: clock.instant(at),
            ttl_ms: at.millis_since(clock.now()),
        }
    }
}

/// Waits for `welcome`; skips other frames.
async fn wait_welcome(
    incoming: &mut WebSocketReceiver,
) -> Result<BrokerWelcome, BrokerConnectError> {
    loop {
        let bytes = incoming.next().await?;
        match BrokerFrame::parse(&bytes) {
            Ok(BrokerFrame::Welcome(welcome)) => return Ok(welcome),
            Ok(BrokerFrame::Error(refusal)) if is_fencing(&refusal) => {
                return Err(BrokerConnectError::Fenced(refusal.reason));
            }
            Ok(BrokerFrame::Error(refusal)) => return Err(BrokerConnectError::Refused(refusal)),
            Ok(_) => {}
            Err(error) => log_skipped_frame(&error, &bytes),
        }
    }
}

fn is_fencing(refusal: &BrokerRefusal) -> bool {
    refusal.id.is_none() && refusal.code.as_deref() == Some(FENCED_CODE)
}

fn log_skipped_frame(error: &FrameError, bytes: &Bytes) {
    tracing::warn!(%error, bytes = bytes.len(), "invalid frame skipped");
}

fn to_connect_error(error: &BrokerCallError) -> BrokerConnectError {
    match error {
        BrokerCallError::Timeout(
            ExecutionStatus::NotStarted | ExecutionStatus::Unknown | ExecutionStatus::Completed,
        ) => BrokerConnectError::Timeout,
        BrokerCallError::NotSent(reason) | BrokerCallError::Lost(reason) => {
            BrokerConnectError::Manifest(Arc::clone(reason))
        }
        BrokerCallError::Refused(failure) => {
            BrokerConnectError::Manifest(Arc::clone(&failure.reason))
        }
    }
}

/// Closes a connection whose setup failed.
#[derive(Debug)]
struct HangupGuard(Option<Arc<HubConnection>>);

impl HangupGuard {
    fn disarm(mut self) {
        self.0 = None;
    }
}

impl Drop for HangupGuard {
    fn drop(&mut self) {
        if let Some(connection) = &self.0 {
            connection.outgoing.close(close_codes::NORMAL, "");
        }
    }
}

//! The tools of a hub or of a peer as a tool executor, for an agent loop indistinguishable from a
//! local executor.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use bowline_core::BoxFuture;
use bowline_core::error::{
    CallError, ExecutionStatus, FailureClass, FailureOrigin, FailureReport, RetryAdvice,
};
use bowline_tools::{
    ExecuteContext, ExecuteError, ToolArguments, ToolExecutor, ToolOutput, ToolSchema,
};

use super::{
    BrokerCall, BrokerCallError, BrokerClient, BrokerClientOptions, BrokerConnectError,
    CredentialSource, PeerManifest, RemotePeer as _,
};
use crate::frames::{
    BrokerArguments as Sent, BrokerRequest, BrokerResponse, CallerContext, ManifestItem,
    TextArguments,
};
use crate::mailbox::{HUB, MailboxName};

/// Mailbox part of the client, so that a serving program of the same principal keeps its own
/// mailbox.
const MAILBOX_PART: &str = "#mcp";

/// Runs the tools of a hub, or of a peer that serves tools over the hub. Cheap to clone.
///
/// A repeatable tool is called live, and once more over the next connection after a loss. For any
/// other tool the hub stores the call before running the tool, and the reply arrives over whatever
/// connection is open by then.
///
/// ```
/// use std::time::Duration;
///
/// use bowline_broker::{CredentialSource, RemoteTools};
/// use bowline_tools::{ExecuteContext, ToolExecutor as _};
/// use serde_json::json;
/// # use bowline_tools::Toolbox;
/// # use bowline_tools::ToolOutput;
///
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// # let any = json!({"type": "object"});
/// # let shout = Toolbox::default().with("shout", "Says it louder.", &any, |said, _| {
/// #     let text = said.to_value()["text"].as_str().unwrap_or_default().to_uppercase();
/// #     async move { Ok(ToolOutput::from_text(&text)) }
/// # });
/// # let hub = bowline_testkit::TestHub::start(shout).await?;
/// # let (url, token) = (hub.url(), "ann");
/// // `url` is the hub's, `http://HOST:PORT`; `bowline token create` on the hub made the token.
/// let credential = CredentialSource::from_token(token);
/// let tools = RemoteTools::connect(url, credential, Duration::from_secs(30)).await?;
/// assert!(tools.has_tool("box__shout"));
///
/// let context = ExecuteContext::default();
/// let output = tools.execute("box__shout", json!({"text": "hi"}).into(), &context).await?;
/// assert_eq!(output.text(), "HI");
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct RemoteTools {
    client: BrokerClient,
    timeout: Duration,
    /// The peer that serves the tools; the hub if absent.
    peer: Option<Arc<PeerTools>>,
}

/// The tools of one peer.
#[derive(Debug)]
struct PeerTools {
    mailbox: MailboxName,
    /// The last fetched manifest.
    manifest: ArcSwap<PeerManifest>,
}

impl RemoteTools {
    /// Connects to the hub at `endpoint` and fetches the manifest. `timeout` applies to connecting,
    /// and to calls without a timeout of their own.
    ///
    /// # Errors
    /// The connection or the manifest timed out.
    pub async fn connect(
        endpoint: &str,
        credential: CredentialSource,
        timeout: Duration,
    ) -> Result<Self, BrokerConnectError> {
        let options = BrokerClientOptions {
            mailbox_part: Some(MAILBOX_PART.into()),
            ..BrokerClientOptions::default()
        };
        Self::connect_with(endpoint, credential, timeout, options).await
    }

    /// Connects with `options`.
    ///
    /// # Errors
    /// Those of [`connect`](Self::connect).
    pub async fn connect_with(
        endpoint: &str,
        credential: CredentialSource,
        timeout: Duration,
        options: BrokerClientOptions,
    ) -> Result<Self, BrokerConnectError> {
        let client = BrokerClient::start(endpoint, credential, options, None)?;
        client
            .wait_ready(client.clock().now().plus(timeout))
            .await?;
        Ok(Self::with_client(client, timeout))
    }

    /// Runs tools over an existing client.
    #[must_use]
    pub const fn with_client(client: BrokerClient, timeout: Duration) -> Self {
        let peer = None;
        Self {
            client,
            timeout,
            peer,
        }
    }

    /// Returns the tools that another peer of the hub serves in a mailbox, over the same
    /// connection. The peer may run [`serve_supervised`](super::serve_supervised), or a foreign
    /// program that speaks the same frames.
    ///
    /// The hub's config must let both sides reach each other: `[principals.NAME] to`. The manifest
    /// of the peer is fetched now, and again by [`refresh`](Self::refresh).
    ///
    /// # Errors
    /// The name is invalid, or the manifest timed out.
    pub async fn for_peer(&self, peer: &str) -> Result<Self, BrokerConnectError> {
        let mailbox = MailboxName::parse(peer);
        let mailbox =
            mailbox.map_err(|bad| BrokerConnectError::Manifest(bad.to_string().into()))?;
        let peer = (mailbox.principal() != HUB).then(|| PeerTools {
            mailbox,
            manifest: ArcSwap::default(),
        });
        let tools = Self {
            peer: peer.map(Arc::new),
            ..self.clone()
        };
        tools.refresh().await?;
        Ok(tools)
    }

    /// Fetches the peer's manifest again. The hub announces changes of the hub's own tools.
    ///
    /// # Errors
    /// The manifest timed out.
    pub async fn refresh(&self) -> Result<(), BrokerConnectError> {
        let Some(peer) = &self.peer else {
            return Ok(());
        };
        let call = BrokerCall {
            request: BrokerRequest::Manifest,
            // Peers of foreign systems read only the mailbox.
            stored: true,
            deadline: self.client.clock().now().plus(self.timeout),
            sender: None,
            client: None,
        };
        let manifest = match self.client.call_peer(&peer.mailbox, call).await {
            Ok(BrokerResponse::Manifest { items, revision }) => Ok(PeerManifest {
                revision,
                items,
                servers: Vec::new(),
            }),
            Ok(BrokerResponse::Failed(failure)) => Err(failure.reason),
            Ok(BrokerResponse::Output { .. } | BrokerResponse::RpcError { .. }) => {
                Err("the peer answered something else".into())
            }
            Err(BrokerCallError::Timeout(_)) => return Err(BrokerConnectError::Timeout),
            Err(error) => Err(FailureReport::from(error).reason),
        };
        peer.manifest
            .store(Arc::new(manifest.map_err(BrokerConnectError::Manifest)?));
        Ok(())
    }

    /// Returns the client.
    #[must_use]
    pub const fn client(&self) -> &BrokerClient {
        &self.client
    }

    /// Whether a tool of this name is offered, per the last known manifest.
    #[must_use]
    pub fn has_tool(&self, name: &str) -> bool {
        self.find_tool(name).is_some()
    }

    fn find_tool(&self, name: &str) -> Option<ManifestItem> {
        let Some(peer) = &self.peer else {
            return self.client.find_tool(name);
        };
        let manifest = peer.manifest.load();
        let mut items = manifest.items.iter();
        items.find(|item| *item.name == *name).cloned()
    }

    async fn send_call(&self, call: BrokerCall) -> Result<BrokerResponse, BrokerCallError> {
        match &self.peer {
            None => self.client.call(call).await,
            Some(peer) => self.client.call_peer(&peer.mailbox, call).await,
        }
    }

    /// Returns the display name of the server that runs a tool.
    fn server_name<'a>(&'a self, item: &'a ManifestItem) -> &'a str {
        let default_name = self.peer.as_ref().map_or(HUB, |peer| peer.mailbox.as_str());
        item.server.as_deref().unwrap_or(default_name)
    }

    async fn run_tool(
        &self,
        item: &ManifestItem,
        arguments: &ToolArguments,
        context: &ExecuteContext,
    ) -> Result<ToolOutput, ExecuteError> {
        arguments
            .check_object()
            .map_err(|source| ExecuteError::Arguments {
                tool: Arc::clone(&item.name),
                source,
            })?;
        let now = self.client.clock().now();
        let raw = arguments.raw().clone();
        let call_context = CallerContext {
            run: context.run.as_ref().map(|run| Arc::clone(&run.id)),
            trace: context.trace.as_deref().cloned().map(Box::new),
            ..CallerContext::default()
        };
        let call = BrokerCall {
            request: BrokerRequest::Call {
                tool: Arc::clone(&item.name),
                server: None,
                arguments: match (&self.peer, call_context.is_empty()) {
                    (None, true) => Sent::Object(raw),
                    // Every peer reads this form and skips unknown members.
                    _ => Sent::Text(Box::new(TextArguments {
                        json: raw,
                        context: call_context,
                    })),
                },
            },
            stored: !item.is_repeatable,
            deadline: now.plus(context.timeout.unwrap_or(self.timeout)),
            sender: None,
            client: context.caller.clone(),
        };
        let response = match self.send_call(call.clone()).await {
            // The outcome is unknown and the tool is repeatable: retry once.
            Err(BrokerCallError::Lost(_)) if item.is_repeatable => self.send_call(call).await,
            response => response,
        };
        to_output(self.server_name(item), response)
    }
}

impl ToolExecutor for RemoteTools {
    fn execute<'a>(
        &'a self,
        name: &'a str,
        arguments: ToolArguments,
        context: &'a ExecuteContext,
    ) -> BoxFuture<'a, Result<ToolOutput, ExecuteError>> {
        Box::pin(async move {
            let Some(item) = self.find_tool(name) else {
                return Err(ExecuteError::unknown_tool(name));
            };
            self.run_tool(&item, &arguments, context).await
        })
    }

    fn list_tools(&self) -> Vec<ToolSchema> {
        let manifest = match &self.peer {
            None => self.client.manifest(),
            Some(peer) => peer.manifest.load_full(),
        };
        manifest.items.iter().map(to_schema).collect()
    }
}

/// Returns the schema of a peer's tool, under the peer's name.
fn to_schema(item: &ManifestItem) -> ToolSchema {
    ToolSchema::from_raw(Arc::clone(&item.name), item.definition.clone())
}

/// Converts the result of a call to a tool output.
fn to_output(
    server: &str,
    response: Result<BrokerResponse, BrokerCallError>,
) -> Result<ToolOutput, ExecuteError> {
    let remote_failure = |failure: FailureReport| {
        ExecuteError::Call(CallError::RemoteFailure {
            server: server.into(),
            failure: Arc::new(failure),
        })
    };
    match response {
        Ok(BrokerResponse::Output {
            result,
            from_journal,
            ..
        }) => {
            let output = ToolOutput::from_result(result);
            Ok(match from_journal {
                true => output.into_recorded(),
                false => output,
            })
        }
        Ok(BrokerResponse::RpcError { error, .. }) => {
            let server = server.into();
            Err(CallError::Refused { server, error }.into())
        }
        Ok(BrokerResponse::Failed(failure)) => Err(remote_failure(failure)),
        Ok(BrokerResponse::Manifest { .. }) => Err(remote_failure(broker_failure(
            FailureClass::ProtocolError,
            ExecutionStatus::Unknown,
            RetryAdvice::Never,
            "bad_answer",
            "the hub answered something else",
        ))),
        Err(error) => Err(remote_failure(error.into())),
    }
}

impl From<BrokerCallError> for FailureReport {
    fn from(error: BrokerCallError) -> Self {
        let execution = error.execution();
        match error {
            BrokerCallError::NotSent(reason) => broker_failure(
                FailureClass::SendFailed,
                execution,
                RetryAdvice::Safe,
                "send_failed",
                &reason,
            ),
            BrokerCallError::Lost(reason) => broker_failure(
                FailureClass::ConnectionLost,
                execution,
                RetryAdvice::Never,
                "connection_lost",
                &reason,
            ),
            BrokerCallError::Timeout(_) => broker_failure(
                FailureClass::Timeout,
                execution,
                RetryAdvice::Never,
                "timeout",
                "no answer in time",
            ),
            BrokerCallError::Refused(failure) => failure,
        }
    }
}

fn broker_failure(
    class: FailureClass,
    execution: ExecutionStatus,
    retry: RetryAdvice,
    code: &str,
    reason: &str,
) -> FailureReport {
    FailureReport {
        class,
        execution,
        retry,
        origin: FailureOrigin::Broker,
        code: code.into(),
        reason: reason.into(),
    }
}

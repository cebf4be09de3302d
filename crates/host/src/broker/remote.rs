//! The tools of a hub or of one of its peers, as an executor that an agent's loop cannot tell from
//! a local one.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use bowline_core::error::{CallError, Class, Execution, Failure, Origin, Retry};
use bowline_core::mailbox::{HUB, Mailbox};
use bowline_link::BoxFuture;
use bowline_wire::broker::{Answer, Arguments as Sent, Ask, Context, Item, TextArguments};

use super::{
    Client, ClientOptions, ConnectError, Credential, Errand, ErrandError, Manifest, Remote as _,
};
use crate::output::ToolOutput;
use crate::tools::{Arguments, ExecuteContext, ExecuteError, ToolExecutor, ToolSchema, refused};

/// The part of its principal's mailbox that an executor takes, so that a program of the same
/// principal which serves is left alone.
const PART: &str = "#mcp";

/// Runs the tools of a hub, or of a peer that serves tools over it. Cheap to clone.
///
/// What may run twice without harm goes live, and once more over the next connection where the
/// first is lost. Everything else is stored by the hub before it runs, and is answered over
/// whatever connection there is by then.
///
/// ```
/// use std::time::Duration;
///
/// use bowline_host::broker::{Credential, RemoteTools};
/// use bowline_host::tools::{ExecuteContext, ToolExecutor as _};
/// use serde_json::json;
/// # use bowline_host::tools::Toolbox;
/// # use bowline_host::ToolOutput;
///
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// # let any = json!({"type": "object"});
/// # let shout = Toolbox::default().with(("shout", "Says it louder."), &any, |said, _| {
/// #     let text = said.value()["text"].as_str().unwrap_or_default().to_uppercase();
/// #     async move { Ok(ToolOutput::of_text(&text)) }
/// # });
/// # let hub = bowline_sim::OpenHub::with(shout).await?;
/// # let (url, token) = (hub.url(), "ann");
/// // `url` is the hub's, `http://HOST:PORT`; the token was made there by `bowline token create`.
/// let tools = RemoteTools::connect(url, Credential::fixed(token), Duration::from_secs(30)).await?;
/// assert!(tools.has("box__shout"));
///
/// let context = ExecuteContext::default();
/// let output = tools.execute("box__shout", json!({"text": "hi"}).into(), &context).await?;
/// assert_eq!(output.text(), "HI");
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct RemoteTools {
    client: Client,
    timeout: Duration,
    /// The peer whose tools they are; the hub's where absent.
    peer: Option<Arc<PeerTools>>,
}

/// The tools of one peer.
#[derive(Debug)]
struct PeerTools {
    mailbox: Mailbox,
    /// What it last said that it offers.
    manifest: ArcSwap<Manifest>,
}

impl RemoteTools {
    /// Connects to the hub at `endpoint` and asks what it offers. `timeout` is for that, and for
    /// calls that say nothing else.
    ///
    /// # Errors
    /// There is no connection in time, or the hub does not say what it offers.
    pub async fn connect(
        endpoint: &str,
        credential: Credential,
        timeout: Duration,
    ) -> Result<Self, ConnectError> {
        let options = ClientOptions {
            part: Some(PART.into()),
            ..ClientOptions::default()
        };
        Self::connect_with(endpoint, credential, timeout, options).await
    }

    /// Connects as `options` say.
    ///
    /// # Errors
    /// Those of [`connect`](Self::connect).
    pub async fn connect_with(
        endpoint: &str,
        credential: Credential,
        timeout: Duration,
        options: ClientOptions,
    ) -> Result<Self, ConnectError> {
        let client = Client::start(endpoint, credential, options, None)?;
        client.ready(client.clock().now().plus(timeout)).await?;
        Ok(Self::over(client, timeout))
    }

    /// Runs tools over a connection that is there already.
    #[must_use]
    pub const fn over(client: Client, timeout: Duration) -> Self {
        let peer = None;
        Self {
            client,
            timeout,
            peer,
        }
    }

    /// Returns the tools that another peer of the hub serves in its mailbox, over the same
    /// connection. The peer may be a [`serve_supervised`](super::serve_supervised), or a program
    /// of another system that speaks the same frames.
    ///
    /// The config of the hub lets both sides reach each other: `[principals.NAME] to`. What the
    /// peer offers is asked for now, and again by [`refresh`](Self::refresh).
    ///
    /// # Errors
    /// The name cannot be one, or the peer does not say in time what it offers.
    pub async fn for_peer(&self, peer: &str) -> Result<Self, ConnectError> {
        let mailbox = Mailbox::parse(peer);
        let mailbox = mailbox.map_err(|bad| ConnectError::Manifest(bad.to_string().into()))?;
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

    /// Asks the peer again what it offers. The hub tells by itself when its own tools change.
    ///
    /// # Errors
    /// The peer does not say in time.
    pub async fn refresh(&self) -> Result<(), ConnectError> {
        let Some(peer) = &self.peer else {
            return Ok(());
        };
        let errand = Errand {
            ask: Ask::Manifest,
            // Peers of other systems read their mailbox and nothing else.
            stored: true,
            deadline: self.client.clock().now().plus(self.timeout),
            caller: None,
            sink: None,
        };
        let said = match self.client.ask_peer(&peer.mailbox, errand).await {
            Ok(Answer::Manifest { items, revision }) => Ok(Manifest {
                revision,
                items,
                servers: Vec::new(),
            }),
            Ok(Answer::Failed(failure)) => Err(failure.reason),
            Ok(Answer::Output { .. } | Answer::Rpc { .. }) => {
                Err("the peer answered something else".into())
            }
            Err(ErrandError::Timeout(_)) => return Err(ConnectError::Timeout),
            Err(error) => Err(Failure::from(error).reason),
        };
        peer.manifest
            .store(Arc::new(said.map_err(ConnectError::Manifest)?));
        Ok(())
    }

    /// Returns the connection.
    #[must_use]
    pub const fn client(&self) -> &Client {
        &self.client
    }

    /// Whether a tool of that name is offered, as far as is known without asking.
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        self.item(name).is_some()
    }

    fn item(&self, name: &str) -> Option<Item> {
        let Some(peer) = &self.peer else {
            return self.client.item(name);
        };
        let manifest = peer.manifest.load();
        let mut items = manifest.items.iter();
        items.find(|item| *item.name == *name).cloned()
    }

    async fn ask(&self, errand: Errand) -> Result<Answer, ErrandError> {
        match &self.peer {
            None => self.client.ask(errand).await,
            Some(peer) => self.client.ask_peer(&peer.mailbox, errand).await,
        }
    }

    /// Returns who runs a tool, for people.
    fn server<'a>(&'a self, item: &'a Item) -> &'a str {
        let asked = self.peer.as_ref().map_or(HUB, |peer| peer.mailbox.as_str());
        item.server.as_deref().unwrap_or(asked)
    }

    async fn run(
        &self,
        item: &Item,
        arguments: &Arguments,
        context: &ExecuteContext,
    ) -> Result<ToolOutput, ExecuteError> {
        arguments
            .check()
            .map_err(|source| ExecuteError::Arguments {
                tool: Arc::clone(&item.name),
                source,
            })?;
        let now = self.client.clock().now();
        let raw = arguments.raw().clone();
        let described = Context {
            run: context.run.as_ref().map(|run| Arc::clone(&run.id)),
            trace: context.trace.as_deref().cloned().map(Box::new),
            ..Context::default()
        };
        let errand = Errand {
            ask: Ask::Call {
                tool: Arc::clone(&item.name),
                server: None,
                arguments: match (&self.peer, described.is_empty()) {
                    (None, true) => Sent::Object(raw),
                    // Every peer reads this form, and skips what it does not know.
                    _ => Sent::Text(Box::new(TextArguments {
                        json: raw,
                        context: described,
                    })),
                },
            },
            stored: !item.repeatable,
            deadline: now.plus(context.timeout.unwrap_or(self.timeout)),
            caller: None,
            sink: context.caller.clone(),
        };
        let answer = match self.ask(errand.clone()).await {
            // Nobody knows whether it ran, and it does no harm to run it again; but once only.
            Err(ErrandError::Lost(_)) if item.repeatable => self.ask(errand).await,
            answer => answer,
        };
        outcome(self.server(item), answer)
    }
}

impl ToolExecutor for RemoteTools {
    fn execute<'a>(
        &'a self,
        name: &'a str,
        arguments: Arguments,
        context: &'a ExecuteContext,
    ) -> BoxFuture<'a, Result<ToolOutput, ExecuteError>> {
        Box::pin(async move {
            let Some(item) = self.item(name) else {
                return Err(ExecuteError::unknown(name));
            };
            self.run(&item, &arguments, context).await
        })
    }

    fn tools(&self) -> Vec<ToolSchema> {
        let manifest = match &self.peer {
            None => self.client.manifest(),
            Some(peer) => peer.manifest.load_full(),
        };
        manifest.items.iter().map(ToolSchema::offered).collect()
    }
}

/// Puts what came of an errand into the terms of an executor.
fn outcome(server: &str, answer: Result<Answer, ErrandError>) -> Result<ToolOutput, ExecuteError> {
    let elsewhere = |failure: Failure| {
        ExecuteError::Call(CallError::Elsewhere {
            server: server.into(),
            failure: Arc::new(failure),
        })
    };
    match answer {
        Ok(Answer::Output { result, again, .. }) => {
            let output = ToolOutput::from_result(result);
            Ok(match again {
                true => output.recorded(),
                false => output,
            })
        }
        Ok(Answer::Rpc { error, .. }) => Err(refused(server, error).into()),
        Ok(Answer::Failed(failure)) => Err(elsewhere(failure)),
        Ok(Answer::Manifest { .. }) => Err(elsewhere(failed(
            (Class::ProtocolError, Execution::Unknown, Retry::Never),
            "bad_answer",
            "the hub answered something else",
        ))),
        Err(error) => Err(elsewhere(error.into())),
    }
}

impl From<ErrandError> for Failure {
    fn from(error: ErrandError) -> Self {
        let execution = error.execution();
        match error {
            ErrandError::NotSent(reason) => failed(
                (Class::SendFailed, execution, Retry::Safe),
                "send_failed",
                &reason,
            ),
            ErrandError::Lost(reason) => failed(
                (Class::ConnectionLost, execution, Retry::Never),
                "connection_lost",
                &reason,
            ),
            ErrandError::Timeout(_) => failed(
                (Class::Timeout, execution, Retry::Never),
                "timeout",
                "no answer in time",
            ),
            ErrandError::Refused(failure) => failure,
        }
    }
}

fn failed(
    (class, execution, retry): (Class, Execution, Retry),
    code: &str,
    reason: &str,
) -> Failure {
    Failure {
        class,
        execution,
        retry,
        origin: Origin::Broker,
        code: code.into(),
        reason: reason.into(),
    }
}

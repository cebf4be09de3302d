//! Scripted behaviour of a server, per generation and per tool.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bowline_link::LinkError;
use bytes::Bytes;

use crate::sim::release_gate::ReleaseGate;
use crate::sim::sim_json;

/// The script of one server for all starts.
#[derive(Clone, Debug)]
pub struct ServerScript {
    first: GenerationScript,
    later: Vec<GenerationScript>,
}

impl ServerScript {
    /// Returns the same behaviour for every generation.
    #[must_use]
    pub const fn always(generation: GenerationScript) -> Self {
        Self {
            first: generation,
            later: Vec::new(),
        }
    }

    /// Adds the behaviour of the next and all later generations.
    #[must_use]
    pub fn then(mut self, generation: GenerationScript) -> Self {
        self.later.push(generation);
        self
    }

    /// Returns the behaviour of the `nth` generation, starting at 1.
    pub(crate) fn generation(&self, nth: u64) -> &GenerationScript {
        let at = usize::try_from(nth).unwrap_or(usize::MAX);
        let later = at
            .checked_sub(2)
            .and_then(|at| self.later.get(at).or_else(|| self.later.last()));
        later.unwrap_or(&self.first)
    }
}

/// The behaviour of one generation.
#[derive(Clone, Debug)]
pub struct GenerationScript {
    pub(crate) start: StartBehaviour,
    /// Pages of `tools/list` by cursor; empty for the first.
    pub(crate) pages: BTreeMap<String, Bytes>,
    pub(crate) behaviours: BTreeMap<String, ToolBehaviour>,
    /// Time between the end of the link and the end of the process.
    pub(crate) end_delay: Duration,
    /// Delay of each `tools/list` response.
    pub(crate) list_delay: Duration,
    /// Whether the server exits on `tools/list`.
    pub(crate) exits_on_list: bool,
    /// Lifetime after the handshake, if limited.
    pub(crate) exits_after: Option<Duration>,
    /// The `initialize` result, if not the default.
    pub(crate) initialize: Option<Bytes>,
    /// Responses to further methods, by method and a substring of the parameters.
    pub(crate) responses: Vec<(String, String, ScriptedResponse)>,
}

/// A scripted response.
#[derive(Clone, Debug)]
pub(crate) enum ScriptedResponse {
    Result(Bytes),
    Error(Bytes),
    Never,
}

/// Behaviour of a start.
#[derive(Clone, Debug)]
pub enum StartBehaviour {
    /// Success.
    Success,
    /// Failure with this reason.
    Failure(Arc<str>),
    /// Success after a delay.
    Delayed(Duration),
    /// Success after the release of the gate.
    Blocked(ReleaseGate),
}

/// Behaviour of a tool call.
#[derive(Clone, Debug)]
pub enum ToolBehaviour {
    /// Responds at once.
    Respond,
    /// Responds after a delay.
    RespondAfter(Duration),
    /// Responds after a delay, even after a cancellation.
    RespondLate(Duration),
    /// Runs, and responds after the release of the gate.
    BlockOn(ReleaseGate),
    /// Runs, sends a server request, and responds after the release of the gate; the wait does not
    /// count against the deadline.
    AskClient(ReleaseGate),
    /// Runs, and ends the server.
    Exit,
    /// The server exits after the request was sent, before reading.
    ExitUnread,
    /// The link closes before the request is sent.
    CloseLink,
    /// Does not run: an intermediary responds with an error.
    FailWith(LinkError),
    /// Runs, and responds with a JSON-RPC error.
    RpcError,
    /// Runs, and responds with `isError`.
    ToolError,
    /// Runs, and responds with garbage.
    RespondGarbage,
    /// Sends this number of progress notifications, then responds.
    Progress(u32),
    /// Runs, and responds with exactly this result.
    RespondWith(String),
    /// Runs for a while, and responds with the number of earlier executions and the members of the
    /// arguments, as members of the result.
    EchoArguments(Duration),
}

impl GenerationScript {
    /// Returns a server with these tools on one page.
    #[must_use]
    pub fn with_tools<'a>(tools: impl IntoIterator<Item = (&'a str, ToolBehaviour)>) -> Self {
        let behaviours: Vec<_> = tools.into_iter().collect();
        let definitions = behaviours
            .iter()
            .map(|(name, _)| sim_json::tool_definition(name));
        Self::with_definitions(&definitions.collect::<Vec<_>>()).add_behaviours(
            behaviours
                .into_iter()
                .map(|(name, behaviour)| (name.to_owned(), behaviour)),
        )
    }

    /// Returns a server with these definitions on one page; each tool responds unless changed by
    /// [`with_behaviour`](Self::with_behaviour).
    #[must_use]
    pub fn with_definitions(definitions: &[String]) -> Self {
        let page = sim_json::list_page(definitions, None);
        Self {
            start: StartBehaviour::Success,
            pages: BTreeMap::from([(String::new(), page.into())]),
            behaviours: BTreeMap::new(),
            end_delay: Duration::ZERO,
            list_delay: Duration::ZERO,
            exits_on_list: false,
            exits_after: None,
            initialize: None,
            responses: Vec::new(),
        }
    }

    /// Returns a server with a failing start.
    #[must_use]
    pub fn failing_start(reason: &str) -> Self {
        let mut generation = Self::with_definitions(&[]);
        generation.start = StartBehaviour::Failure(reason.into());
        generation
    }

    /// Blocks the start until `gate` is released.
    #[must_use]
    pub fn hang_start(mut self, gate: &ReleaseGate) -> Self {
        self.start = StartBehaviour::Blocked(gate.clone());
        self
    }

    /// Adds a list page under `cursor`.
    #[must_use]
    pub fn with_page(mut self, cursor: &str, tools: &[&str], next: Option<&str>) -> Self {
        let tools: Vec<_> = tools
            .iter()
            .map(|name| sim_json::tool_definition(name))
            .collect();
        let page = sim_json::list_page(&tools, next);
        self.pages.insert(cursor.to_owned(), page.into());
        self
    }

    /// Adds a raw list page under `cursor`.
    #[must_use]
    pub fn with_raw_page(mut self, cursor: &str, page: &str) -> Self {
        let page = Bytes::copy_from_slice(page.as_bytes());
        self.pages.insert(cursor.to_owned(), page);
        self
    }

    /// Sets the `initialize` result.
    #[must_use]
    pub fn with_initialize_result(mut self, initialize: &str) -> Self {
        self.initialize = Some(Bytes::copy_from_slice(initialize.as_bytes()));
        self
    }

    /// Responds to `method` with a result if the parameters contain `part`.
    #[must_use]
    pub fn respond_with(self, method: &str, part: &str, result: &str) -> Self {
        let result = Bytes::copy_from_slice(result.as_bytes());
        self.add_response(method, part, ScriptedResponse::Result(result))
    }

    /// Responds to `method` with an error if the parameters contain `part`.
    #[must_use]
    pub fn respond_with_error(self, method: &str, part: &str, error: &str) -> Self {
        let error = Bytes::copy_from_slice(error.as_bytes());
        self.add_response(method, part, ScriptedResponse::Error(error))
    }

    /// Never responds to `method`.
    #[must_use]
    pub fn never_respond(self, method: &str) -> Self {
        self.add_response(method, "", ScriptedResponse::Never)
    }

    fn add_response(mut self, method: &str, part: &str, response: ScriptedResponse) -> Self {
        self.responses
            .push((method.to_owned(), part.to_owned(), response));
        self
    }

    /// Sets the behaviour of a tool.
    #[must_use]
    pub fn with_behaviour(self, tool: &str, behaviour: ToolBehaviour) -> Self {
        self.add_behaviours([(tool.to_owned(), behaviour)])
    }

    /// Keeps the process alive for a while after the end of the link.
    #[must_use]
    pub const fn with_end_delay(mut self, wait: Duration) -> Self {
        self.end_delay = wait;
        self
    }

    /// Delays each `tools/list` response.
    #[must_use]
    pub const fn with_list_delay(mut self, wait: Duration) -> Self {
        self.list_delay = wait;
        self
    }

    /// Delays the start.
    #[must_use]
    pub fn with_start_delay(mut self, wait: Duration) -> Self {
        self.start = StartBehaviour::Delayed(wait);
        self
    }

    /// Exits on `tools/list`.
    #[must_use]
    pub const fn exit_on_list(mut self) -> Self {
        self.exits_on_list = true;
        self
    }

    /// Exits a while after the handshake.
    #[must_use]
    pub const fn exit_after(mut self, wait: Duration) -> Self {
        self.exits_after = Some(wait);
        self
    }

    fn add_behaviours(mut self, acts: impl IntoIterator<Item = (String, ToolBehaviour)>) -> Self {
        self.behaviours.extend(acts);
        self
    }
}

//! What a server is to do, life by life and tool by tool.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bowline_link::LinkError;
use bytes::Bytes;

use crate::gate::Gate;
use crate::json;

/// What one server does each time it is started.
#[derive(Clone, Debug)]
pub struct Script {
    first: Generation,
    later: Vec<Generation>,
}

impl Script {
    /// Returns a server that does the same in each of its lives.
    #[must_use]
    pub const fn always(generation: Generation) -> Self {
        Self {
            first: generation,
            later: Vec::new(),
        }
    }

    /// Adds what it does in its next life, and in those after it.
    #[must_use]
    pub fn then(mut self, generation: Generation) -> Self {
        self.later.push(generation);
        self
    }

    /// Returns what it does in its `nth` life; the first is 1.
    pub(crate) fn generation(&self, nth: u64) -> &Generation {
        let at = usize::try_from(nth).unwrap_or(usize::MAX);
        let later = at
            .checked_sub(2)
            .and_then(|at| self.later.get(at).or_else(|| self.later.last()));
        later.unwrap_or(&self.first)
    }
}

/// One life of a server.
#[derive(Clone, Debug)]
pub struct Generation {
    pub(crate) start: Start,
    /// Pages of `tools/list` by their cursor; the first has an empty one.
    pub(crate) pages: BTreeMap<String, Bytes>,
    pub(crate) acts: BTreeMap<String, Act>,
    /// How long its process lives on after the link takes no more requests.
    pub(crate) end_takes: Duration,
    /// How long each answer to `tools/list` takes.
    pub(crate) list_takes: Duration,
    /// Whether it goes when it is asked for its tools.
    pub(crate) dies_listing: bool,
    /// How long it lives once it is connected, where it does not go on for ever.
    pub(crate) dies_after: Option<Duration>,
    /// Its result of `initialize`, where it is not the usual one.
    pub(crate) initialize: Option<Bytes>,
    /// What it answers to other methods, by the method and a text that the parameters hold.
    pub(crate) answers: Vec<(String, String, Answered)>,
}

/// What a server answers to a method.
#[derive(Clone, Debug)]
pub(crate) enum Answered {
    Result(Bytes),
    Error(Bytes),
    Never,
}

/// How a start goes.
#[derive(Clone, Debug)]
pub enum Start {
    /// Well.
    Well,
    /// The server fails with this reason.
    Fails(Arc<str>),
    /// Well, after a while.
    Takes(Duration),
    /// Nothing happens until the gate is released; then it goes well.
    Hangs(Gate),
}

/// What a tool does when it is called.
#[derive(Clone, Debug)]
pub enum Act {
    /// Answers at once.
    Answers,
    /// Answers after a while.
    AnswersAfter(Duration),
    /// Answers after a while, even when nobody waits any more.
    AnswersLate(Duration),
    /// Runs, and answers when the gate is released.
    Hangs(Gate),
    /// Runs, asks somebody, and answers when the gate is released; the time until then does not
    /// count against the call.
    Asks(Gate),
    /// Runs, and takes the server with it.
    Dies,
    /// The server goes before it has read the request, after it was sent.
    DiesUnread,
    /// The link closes before the request is sent.
    Closes,
    /// Does not run: something in between answers in its place.
    Fails(LinkError),
    /// Runs, and answers with a JSON-RPC error.
    RpcError,
    /// Runs, and answers with a result that says `isError`.
    ToolError,
    /// Runs, and answers with what is not an answer.
    Garbles,
    /// Tells its progress so many times, then answers.
    Progress(u32),
    /// Runs, and answers with this result, word for word.
    Says(String),
    /// Runs for a while, and answers with how many calls ran before it and with the members of
    /// its arguments, as members of the result.
    Repeats(Duration),
}

impl Generation {
    /// Returns a server that starts well and offers `tools` on one page.
    #[must_use]
    pub fn tools<'a>(tools: impl IntoIterator<Item = (&'a str, Act)>) -> Self {
        let acts: Vec<_> = tools.into_iter().collect();
        let definitions = acts.iter().map(|(name, _)| json::definition(name));
        Self::definitions(&definitions.collect::<Vec<_>>())
            .acts(acts.into_iter().map(|(name, act)| (name.to_owned(), act)))
    }

    /// Returns a server that starts well and offers these definitions on one page; each tool
    /// answers unless [`act`](Self::act) says otherwise.
    #[must_use]
    pub fn definitions(definitions: &[String]) -> Self {
        let page = json::page(definitions, None);
        Self {
            start: Start::Well,
            pages: BTreeMap::from([(String::new(), page.into())]),
            acts: BTreeMap::new(),
            end_takes: Duration::ZERO,
            list_takes: Duration::ZERO,
            dies_listing: false,
            dies_after: None,
            initialize: None,
            answers: Vec::new(),
        }
    }

    /// Returns a server that cannot be started.
    #[must_use]
    pub fn fails(reason: &str) -> Self {
        let mut generation = Self::definitions(&[]);
        generation.start = Start::Fails(reason.into());
        generation
    }

    /// Makes the start hang until `gate` is released.
    #[must_use]
    pub fn hangs(mut self, gate: &Gate) -> Self {
        self.start = Start::Hangs(gate.clone());
        self
    }

    /// Adds a page of the list, found under `cursor`.
    #[must_use]
    pub fn page(mut self, cursor: &str, tools: &[&str], next: Option<&str>) -> Self {
        let tools: Vec<_> = tools.iter().map(|name| json::definition(name)).collect();
        let page = json::page(&tools, next);
        self.pages.insert(cursor.to_owned(), page.into());
        self
    }

    /// Puts a page of the list, word for word, under `cursor`.
    #[must_use]
    pub fn raw_page(mut self, cursor: &str, page: &str) -> Self {
        let page = Bytes::copy_from_slice(page.as_bytes());
        self.pages.insert(cursor.to_owned(), page);
        self
    }

    /// Makes it say this of itself, the result of `initialize`, when it is started.
    #[must_use]
    pub fn introduces(mut self, initialize: &str) -> Self {
        self.initialize = Some(Bytes::copy_from_slice(initialize.as_bytes()));
        self
    }

    /// Makes it answer `method` with a result, where the parameters hold `part`.
    #[must_use]
    pub fn answers(self, method: &str, part: &str, result: &str) -> Self {
        let result = Bytes::copy_from_slice(result.as_bytes());
        self.answered(method, part, Answered::Result(result))
    }

    /// Makes it answer `method` with an error, where the parameters hold `part`.
    #[must_use]
    pub fn refuses(self, method: &str, part: &str, error: &str) -> Self {
        let error = Bytes::copy_from_slice(error.as_bytes());
        self.answered(method, part, Answered::Error(error))
    }

    /// Makes it never answer `method`.
    #[must_use]
    pub fn ignores(self, method: &str) -> Self {
        self.answered(method, "", Answered::Never)
    }

    fn answered(mut self, method: &str, part: &str, answer: Answered) -> Self {
        self.answers
            .push((method.to_owned(), part.to_owned(), answer));
        self
    }

    /// Says what one tool does.
    #[must_use]
    pub fn act(self, tool: &str, act: Act) -> Self {
        self.acts([(tool.to_owned(), act)])
    }

    /// Keeps the process alive for a while after the link takes no more requests.
    #[must_use]
    pub const fn end_takes(mut self, wait: Duration) -> Self {
        self.end_takes = wait;
        self
    }

    /// Makes each answer to `tools/list` take a while.
    #[must_use]
    pub const fn list_takes(mut self, wait: Duration) -> Self {
        self.list_takes = wait;
        self
    }

    /// Makes the start take a while.
    #[must_use]
    pub fn start_takes(mut self, wait: Duration) -> Self {
        self.start = Start::Takes(wait);
        self
    }

    /// Makes it go when it is asked for its tools.
    #[must_use]
    pub const fn dies_listing(mut self) -> Self {
        self.dies_listing = true;
        self
    }

    /// Makes it go by itself a while after it was connected.
    #[must_use]
    pub const fn dies_after(mut self, wait: Duration) -> Self {
        self.dies_after = Some(wait);
        self
    }

    fn acts(mut self, acts: impl IntoIterator<Item = (String, Act)>) -> Self {
        self.acts.extend(acts);
        self
    }
}

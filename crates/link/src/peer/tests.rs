//! Tests of one conversation, with a scripted server at the other end.

use std::borrow::Cow;
use std::future::Future;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bowline_core::caller::{Abilities, Ability, CallerEnd, Question, QuestionId, SessionKey};
use bowline_core::era::Era;
use bytes::Bytes;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, DuplexStream};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::*;
use crate::desk::Events;
use crate::link::{LinkEvent, Rename};
use crate::stderr::Stamps;

mod answers;
mod limits;
mod questions;
mod sending;
mod server_side;

/// A link whose other end is the test.
#[derive(Debug)]
struct Scene {
    peer: Arc<Peer>,
    /// What we wrote to the server.
    heard: BufReader<DuplexStream>,
    /// What the server writes to us.
    voice: DuplexStream,
    events: mpsc::Receiver<LinkEvent>,
    reader: JoinHandle<()>,
}

type Outcome = Result<Answer, LinkError>;

impl Scene {
    fn new() -> Self {
        Self::with(StdioLimits::default(), 64 * 1024)
    }

    /// A pipe of so many bytes leads to the server.
    fn with(limits: StdioLimits, pipe_bytes: usize) -> Self {
        Self::owned(limits, pipe_bytes, None)
    }

    /// A link that belongs to one session.
    fn owned(limits: StdioLimits, pipe_bytes: usize, owner: Option<Arc<dyn CallerEnd>>) -> Self {
        let peer = Peer::new("s".into(), limits, owner);
        let (to_server, heard) = tokio::io::duplex(pipe_bytes);
        let (voice, from_server) = tokio::io::duplex(64 * 1024);
        let (sender, events) = mpsc::channel(limits.events_max);
        spawn(write_loop(peer.clone(), to_server));
        let stamps = Stamps::new(|| 0);
        let reader = spawn(read_loop(
            peer.clone(),
            Arc::new(Events::new(sender)),
            stamps,
            from_server,
        ));
        Self {
            peer,
            heard: BufReader::new(heard),
            voice,
            events,
            reader,
        }
    }

    /// Begins a request, which waits for its answer or for room when this returns.
    async fn call(&self, request: Request) -> JoinHandle<Outcome> {
        let peer = self.peer.clone();
        let before = peer.in_flight();
        let call = spawn(async move { peer.request(request).await });
        while self.peer.in_flight() == before {
            tokio::task::yield_now().await;
        }
        call
    }

    /// Begins a request, which is written, or stuck in a full pipe, when this returns.
    async fn sent(&self, method: &'static str) -> JoinHandle<Outcome> {
        let call = self.call(request(method)).await;
        while !self.peer.lock().queue.is_empty() {
            tokio::task::yield_now().await;
        }
        call
    }

    /// The next line that the server reads.
    async fn hears(&mut self) -> String {
        let mut line = String::new();
        let read = self.heard.read_line(&mut line);
        let read = tokio::time::timeout(Duration::from_secs(30), read).await;
        read.expect("a line").unwrap();
        assert_eq!(line.pop(), Some('\n'), "lines are whole");
        line
    }

    async fn says(&mut self, line: &str) {
        self.voice.write_all(line.as_bytes()).await.unwrap();
        self.voice.write_all(b"\n").await.unwrap();
    }

    /// The answer to a call, its result given as `"ok N"`.
    async fn answers(&mut self, id: u64) {
        self.says(&format!(
            r#"{{"jsonrpc":"2.0","id":{id},"result":"ok {id}"}}"#
        ))
        .await;
    }

    /// Makes sure that all that was said before has been read: a ping is answered in order.
    async fn settles(&mut self) {
        self.says(r#"{"jsonrpc":"2.0","id":"settled","method":"ping"}"#)
            .await;
        let line = self.hears().await;
        assert_eq!(line, r#"{"jsonrpc":"2.0","id":"settled","result":{}}"#);
    }
}

#[expect(clippy::disallowed_methods, reason = "tests have no task keeper")]
fn spawn<T: Send + 'static>(task: impl Future<Output = T> + Send + 'static) -> JoinHandle<T> {
    tokio::spawn(task)
}

#[expect(clippy::disallowed_methods, reason = "tests own their clock")]
fn after(wait: Duration) -> Instant {
    Instant::now() + wait
}

/// A request under the caller's id `"a"`.
fn request(method: &'static str) -> Request {
    Request {
        method: Cow::Borrowed(method),
        params: None,
        rename: None,
        progress_at: None,
        reply_id: Bytes::from_static(b"\"a\""),
        deadline: after(Duration::from_secs(60)),
        caller: None,
        trace: None,
        key: None,
        on_behalf: None,
        era: Era::Legacy,
        mirrors: None,
    }
}

fn with_params(params: impl Into<Bytes>) -> Request {
    Request {
        params: Some(params.into()),
        ..request("tools/call")
    }
}

fn text(outcome: Outcome) -> String {
    String::from_utf8(outcome.unwrap().bytes.to_vec()).unwrap()
}

/// What the caller reads when call `id` was answered by `Scene::answers`.
fn ok(id: u64) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":"a","result":"ok {id}"}}"#)
}

/// A caller that keeps what it is told and asked.
#[derive(Debug, Default)]
struct Heard {
    session: u64,
    abilities: Abilities,
    told: Mutex<Vec<Bytes>>,
    asked: Mutex<Vec<Question>>,
    withdrawn: Mutex<Vec<QuestionId>>,
}

impl Heard {
    /// A caller of this session that can be asked anything.
    fn able(session: u64) -> Arc<Self> {
        let all = Ability::ALL.into_iter();
        Arc::new(Self {
            session,
            abilities: all.fold(Abilities::default(), Abilities::with),
            ..Self::default()
        })
    }
}

impl CallerEnd for Heard {
    fn session(&self) -> SessionKey {
        SessionKey(self.session)
    }

    fn abilities(&self) -> Abilities {
        self.abilities
    }

    fn push(&self, notification: Bytes) {
        self.told.lock().unwrap().push(notification);
    }

    fn ask(&self, question: Question) -> Option<QuestionId> {
        let mut asked = self.asked.lock().unwrap();
        asked.push(question);
        Some(QuestionId(asked.len() as u64))
    }

    fn withdraw(&self, question: QuestionId) {
        self.withdrawn.lock().unwrap().push(question);
    }

    fn home(&self) -> Arc<dyn CallerEnd> {
        Self::able(self.session)
    }
}

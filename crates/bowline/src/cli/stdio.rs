//! `stdio`: an MCP client that starts programs speaks to the gateway through this shim.

mod deliver;
mod lines;
mod listen;
mod message;
mod modern;
mod shim;
pub(super) mod start;

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;

use self::lines::{Line, Lines};
use self::message::{Kind, Trouble};
use self::modern::listen::Listening;
use self::modern::{Itself, UnderWay};
use self::shim::Shim;
use self::start::Starter;
use super::Context;
use super::client::{self, encode};
use super::daemon::Finder;
use super::failure::{Exit, Failure};
use crate::state::Run;

/// Requests that are at the gateway at once.
const REQUESTS_MAX: usize = 64;
/// Messages that are under way or wait their turn; a request beyond is refused.
const MESSAGES_MAX: usize = 1024;
/// Streams of changes that one client may have open.
const LISTENING_MAX: usize = 64;
/// Lines that wait to be read by the client.
const OUTPUT_LINES_MAX: usize = 256;
/// Longest wait for answers after the client has said all.
const DRAIN: Duration = Duration::from_secs(300);

pub(super) fn run(server: Option<&str>, context: &mut Context) -> Result<Exit, Failure> {
    let path = match server {
        Some(name) => format!("/servers/{}/mcp", encode(name)),
        None => "/mcp".to_owned(),
    };
    let (finder, starter) = (Finder::new(context), Starter::new(context)?);
    let runtime = client::runtime()?;
    let outcome = runtime.block_on(async {
        let daemon = start::ensure(&finder, &starter).await?;
        let shim = Arc::new(Shim::new(finder, starter, path, daemon));
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        tokio::select! {
            () = serve(shim.clone(), tokio::io::stdin(), tokio::io::stdout()) => {}
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        shim.close().await;
        Ok(Exit::Ok)
    });
    // A read of stdin cannot be given up; the process must not wait for it.
    runtime.shutdown_background();
    outcome
}

/// Serves a client on stdin and stdout by a gateway of this process, until it has said all.
pub(super) async fn beside(run: &Run, starter: Starter) -> Result<(), Failure> {
    let finder = Finder::only(run);
    let daemon = finder.find()?;
    let shim = Arc::new(Shim::new(finder, starter, "/mcp".to_owned(), daemon));
    serve(shim.clone(), tokio::io::stdin(), tokio::io::stdout()).await;
    shim.close().await;
    Ok(())
}

/// Carries lines both ways until the client has said all, or reads no more.
async fn serve<R, W>(shim: Arc<Shim>, input: R, output: W)
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin + Send + 'static,
{
    let (sender, receiver) = mpsc::channel(OUTPUT_LINES_MAX);
    let mut writer = JoinSet::new();
    writer.spawn(write(receiver, output));
    let mut traffic = Traffic {
        shim,
        lines: sender,
        places: Arc::new(Semaphore::new(REQUESTS_MAX)),
        messages: JoinSet::new(),
        listener: JoinSet::new(),
        listening: JoinSet::new(),
        under_way: UnderWay::default(),
    };
    let mut input = Lines::new(input);
    loop {
        tokio::select! {
            line = input.next() => match line {
                Ok(Some(line)) => traffic.take(line).await,
                Ok(None) | Err(_) => break,
            },
            _ = writer.join_next() => return,
            Some(_) = traffic.messages.join_next(), if !traffic.messages.is_empty() => {}
            Some(_) = traffic.listening.join_next(), if !traffic.listening.is_empty() => {}
        }
    }
    tokio::select! {
        _ = tokio::time::timeout(DRAIN, traffic.drain()) => {}
        _ = writer.join_next() => return,
    }
    // The last sender is gone, so the writer ends when all is written.
    drop(traffic);
    writer.join_next().await;
}

async fn write<W: AsyncWrite + Unpin>(mut lines: mpsc::Receiver<Bytes>, mut output: W) {
    while let Some(line) = lines.recv().await {
        let written = async {
            output.write_all(&line).await?;
            output.write_all(b"\n").await?;
            output.flush().await
        };
        if written.await.is_err() {
            return;
        }
    }
}

/// What is under way for one client.
struct Traffic {
    shim: Arc<Shim>,
    lines: shim::Lines,
    /// Requests that may be at the gateway.
    places: Arc<Semaphore>,
    messages: JoinSet<()>,
    /// The stream of messages that belong to no request.
    listener: JoinSet<()>,
    /// The streams of changes of a client without a session.
    listening: JoinSet<()>,
    /// The requests of a client without a session.
    under_way: UnderWay,
}

impl Traffic {
    async fn take(&mut self, line: Line) {
        let Line::Whole(line) = line else {
            return self
                .say(message::malformed(-32600, "The message is over 8 MiB."))
                .await;
        };
        let line = Bytes::from(line);
        match message::kind(&line) {
            None if serde_json::from_slice::<serde::de::IgnoredAny>(&line).is_err() => {
                self.say(message::malformed(-32700, "The line is not JSON."))
                    .await;
            }
            None => {
                self.say(message::malformed(-32600, "The line is no message."))
                    .await
            }
            // What follows depends on the session, so both are waited for.
            Some(Kind::Request { id, method }) if method == "initialize" => {
                self.listener.abort_all();
                self.shim.initialize(line, &id, &self.lines).await;
            }
            Some(Kind::Notification { method }) if method == "notifications/initialized" => {
                if self.shim.notify(line, &self.lines).await.is_ok() {
                    self.listener.abort_all();
                    self.listener
                        .spawn(listen::listen(self.shim.clone(), self.lines.clone()));
                }
            }
            Some(Kind::Request { id, method }) => match Itself::read(&line) {
                Some(itself) if method == "subscriptions/listen" => {
                    self.listen(line, itself, id).await;
                }
                Some(itself) => self.ask(line, itself, id).await,
                None => self.request(line, id).await,
            },
            Some(Kind::Notification { method })
                if method == "notifications/cancelled" && self.under_way.cancel(&line) => {}
            Some(Kind::Notification { .. } | Kind::Answer { .. }) => self.notify(line).await,
        }
    }

    /// Asks for a client that has no session.
    async fn ask(&mut self, line: Bytes, itself: Itself, id: String) {
        let Some(id) = self.enter(id).await else {
            return;
        };
        let (shim, lines, places) = (self.shim.clone(), self.lines.clone(), self.places.clone());
        let own = id.clone();
        let task = self.messages.spawn(async move {
            let _place = places.acquire().await;
            shim.ask(line, &itself, &own, &lines).await;
        });
        self.under_way.begin(&id, task);
    }

    /// Opens a stream of changes, which takes no place of a request.
    async fn listen(&mut self, line: Bytes, itself: Itself, id: String) {
        if self.listening.len() >= LISTENING_MAX {
            let full = Trouble::not_started("Too many streams are open; close one first.");
            return self.say(full.answer(&id)).await;
        }
        let listening = Listening {
            shim: self.shim.clone(),
            line,
            itself,
            id: id.clone(),
            lines: self.lines.clone(),
        };
        let task = self.listening.spawn(listening.run());
        self.under_way.begin(&id, task);
    }

    /// Lets one more request in, or answers it.
    async fn enter(&self, id: String) -> Option<String> {
        if self.messages.len() < MESSAGES_MAX {
            return Some(id);
        }
        let full = Trouble::not_started("Too many requests are under way; try again later.");
        self.say(full.answer(&id)).await;
        None
    }

    async fn request(&mut self, line: Bytes, id: String) {
        let Some(id) = self.enter(id).await else {
            return;
        };
        let (shim, lines, places) = (self.shim.clone(), self.lines.clone(), self.places.clone());
        self.messages.spawn(async move {
            let _place = places.acquire().await;
            shim.request(line, &id, &lines).await;
        });
    }

    /// Answers and cancellations never wait behind the requests that wait for them.
    async fn notify(&mut self, line: Bytes) {
        if self.messages.len() >= MESSAGES_MAX {
            self.messages.join_next().await;
        }
        let (shim, lines) = (self.shim.clone(), self.lines.clone());
        let stateless = self.under_way.is_used() && !shim.is_introduced();
        self.messages.spawn(async move {
            // A notification has nobody who could be told.
            let _trouble = match stateless {
                true => shim.mention(line).await,
                false => shim.notify(line, &lines).await,
            };
        });
    }

    async fn say(&self, line: Bytes) {
        let _gone = self.lines.send(line).await;
    }

    /// Waits for everything that was asked, then stops listening.
    async fn drain(&mut self) {
        while self.messages.join_next().await.is_some() {}
        self.listener.shutdown().await;
        self.listening.shutdown().await;
    }
}

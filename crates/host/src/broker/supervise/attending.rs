//! Answers over a connection what a hub asks for.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use bowline_core::caller::{Ability, CallerEnd, Deaf, Question, QuestionId, SessionKey};
use bowline_core::mailbox::HUB;
use bowline_core::sync::lock;
use bowline_core::time::Now;
use bowline_link::BoxFuture;
use bowline_wire::broker::{
    Answer, Draft, FRAME_BYTES_MAX, Frame, From, Letter, REPLY, REQUEST, Request, Said,
    SessionEvent,
};
use bytes::Bytes;
use tokio::sync::Notify;

use crate::broker::{
    Courier, DeliverError, Incoming, Line, REQUEST_TTL, ReplyError, Served, Serving, Visitors,
    failures, reply_id,
};
use crate::ports::Clock;
use crate::tasks::Tasks;

/// How long the receipt of a reply may take.
const RECEIPT_WAIT: Duration = Duration::from_secs(30);

/// Bytes of a frame around the body of a reply.
const AROUND_BYTES_MAX: usize = 4 * 1024;

/// What a tool says before it answers, per request; the rest is dropped.
const EVENTS_MAX: usize = 64;

/// Live requests in hand at once.
const LIVE_MAX: usize = 1_024;

/// Live requests in hand, by the connection they came over and their ids there.
type Live = Mutex<HashMap<(u64, Arc<str>), Arc<Notify>>>;

/// Answers what comes over the connections of one client, through one engine: a request that was
/// begun over a connection that is lost is not run again when it comes over the next.
#[derive(Debug)]
pub struct Attending {
    serving: Arc<Serving>,
    clock: Arc<dyn Clock>,
    tasks: Tasks,
    live: Arc<Live>,
    visitors: Option<Arc<Visitors>>,
}

impl Attending {
    /// Returns what answers by `serving`.
    #[must_use]
    pub fn new(serving: Arc<Serving>, clock: Arc<dyn Clock>, tasks: Tasks) -> Self {
        Self {
            serving,
            clock,
            tasks,
            live: Arc::default(),
            visitors: None,
        }
    }

    /// Tells these what becomes of the hub's connection and of its sessions.
    #[must_use]
    pub fn for_visitors(self, visitors: &Arc<Visitors>) -> Self {
        Self {
            visitors: Some(Arc::clone(visitors)),
            ..self
        }
    }

    fn came_over(&self, line: &Line) {
        if let Some(visitors) = &self.visitors {
            visitors.come_over(line);
        }
    }

    fn deadline(&self, ttl_ms: Option<u64>) -> Now {
        let ttl = ttl_ms.map_or(REQUEST_TTL, Duration::from_millis);
        self.clock.now().plus(ttl)
    }
}

impl Served for Attending {
    fn message(&self, letter: Letter, line: &Line) {
        let from = match &letter.from {
            Some(from) if *letter.kind == *REQUEST => from.clone(),
            _ => return self.foreign(&letter, line),
        };
        self.came_over(line);
        let incoming = Incoming {
            principal: None,
            id: Arc::clone(&letter.id),
            body: letter.body,
            deadline: self.deadline(letter.ttl_ms),
            sink: Some(Arc::new(Words::new(line, &letter.id))),
            from,
        };
        let courier = LineCourier {
            line: line.clone(),
            caller: Arc::clone(&incoming.from.session_id),
            id: letter.id,
            clock: Arc::clone(&self.clock),
        };
        let serving = Arc::clone(&self.serving);
        self.tasks.spawn("broker request", async move {
            serving.stored(incoming, &courier).await;
            courier.line.asked().end_of(&courier.id);
        });
    }

    fn request(&self, request: Request, line: &Line) {
        let key = (line.generation(), Arc::clone(&request.id));
        let cancelled = Arc::new(Notify::new());
        {
            let mut live = lock(&self.live);
            if live.len() >= LIVE_MAX || live.contains_key(&key) {
                let answer = Answer::Failed(failures::too_many(LIVE_MAX));
                let line = line.clone();
                self.tasks.spawn("broker refusal", async move {
                    respond(&line, request.id, &answer).await;
                });
                return;
            }
            live.insert(key.clone(), Arc::clone(&cancelled));
        }
        self.came_over(line);
        let incoming = Incoming {
            // Whoever it is that the hub does not name is the hub.
            from: request.caller.unwrap_or_else(|| From {
                session_id: HUB.into(),
                ..From::default()
            }),
            principal: None,
            id: Arc::clone(&request.id),
            body: request.body,
            deadline: self.deadline(request.ttl_ms),
            sink: Some(Arc::new(Words::new(line, &request.id))),
        };
        let in_hand = InHand {
            live: Arc::downgrade(&self.live),
            key,
        };
        let (serving, line) = (Arc::clone(&self.serving), line.clone());
        self.tasks.spawn("broker live request", async move {
            let _in_hand = in_hand;
            let id = Arc::clone(&request.id);
            tokio::select! {
                biased;
                answer = serving.live(incoming) => respond(&line, request.id, &answer).await,
                () = cancelled.notified() => {}
            }
            line.asked().end_of(&id);
        });
    }

    fn cancel(&self, of: Option<&Arc<str>>, correlation_id: &Arc<str>, line: &Line) {
        // Live requests are named by the hub, whoever asked; stored ones by their callers.
        let Some(of) = of else {
            let key = (line.generation(), Arc::clone(correlation_id));
            match lock(&self.live).get(&key) {
                Some(cancelled) => cancelled.notify_one(),
                None => drop(self.serving.cancel(&HUB.into(), correlation_id)),
            }
            return;
        };
        self.serving.cancel(of, correlation_id);
    }

    fn session(&self, server: &Arc<str>, session: &Arc<str>, event: SessionEvent) {
        if let Some(visitors) = &self.visitors {
            visitors.became(server, session, event);
        }
    }

    /// Nobody hears the answers of live requests any more. Stored ones go on: they come again.
    fn ended(&self, line: &Line) {
        let generation = line.generation();
        for ((of, _), cancelled) in &*lock(&self.live) {
            if *of == generation {
                cancelled.notify_one();
            }
        }
    }
}

impl Attending {
    /// A message that is not for us is kept where somebody can look at it, and never ended.
    fn foreign(&self, letter: &Letter, line: &Line) {
        tracing::warn!(kind = %letter.kind, id = %letter.id, "a message that is no request");
        let frame = Frame::Nak {
            id: Arc::clone(&letter.id),
            delay_ms: 0,
            dead: Some("nobody here takes messages of this kind".into()),
        };
        let line = line.clone();
        self.tasks.spawn("broker dead letter", async move {
            // Where the connection is over, it is still in the mailbox.
            let _ = line.send(&frame).await;
        });
    }
}

async fn respond(line: &Line, id: Arc<str>, answer: &Answer) {
    let mut body = answer.to_bytes(Said::Brief);
    if body.len() + AROUND_BYTES_MAX > FRAME_BYTES_MAX {
        body = Answer::Failed(failures::too_large()).to_bytes(Said::Brief);
    }
    // Where the connection is over, whoever asked knows that.
    let _ = line.send(&Frame::Response { id, body }).await;
}

/// A live request that is in hand until this is dropped.
#[derive(Debug)]
struct InHand {
    live: Weak<Live>,
    key: (u64, Arc<str>),
}

impl Drop for InHand {
    fn drop(&mut self) {
        if let Some(live) = self.live.upgrade() {
            lock(&live).remove(&self.key);
        }
    }
}

/// The way of one stored request back over the connection it came by.
#[derive(Debug)]
struct LineCourier {
    line: Line,
    /// The mailbox of who asked.
    caller: Arc<str>,
    /// The request.
    id: Arc<str>,
    clock: Arc<dyn Clock>,
}

impl LineCourier {
    async fn tell(&self, answer: &Answer) -> Result<(), ReplyError> {
        let body = answer.to_bytes(Said::Whole);
        if body.len() + AROUND_BYTES_MAX > FRAME_BYTES_MAX {
            return Err(ReplyError::TooLarge);
        }
        let letter = Letter::new(&Draft {
            id: &reply_id(&self.caller, &self.id),
            kind: REPLY,
            body: &body,
            correlation_id: Some(&self.id),
            ttl_ms: None,
            created_at_ms: self.clock.unix_ms(),
        });
        let deadline = self.clock.now().plus(RECEIPT_WAIT);
        let deadline = self.clock.instant(deadline);
        match self.line.deliver(&self.caller, letter, deadline).await {
            Ok(()) => Ok(()),
            Err(DeliverError::Refused(refusal)) => match refusal.code.as_deref() {
                // Another answer is there already, and it is the one that counts.
                Some("conflict") => Ok(()),
                Some("too_large") => Err(ReplyError::TooLarge),
                Some("not_stored" | "throttled" | "shutting_down") => Err(ReplyError::Lost),
                _ => Err(ReplyError::Refused(refusal.reason)),
            },
            Err(error) => {
                tracing::debug!(id = %self.id, %error, "a reply found no way");
                Err(ReplyError::Lost)
            }
        }
    }

    /// Says something that comes to nothing where the connection is over: then the request comes
    /// again by itself.
    async fn say(&self, frame: Frame) {
        let _ = self.line.send(&frame).await;
    }
}

impl Courier for LineCourier {
    fn reply<'a>(&'a self, answer: &'a Answer) -> BoxFuture<'a, Result<(), ReplyError>> {
        Box::pin(self.tell(answer))
    }

    fn ack(&self) -> BoxFuture<'_, ()> {
        let id = Arc::clone(&self.id);
        Box::pin(self.say(Frame::Ack { id }))
    }

    fn put_back(&self, delay: Duration) -> BoxFuture<'_, ()> {
        Box::pin(self.say(Frame::Nak {
            id: Arc::clone(&self.id),
            delay_ms: bowline_core::time::millis(delay),
            dead: None,
        }))
    }

    fn bury(&self, reason: Arc<str>) -> BoxFuture<'_, ()> {
        Box::pin(self.say(Frame::Nak {
            id: Arc::clone(&self.id),
            delay_ms: 0,
            dead: Some(reason),
        }))
    }
}

/// What a tool says before it answers, on its way to whoever asked: while there is room, and
/// while the connection lasts.
#[derive(Debug)]
struct Words {
    line: Line,
    id: Arc<str>,
    told: AtomicUsize,
}

impl Words {
    fn new(line: &Line, id: &Arc<str>) -> Self {
        Self {
            line: line.clone(),
            id: Arc::clone(id),
            told: AtomicUsize::new(0),
        }
    }
}

impl CallerEnd for Words {
    fn session(&self) -> SessionKey {
        SessionKey(0)
    }

    fn push(&self, notification: Bytes) {
        if self.told.fetch_add(1, Ordering::Relaxed) < EVENTS_MAX {
            let id = Arc::clone(&self.id);
            drop(self.line.try_send(&Frame::Event { id, notification }));
        }
    }

    fn ask(&self, question: Question) -> Option<QuestionId> {
        let (number, request) = self.line.asked().open(&self.id, question)?;
        let id = Arc::clone(&self.id);
        let asked = Frame::Question {
            id,
            number,
            request,
        };
        match self.line.try_send(&asked) {
            Ok(()) => Some(QuestionId(number)),
            Err(_unsent) => {
                self.line.asked().answered(&self.id, number, None);
                None
            }
        }
    }

    fn lacks(&self, ability: Ability) {
        let id = Arc::clone(&self.id);
        drop(self.line.try_send(&Frame::Lacks { id, ability }));
    }

    fn withdraw(&self, question: QuestionId) {
        let (id, number) = (Arc::clone(&self.id), question.0);
        if self.line.asked().answered(&id, number, None) {
            drop(self.line.try_send(&Frame::Withdraw { id, number }));
        }
    }

    fn home(&self) -> Arc<dyn CallerEnd> {
        Arc::new(Deaf::new(SessionKey(0)))
    }
}

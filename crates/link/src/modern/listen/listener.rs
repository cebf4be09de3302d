//! The task that keeps a stream of changes open for as long as its link lives.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bowline_core::backoff::{Backoff, Restarts};
use bowline_core::call::Body;
use bowline_core::caller::Abilities;
use bowline_wire::jsonrpc::write_notification;
use bowline_wire::mcp::{code, method};
use bowline_wire::object::field;
use bowline_wire::splice::write_string;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::{Ear, Filter, Opened, RESOURCES_MAX, Streaming};
use crate::desk::{Change, now};
use crate::link::{Exit, LinkError, LinkEvent, Request};
use crate::modern::params;
use crate::stdio::ClientInfo;

/// How long a server may take to agree to a stream.
const AGREE_TIMEOUT: Duration = Duration::from_secs(10);

/// A stream is made anew after this time, however well it is.
const STREAM_MAX: Duration = Duration::from_secs(24 * 3_600);

/// How long a start waits for the first stream; lists that are asked for after it was agreed to
/// cannot change unheard.
const FIRST_WAIT: Duration = Duration::from_secs(1);

/// How long to wait before a stream that was lost is asked for again.
const AGAIN: Backoff = Backoff {
    base: Duration::from_millis(500),
    cap: Duration::from_secs(60),
};

/// A stream that lasted so long was a good one.
const STEADY: Duration = Duration::from_secs(60);

/// What is wanted of one server between calls, and what it agreed to.
#[derive(Debug, Default)]
pub(crate) struct Listener {
    wanted: watch::Sender<Wanted>,
    agreed: watch::Sender<Agreed>,
    /// Whether the start did not wait for the first stream.
    late: AtomicBool,
}

#[derive(Clone, Debug, Default)]
struct Wanted {
    serial: u64,
    uris: Vec<Arc<str>>,
}

#[derive(Debug, Default)]
struct Agreed {
    /// Of which wish this speaks; absent before the first.
    serial: Option<u64>,
    uris: Vec<Arc<str>>,
    over: bool,
}

impl Listener {
    /// Says of which resources news are wanted, and returns those of which the server will tell.
    pub(crate) async fn listen_to(
        &self,
        mut uris: Vec<Arc<str>>,
        deadline: Instant,
    ) -> Result<Vec<Arc<str>>, LinkError> {
        uris.truncate(RESOURCES_MAX);
        let mut serial = 0;
        self.wanted.send_modify(|wanted| {
            wanted.serial += 1;
            wanted.uris = uris;
            serial = wanted.serial;
        });
        let mut agreed = self.agreed.subscribe();
        let agreed = agreed.wait_for(|agreed| agreed.over || agreed.serial >= Some(serial));
        match timeout_at(deadline, agreed).await {
            Ok(Ok(agreed)) if !agreed.over => Ok(agreed.uris.clone()),
            Ok(_) => Err(LinkError::Closed(Exit::Gone)),
            Err(_) => Err(LinkError::Timeout {
                sent: bowline_core::pending::Sent::Perhaps,
            }),
        }
    }

    /// Waits until the server is listened to, or will not be; not long.
    pub(crate) async fn begun(&self, deadline: Instant) {
        let mut agreed = self.agreed.subscribe();
        let agreed = agreed.wait_for(|agreed| agreed.over || agreed.serial.is_some());
        let until = deadline.min(now() + FIRST_WAIT);
        if timeout_at(until, agreed).await.is_err() {
            self.late.store(true, Ordering::Relaxed);
        }
    }

    fn agree(&self, serial: u64, uris: Vec<Arc<str>>) {
        self.agreed.send_modify(|agreed| {
            agreed.serial = Some(serial);
            agreed.uris = uris;
        });
    }
}

/// Listens to a server until its link is gone. `declared` are the lists of which it tells.
pub(crate) async fn listen<E: Ear>(
    ear: Arc<E>,
    listener: Arc<Listener>,
    client: ClientInfo,
    declared: Filter,
) {
    let mut listening = Listening {
        ear: Arc::clone(&ear),
        listener: Arc::clone(&listener),
        client,
        declared,
        current: None,
        agreed: Vec::new(),
        missed: false,
        restarts: Restarts::new(AGAIN, STEADY),
    };
    tokio::select! {
        biased;
        _ = ear.gone() => {}
        () = listening.run() => {}
    }
    listener.agreed.send_modify(|agreed| agreed.over = true);
}

struct Listening<E> {
    ear: Arc<E>,
    listener: Arc<Listener>,
    client: ClientInfo,
    declared: Filter,
    current: Option<Current>,
    /// The resources that the server last agreed to tell of, also once that stream is lost.
    agreed: Vec<Arc<str>>,
    /// Whether something may have changed while nobody listened.
    missed: bool,
    restarts: Restarts,
}

/// A stream that is open.
struct Current {
    over: Streaming,
    uris: Vec<Arc<str>>,
    since: Instant,
}

/// What came of asking for a stream.
enum Asked {
    Agreed(Current),
    /// The server answered with an error, which may be for this time only or for this wish only.
    Refused,
    /// It knows of no such thing.
    Never,
    /// It did not agree in time, or the way to it was lost.
    Lost,
}

/// How far it came with what is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Renewed {
    /// As far as the server lets us.
    Settled,
    /// There is a stream, without resources that there was one with; to be tried again.
    Partly,
    /// There is no stream, and the server said so; to be tried again.
    Refused,
    /// The server did not say anything, or the stream before was lost.
    Lost,
}

impl<E: Ear> Listening<E> {
    async fn run(&mut self) {
        let listener = Arc::clone(&self.listener);
        let mut wishes = listener.wanted.subscribe();
        loop {
            let wanted = wishes.borrow_and_update().clone();
            let renewed = self.renew(&wanted).await;
            if renewed != Renewed::Lost {
                self.listener.agree(wanted.serial, self.uris());
            }
            if let Renewed::Settled | Renewed::Partly = renewed {
                if self.missed || self.listener.late.swap(false, Ordering::Relaxed) {
                    self.tell_all().await;
                }
                let again = match renewed {
                    Renewed::Partly => Some(self.restarts.wait(Duration::ZERO, jitter())),
                    Renewed::Settled | Renewed::Refused | Renewed::Lost => None,
                };
                tokio::select! {
                    biased;
                    changed = wishes.changed() => match changed {
                        Ok(()) => continue,
                        Err(_) => return,
                    },
                    () = ended(&mut self.current) => {}
                    () = pause(again) => continue,
                }
            }
            self.missed = true;
            let lasted = self.current.take().map(|current| now() - current.since);
            let wait = self.restarts.wait(lasted.unwrap_or_default(), jitter());
            let _ = timeout(wait, wishes.changed()).await;
        }
    }

    fn uris(&self) -> Vec<Arc<str>> {
        let current = self.current.as_ref();
        current.map_or_else(Vec::new, |current| current.uris.clone())
    }

    /// Brings about what is wanted, as far as the server lets us.
    async fn renew(&mut self, wanted: &Wanted) -> Renewed {
        let mut filter = self.declared.clone();
        filter.uris.clone_from(&wanted.uris);
        if filter.is_empty() {
            self.current = None;
            self.agreed.clear();
            return Renewed::Settled;
        }
        let still: HashSet<_> = wanted.uris.iter().collect();
        self.agreed.retain(|uri| still.contains(uri));
        let mut asked = self.open(&filter).await;
        // One resource that it does not know must cost neither the news of those that it does,
        // nor that of its lists.
        for fewer in [self.agreed.clone(), Vec::new()] {
            let refused = matches!(asked, Asked::Refused) && self.current.is_none();
            if !refused || fewer.len() >= filter.uris.len() {
                continue;
            }
            filter.uris = fewer;
            if !filter.is_empty() {
                asked = self.open(&filter).await;
            }
        }
        match asked {
            // The one before is taken back only now, so that nothing is missed in between.
            Asked::Agreed(current) => {
                let is_less = filter.uris.is_empty() && !self.agreed.is_empty();
                if !is_less {
                    self.agreed.clone_from(&current.uris);
                }
                self.current = Some(current);
                match is_less {
                    true => Renewed::Partly,
                    false => Renewed::Settled,
                }
            }
            // What it agreed to before goes on.
            Asked::Refused => match &self.current {
                Some(current) if current.uris.len() < self.agreed.len() => Renewed::Partly,
                Some(_) => Renewed::Settled,
                None => Renewed::Refused,
            },
            Asked::Never => Renewed::Settled,
            Asked::Lost => Renewed::Lost,
        }
    }

    /// Asks for a stream, while the one before goes on.
    async fn open(&mut self, filter: &Filter) -> Asked {
        let deadline = now() + STREAM_MAX;
        let params = filter.params().into();
        let mut request = Request::own(method::SUBSCRIPTIONS_LISTEN, Some(params), deadline);
        params::to_modern(&mut request, &self.client, Abilities::default());
        let Opened { agreed, mut over } = self.ear.open(request);
        let asking = async {
            tokio::select! {
                biased;
                agreed = agreed => match agreed {
                    Ok(agreed) => Ok(agreed),
                    // It is dropped with the request, whose end says more.
                    Err(_) => Err(over.as_mut().await),
                },
                ended = over.as_mut() => Err(ended),
            }
        };
        let outcome = tokio::select! {
            biased;
            outcome = timeout(AGREE_TIMEOUT, asking) => outcome,
            () = ended(&mut self.current) => return Asked::Lost,
        };
        match outcome {
            Ok(Ok(agreed)) => Asked::Agreed(Current {
                over,
                uris: filter.agreed(&agreed),
                since: now(),
            }),
            Ok(Err(Ok(answer))) if answer.body == Body::Error => {
                tracing::warn!(
                    server = self.ear.server(),
                    error = %String::from_utf8_lossy(answer.body_bytes()),
                    "a server will not tell of changes"
                );
                match code_of(answer.body_bytes()) {
                    Some(code::METHOD_NOT_FOUND) => Asked::Never,
                    Some(_) | None => Asked::Refused,
                }
            }
            Ok(Err(_)) | Err(_) => Asked::Lost,
        }
    }

    /// Tells that everything may have changed.
    async fn tell_all(&mut self) {
        self.missed = false;
        let events = self.ear.events();
        for (told, change) in [
            (self.declared.tools, Change::Tools),
            (self.declared.prompts, Change::Prompts),
            (self.declared.resources, Change::Resources),
        ] {
            if told {
                events.changed(change);
            }
        }
        for uri in self.uris() {
            let mut params = b"{\"uri\":".to_vec();
            write_string(&mut params, &uri);
            params.push(b'}');
            let mut notification = Vec::new();
            write_notification(&mut notification, method::RESOURCES_UPDATED, Some(&params));
            let notification = notification.into();
            events.pass(|| LinkEvent::ResourceUpdated { uri, notification });
        }
        while events.is_due() {
            events.deliver().await;
        }
    }
}

/// Waits for the end of a stream; for ever where there is none.
async fn ended(current: &mut Option<Current>) {
    match current {
        Some(open) => {
            let _ = open.over.as_mut().await;
        }
        None => std::future::pending().await,
    }
}

/// Waits so long; for ever where it is not said.
async fn pause(wait: Option<Duration>) {
    match wait {
        Some(wait) => sleep(wait).await,
        None => std::future::pending().await,
    }
}

fn code_of(error: &[u8]) -> Option<i64> {
    let digits = field(error, "code")?.of(error);
    std::str::from_utf8(digits).ok()?.parse().ok()
}

fn jitter() -> u64 {
    let mut random = [0; 8];
    // Without it, waits are only the same for all.
    let _ = getrandom::fill(&mut random);
    u64::from_ne_bytes(random)
}

#[cfg(test)]
mod tests;

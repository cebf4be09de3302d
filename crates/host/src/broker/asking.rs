//! Questions of servers on their way over a connection: those that left and wait for an answer,
//! those that came and were put to a caller, and the time that passes meanwhile.

use std::collections::HashMap;
use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bowline_core::caller::{CallerEnd, Question, QuestionId};
use bowline_core::sync::lock;
use bowline_core::time::Now;
use bowline_link::ASKED_MAX;
use bowline_wire::Message;
use bytes::Bytes;
use tokio::time::timeout_at;

use crate::ports::Clock;

/// Questions of one connection that may be open at once, each way.
const QUESTIONS_MAX: usize = 1_024;

/// A question that is open when the time is up gives its request at least this much more.
const GRACE: Duration = Duration::from_secs(1);

/// Questions that went to the other side of one connection.
#[derive(Debug, Default)]
pub(super) struct Asked(Mutex<Open>);

#[derive(Debug, Default)]
struct Open {
    /// The number of the last one.
    last: u64,
    /// By their numbers, each with the request during which it was asked.
    questions: HashMap<u64, (Arc<str>, Question)>,
    /// Set once, when the connection is over: nobody would answer.
    over: bool,
}

impl Asked {
    /// Takes a question in, and returns its number and what is asked; one for which there is no
    /// room is refused.
    pub(super) fn open(&self, id: &Arc<str>, question: Question) -> Option<(u64, Bytes)> {
        let mut open = lock(&self.0);
        if open.over || open.questions.len() >= QUESTIONS_MAX {
            // Refused outside the lock: whoever asked may ask again at once.
            drop(open);
            drop(question);
            return None;
        }
        open.last += 1;
        let (number, request) = (open.last, question.request.clone());
        open.questions.insert(number, (Arc::clone(id), question));
        Some((number, request))
    }

    /// Gives an answer to whoever asked; where there is none, the question is refused. `false`
    /// where this was not asked during that request, or is answered.
    pub(super) fn answered(&self, id: &str, number: u64, answer: Option<Bytes>) -> bool {
        let taken = {
            let mut open = lock(&self.0);
            match open.questions.get(&number) {
                Some((of, _)) if **of == *id => open.questions.remove(&number),
                Some(_) | None => None,
            }
        };
        let Some((_, question)) = taken else {
            return false;
        };
        match answer {
            Some(answer) => question.answer(answer),
            None => drop(question),
        }
        true
    }

    /// Refuses what was asked during a request that is over.
    pub(super) fn end_of(&self, id: &str) {
        let ended: Vec<_> = {
            let mut open = lock(&self.0);
            let of = |_: &u64, question: &mut (Arc<str>, Question)| *question.0 == *id;
            open.questions.extract_if(of).collect()
        };
        drop(ended);
    }

    /// Refuses everything, now and from now on: the connection is over.
    pub(super) fn end(&self) {
        let ended = {
            let mut open = lock(&self.0);
            open.over = true;
            std::mem::take(&mut open.questions)
        };
        drop(ended);
    }
}

/// Questions that came over one connection and were put to callers here.
#[derive(Debug, Default)]
pub(super) struct Put(Mutex<HashMap<(Arc<str>, u64), Place>>);

/// Where a question is.
#[derive(Debug)]
struct Place {
    caller: Arc<dyn CallerEnd>,
    /// How the caller's end calls it; absent while it is being put.
    number: Option<QuestionId>,
}

impl Put {
    /// Puts a question of a server to the caller who waits for the answer of request `id`.
    /// `reply` is called once, perhaps before this returns; with nothing where the caller cannot
    /// be asked, or does not answer.
    pub(super) fn put(
        self: &Arc<Self>,
        caller: Option<&Arc<dyn CallerEnd>>,
        key: &(Arc<str>, u64),
        request: Bytes,
        reply: impl FnOnce(Option<Bytes>) + Send + 'static,
    ) {
        let message = Message::parse_peer(request).ok();
        let asked = message.and_then(|message| {
            let ability = bowline_link::ability(&message)?;
            let caller = caller.filter(|caller| caller.abilities().has(ability))?;
            Some((caller, ability, message.id_span()?, message.into_bytes()))
        });
        let Some((caller, ability, id_at, request)) = asked else {
            return reply(None);
        };
        {
            let mut places = lock(&self.0);
            if places.len() >= QUESTIONS_MAX || places.contains_key(key) {
                drop(places);
                return reply(None);
            }
            let place = Place {
                caller: Arc::clone(caller),
                number: None,
            };
            places.insert(key.clone(), place);
        }
        let (put, closed) = (Arc::downgrade(self), key.clone());
        let question = Question::new(request, id_at.start..id_at.end, ability, move |answer| {
            if let Some(put) = put.upgrade() {
                lock(&put.0).remove(&closed);
            }
            reply(answer);
        });
        if let Some(number) = caller.ask(question)
            && let Some(place) = lock(&self.0).get_mut(key)
        {
            place.number = Some(number);
        }
    }

    /// Takes a question back because its server did.
    pub(super) fn withdraw(&self, key: &(Arc<str>, u64)) {
        let place = lock(&self.0).remove(key);
        place.into_iter().for_each(Place::withdraw);
    }

    /// Takes back what was asked during a request that is over.
    pub(super) fn end_of(&self, id: &str) {
        self.end_where(|of| of == id);
    }

    /// Takes everything back: the connection is over.
    pub(super) fn end(&self) {
        self.end_where(|_| true);
    }

    fn end_where(&self, is_it: impl Fn(&str) -> bool) {
        let ended: Vec<_> = lock(&self.0).extract_if(|key, _| is_it(&key.0)).collect();
        for (_, place) in ended {
            place.withdraw();
        }
    }
}

impl Place {
    fn withdraw(self) {
        if let Some(number) = self.number {
            self.caller.withdraw(number);
        }
    }
}

/// The time that one request has spent waiting for its own caller.
#[derive(Debug, Default)]
pub(super) struct Patience(Mutex<Spent>);

#[derive(Debug, Default)]
struct Spent {
    /// Questions that are open.
    open: u32,
    /// Since when at least one is.
    since: Option<Now>,
    /// How long earlier ones took.
    before: Duration,
}

impl Patience {
    pub(super) fn begin(&self, now: Now) {
        let mut spent = lock(&self.0);
        spent.open += 1;
        spent.since.get_or_insert(now);
    }

    pub(super) fn end(&self, now: Now) {
        let mut spent = lock(&self.0);
        spent.open = spent.open.saturating_sub(1);
        if spent.open == 0
            && let Some(since) = spent.since.take()
        {
            spent.before += since.until(now);
        }
    }

    /// Returns until when a wait goes on that lasted until `until`; nothing when its time is up.
    fn more(&self, deadline: Now, until: Now, now: Now) -> Option<Now> {
        let spent = lock(&self.0);
        let running = spent.since.map(|since| since.until(now));
        let all = (spent.before + running.unwrap_or_default()).min(ASKED_MAX);
        let more = deadline.plus(all);
        if more <= until {
            return None;
        }
        // While a question is open the end moves on with the clock.
        Some(match spent.open {
            0 => more,
            _ => more.max(now.plus(GRACE)),
        })
    }

    /// Waits for `work` until `deadline`; the time in which the caller is asked does not count.
    /// Nothing when the deadline comes first.
    pub(super) async fn wait<T>(
        &self,
        clock: &dyn Clock,
        deadline: Now,
        work: impl Future<Output = T>,
    ) -> Option<T> {
        let mut work = pin!(work);
        let mut until = deadline;
        loop {
            if let Ok(done) = timeout_at(clock.instant(until), &mut work).await {
                return Some(done);
            }
            until = self.more(deadline, until, clock.now())?;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_in_which_the_caller_is_asked_does_not_count_and_no_more_than_an_hour_of_it() {
        let patience = Patience::default();
        let (deadline, s) = (Now(1_000), |seconds: u64| Now(seconds * 1_000));
        assert_eq!(patience.more(deadline, deadline, s(1)), None);
        patience.begin(Now(500));
        patience.begin(Now(700));
        let first = patience.more(deadline, deadline, s(1));
        assert_eq!(first, Some(s(2)), "at least a second more while it is open");
        patience.end(s(2));
        patience.end(s(3));
        let after = patience.more(deadline, s(3), s(3));
        assert_eq!(
            after,
            Some(Now(3_500)),
            "two and a half seconds were the caller's"
        );
        assert_eq!(patience.more(deadline, Now(3_500), Now(3_500)), None);
        patience.begin(Now(3_500));
        let late = Now(10_000_000);
        let hour = deadline.plus(ASKED_MAX);
        assert_eq!(patience.more(deadline, hour, late), None);
    }
}

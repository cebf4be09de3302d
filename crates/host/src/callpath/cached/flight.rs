//! A call that goes to its server: its answer may be kept, and others may wait for it.

use bowline_core::cache::{About, Hint, KeyBase, Landing, Lead, NAME_BYTES_MAX, Sharing};
use bowline_core::call::{Body, CallDeadline, Effect, Reply, Subject};
use bowline_core::era::Era;
use bowline_core::error::{CallError, Execution};
use bowline_core::sync::lock;
use bowline_core::time::Now;
use bowline_wire::era::result::kind;
use bowline_wire::span::Span;

use super::result::{self, Said};
use super::stale::write_rule;
use super::wanted::base;
use super::{Answers, Ask};
use crate::spec::{Isolation, ToolRule};

/// What those see who wait for a flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// It is under way.
    Flying,
    /// It is over: there is an answer now, or somebody else must ask.
    Again,
    /// It came to nothing that can be kept: each must ask for itself.
    Alone,
}

/// A call that goes to its server. Dropped before it is back, it lets the next one ask.
#[derive(Debug)]
pub(crate) struct Flight<'a> {
    answers: &'a Answers,
    ask: Ask<'a>,
    keeping: Keeping,
    /// What those are told who wait for it.
    over: Phase,
    /// What it changes at its server, where a person said so.
    writes: Option<&'a ToolRule>,
}

/// What may become of the answer.
#[derive(Debug)]
pub(super) enum Keeping {
    /// It is not kept.
    Never,
    /// It is kept if it says so, as none of its kind did before.
    Perhaps,
    /// It was looked for, and counted as missing.
    Looked(Box<Looked>),
}

/// An answer that was looked for in vain.
#[derive(Debug)]
pub(super) struct Looked {
    pub(super) base: KeyBase,
    /// Others may wait for it.
    pub(super) lead: Option<Lead>,
}

impl<'a> Ask<'a> {
    pub(super) const fn about(&self) -> About<'a> {
        About {
            server: &self.route.server,
            kind: self.call.subject.kind(),
            name: &self.route.name,
        }
    }

    /// Whether an answer may be another's, whatever it will say. What a tool writes, it must be
    /// asked for each time.
    pub(super) fn may_be_kept(&self) -> bool {
        let is_answer = matches!(
            self.call.subject,
            Subject::Tool(_) | Subject::Prompt(_) | Subject::Resource(_)
        );
        is_answer
            && self.route.effect != Effect::Write
            && !self.call.makes_task
            && !self.call.is_further_round()
            && self.route.name.len() <= NAME_BYTES_MAX
            && self.server.spec().cache
            && !self.server.is_apart(self.call)
    }

    pub(super) fn too_late(&self, deadline: CallDeadline) -> CallError {
        CallError::Timeout {
            server: self.route.server.clone(),
            after_ms: deadline.at.millis_since(self.begun.at),
            execution: Execution::NotStarted,
            limit: deadline.limit,
        }
    }

    /// For whom an answer is kept: where each principal has a link of its own, for nobody else,
    /// whatever the server says.
    fn sharing(&self, said: Sharing) -> Sharing {
        match self.server.spec().isolation {
            Isolation::Principal | Isolation::Session => Sharing::Private,
            Isolation::Auto | Isolation::Shared => said,
        }
    }
}

impl<'a> Flight<'a> {
    pub(super) fn new(answers: &'a Answers, ask: Ask<'a>, keeping: Keeping) -> Self {
        let writes = write_rule(ask.route, ask.server.spec());
        if let Some(rule) = writes {
            answers.written(&ask.route.server, rule);
        }
        Self {
            answers,
            ask,
            keeping,
            over: Phase::Again,
            writes,
        }
    }

    /// Notes that the server is done with it: whatever came of it, nobody need ask in its place.
    pub(crate) const fn back(&mut self) {
        self.over = Phase::Alone;
    }

    /// Keeps an answer as long as its server says that it stays good.
    pub(crate) fn land(mut self, reply: &Reply, now: Now) {
        if matches!(self.keeping, Keeping::Never) || reply.body != Body::Result {
            return;
        }
        let body = reply.answer.get(reply.body_at.clone()).unwrap_or_default();
        // A question or a task says nothing of answers.
        if reply.era == Era::Modern && !kind(body).is_end() {
            return;
        }
        match result::said(body, &self.answers.hints) {
            Said::Failure => {}
            Said::Nothing => self.unhinted(),
            Said::Good { ttl_ms, scope } => {
                let ttl_max = lock(&self.answers.kept).cache.limits().ttl_max;
                let Some(hint) = result::hint(body, ttl_ms, scope, ttl_max) else {
                    return self.unhinted();
                };
                if self.keep(body, (hint, ttl_ms), reply.era, now) == Some(true) {
                    self.over = Phase::Again;
                }
            }
        }
    }

    fn unhinted(&self) {
        if matches!(self.keeping, Keeping::Looked(_)) {
            let about = self.ask.about();
            self.answers.change(|kept| kept.cache.unhinted(about));
        }
    }

    /// Keeps an answer, where there is room and nothing was purged since its call began.
    fn keep(
        &self,
        body: &[u8],
        (hint, ttl_at): (Hint, Span),
        written_in: Era,
        now: Now,
    ) -> Option<bool> {
        let ask = self.ask;
        let sharing = ask.sharing(hint.sharing);
        let key = |base: &KeyBase| match sharing {
            Sharing::Public => base.public(),
            Sharing::Private => base.private(&ask.call.principal.name),
        };
        let (key, is_counted) = match &self.keeping {
            Keeping::Looked(looked) => (key(&looked.base), true),
            Keeping::Never | Keeping::Perhaps => (key(&base(ask)?), false),
        };
        let landing = Landing {
            key,
            sharing,
            era: ask.begun.era,
            expires: ask.begun.at.plus(hint.ttl),
            answer: result::answer(body, ttl_at, written_in),
        };
        Some(self.answers.change(|kept| {
            let is_kept = kept.cache.keep(ask.about(), landing, now);
            if is_kept && !is_counted {
                kept.cache.count_miss(&ask.route.server);
            }
            is_kept
        }))
    }
}

impl Drop for Flight<'_> {
    fn drop(&mut self) {
        if let Some(rule) = self.writes {
            self.answers.written(&self.ask.route.server, rule);
        }
        if let Keeping::Looked(looked) = &self.keeping
            && let Some(lead) = looked.lead
        {
            self.answers.over(lead, self.over);
        }
    }
}

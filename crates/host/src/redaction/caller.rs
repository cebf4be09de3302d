//! The client of a call, which hears nothing of secrets.

use std::sync::Arc;

use bowline_core::caller::{Abilities, Ability, CallerEnd, Question, QuestionId, SessionKey};
use bowline_core::level::Level;
use bowline_core::tasks::Made;
use bytes::Bytes;

use super::ResultSecrets;

/// Passes everything on to the client, notifications and questions without secrets.
#[derive(Debug)]
pub(super) struct CleanCaller {
    caller: Arc<dyn CallerEnd>,
    secrets: Arc<ResultSecrets>,
}

impl CleanCaller {
    pub(super) fn wrap(
        caller: Arc<dyn CallerEnd>,
        secrets: &Arc<ResultSecrets>,
    ) -> Arc<dyn CallerEnd> {
        let secrets = Arc::clone(secrets);
        Arc::new(Self { caller, secrets })
    }
}

impl CallerEnd for CleanCaller {
    fn session(&self) -> SessionKey {
        self.caller.session()
    }

    fn lasting_id(&self) -> Option<u64> {
        self.caller.lasting_id()
    }

    fn abilities(&self) -> Abilities {
        self.caller.abilities()
    }

    fn level(&self) -> Option<Level> {
        self.caller.level()
    }

    fn push(&self, notification: Bytes) {
        self.caller.push(self.secrets.clean(notification));
    }

    fn ask(&self, mut question: Question) -> Option<QuestionId> {
        // The id is the server's own, and the answer goes back under it: it stays.
        let behind = question.id_at.end..question.request.len();
        let request = std::mem::take(&mut question.request);
        let (request, _) = self.secrets.clean_part(request, behind);
        let (request, before) = self.secrets.clean_part(request, 0..question.id_at.start);
        let length = question.id_at.len();
        question.id_at = before.end..before.end + length;
        question.request = request;
        self.caller.ask(question)
    }

    fn lacks(&self, ability: Ability) {
        self.caller.lacks(ability);
    }

    fn answers_later(&self) -> bool {
        self.caller.answers_later()
    }

    fn withdraw(&self, question: QuestionId) {
        self.caller.withdraw(question);
    }

    fn task_made(&self, task: &Made) {
        self.caller.task_made(task);
    }

    fn home(&self) -> Arc<dyn CallerEnd> {
        Self::wrap(self.caller.home(), &self.secrets)
    }
}

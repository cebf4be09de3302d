//! A client that can be asked for everything, and answers by itself.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bowline_core::caller::{Abilities, Ability, CallerEnd, Question, QuestionId, SessionKey};
use bowline_wire::jsonrpc::write_result;
use bytes::Bytes;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::sample;

/// The one session there is.
const SESSION: SessionKey = SessionKey(1);

/// Hands questions to whoever waits for the answer that they belong to.
#[derive(Debug)]
pub(super) struct Answering {
    questions: mpsc::Sender<Question>,
    next: AtomicU64,
}

impl Answering {
    pub(super) fn new(questions: mpsc::Sender<Question>) -> Self {
        Self {
            questions,
            next: AtomicU64::new(1),
        }
    }
}

impl CallerEnd for Answering {
    fn session(&self) -> SessionKey {
        SESSION
    }

    fn abilities(&self) -> Abilities {
        let all = Ability::ALL.into_iter();
        all.fold(Abilities::default(), Abilities::with)
    }

    fn push(&self, _: Bytes) {}

    fn ask(&self, question: Question) -> Option<QuestionId> {
        self.questions.try_send(question).ok()?;
        Some(QuestionId(self.next.fetch_add(1, Ordering::Relaxed)))
    }

    fn home(&self) -> Arc<dyn CallerEnd> {
        Arc::new(Self {
            questions: self.questions.clone(),
            next: AtomicU64::new(1),
        })
    }
}

/// Answers a question as somebody would who agrees to everything and changes nothing.
pub(super) fn answer(question: Question) {
    let request: Value = serde_json::from_slice(&question.request).unwrap_or_default();
    let request = &request;
    let params = &request["params"];
    let result = match request["method"].as_str().unwrap_or_default() {
        "elicitation/create" if params["mode"] == "url" => json!({"action": "accept"}),
        "elicitation/create" => json!({
            "action": "accept", "content": sample::form(&params["requestedSchema"]),
        }),
        "sampling/createMessage" => json!({
            "role": "assistant", "model": "none", "stopReason": "endTurn",
            "content": {"type": "text", "text": "text"},
        }),
        _ => json!({"roots": []}),
    };
    let mut text = Vec::new();
    write_result(&mut text, question.id(), result.to_string().as_bytes());
    question.answer(text.into());
}

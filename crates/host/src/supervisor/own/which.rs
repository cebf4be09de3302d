//! Which of its server's links carries a call.

use std::sync::Arc;

use bowline_core::call::{Call, Subject};
use bowline_core::caller::{CallerEnd, SessionKey};
use bowline_core::era::Era;
use bowline_core::error::CallError;
use bowline_core::tasks::LinkKey;
use bowline_core::time::Now;
use bowline_wire::mcp::method;

use super::{Key, Passage};
use crate::spec::Isolation;
use crate::supervisor::{Ready, Supervisor};

impl Supervisor {
    /// Returns the link that carries `call` where that is surely the shared one, and serves.
    pub(crate) fn ready_for(&self, call: &Call) -> Option<Passage> {
        let may_be_elsewhere = matches!(call.subject, Subject::Task { .. });
        if may_be_elsewhere || self.key_of(call).is_some() {
            return None;
        }
        self.open_link().map(Passage::from)
    }

    /// Returns the link that carries `call`: the shared one, or one of its session or principal.
    pub async fn link_for(&self, call: &Call, deadline: Now) -> Result<Passage, CallError> {
        // Also where the call has its own: a server that does not start is told of once.
        let common = self.link(deadline).await?;
        let Some((key, caller)) = self.key_of(call) else {
            return Ok(common.into());
        };
        let own = &self.shared.own;
        own.link(&self.shared, key, caller, deadline).await
    }

    /// Returns the link where a task lives. One that is gone took the task along; what the
    /// caller's own link says then is as good as any answer, while the shared link may have a
    /// task of somebody else under that id. An id that names the link means no other.
    pub async fn link_of_task(
        &self,
        call: &Call,
        link: LinkKey,
        deadline: Now,
    ) -> Result<Passage, CallError> {
        if link == LinkKey::SHARED {
            return self.link(deadline).await.map(Passage::from);
        }
        match self.shared.own.by_key(link) {
            Some(ready) => Ok(ready.into()),
            None if call.sealed_task().is_none() && self.key_of(call).is_some() => {
                self.link_for(call, deadline).await
            }
            None => Err(CallError::UnknownTask {
                task: Arc::clone(call.subject.name()),
            }),
        }
    }

    /// Returns the link that lists the tasks of that link, unless it is gone.
    pub async fn link_of_tasks(
        &self,
        link: LinkKey,
        deadline: Now,
    ) -> Result<Option<Arc<Ready>>, CallError> {
        if link == LinkKey::SHARED {
            return self.link(deadline).await.map(Some);
        }
        Ok(self.shared.own.by_key(link))
    }

    /// Whether the server may answer this session as it answers no other.
    pub(crate) fn is_apart(&self, call: &Call) -> bool {
        match self.shared.spec.isolation {
            Isolation::Session => true,
            Isolation::Auto => self.key_of(call).is_some(),
            Isolation::Shared | Isolation::Principal => false,
        }
    }

    /// Says whose link a call needs; `None` for the shared one.
    fn key_of<'a>(&self, call: &'a Call) -> Option<(Key, &'a Arc<dyn CallerEnd>)> {
        let caller = call.caller.as_ref()?;
        let session = || {
            let session = caller.session();
            (session != SessionKey(0)).then_some(Key::Session(session))
        };
        let key = match self.shared.spec.isolation {
            Isolation::Shared => None,
            Isolation::Principal => Some(Key::Principal(Arc::clone(&call.principal.name))),
            Isolation::Session => session(),
            Isolation::Auto => {
                let apart = self.shared.is_interactive() && caller.abilities().any();
                let key = apart.then(session).flatten();
                key.map(|key| match key {
                    Key::Session(client) if caller.answers_later() => Key::OneCall(client, 0),
                    key => key,
                })
            }
        };
        key.map(|key| (key, caller))
    }

    /// Waits until the server was told, on the links beside the shared one, what level a session
    /// wants; not long.
    pub(crate) async fn own_levelled(&self, session: SessionKey, deadline: Now) {
        let own = &self.shared.own;
        own.poke();
        for (key, slot, ready) in own.of_session(session) {
            own.levelled(&self.shared, &key, &slot, &ready, deadline)
                .await;
        }
    }

    /// Tells the server that the roots of a session changed. Only on the session's own link: on
    /// one that others share there is nobody whose roots they could be. A peer knows sessions. A
    /// server of the modern era asks for roots whenever it needs them, and knows no such news.
    pub(crate) fn roots_changed(&self, session: SessionKey) {
        if let Some(ready) = self.open_link() {
            ready.link.roots_changed(session);
        }
        let own = self.shared.own.of_session(session).into_iter();
        for (_, _, ready) in own.filter(|(_, _, own)| own.link.era() == Era::Legacy) {
            // A link that is gone, or so far behind, needs no such news.
            let _missed = ready.link.notify(method::ROOTS_LIST_CHANGED, None);
        }
    }

    /// Closes what was kept for a session that is over.
    pub fn session_ended(&self, session: SessionKey) {
        if let Some(ready) = self.open_link() {
            ready.link.session_ended(session);
        }
        self.shared.own.forget(session);
    }
}

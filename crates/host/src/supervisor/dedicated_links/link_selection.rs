//! Selects the link for a call: shared, or dedicated to its session or principal.

use std::ops::Deref;
use std::sync::Arc;

use bowline_core::call::{CallRequest, CallSubject};
use bowline_core::client_handle::{ClientHandle, SessionKey};
use bowline_core::era::Era;
use bowline_core::error::CallError;
use bowline_core::task_table::LinkKey;
use bowline_core::time::MonotonicTime;
use bowline_wire::mcp::method;

use super::link_slot::ExclusiveGuard;
use super::{DedicatedKey, GENERATION_BASE};
use crate::spec::Isolation;
use crate::supervisor::{ReadyLink, Supervisor};

/// A link in use by a call, with exclusive use where required.
#[derive(Debug)]
pub struct LinkLease {
    pub(super) ready: Arc<ReadyLink>,
    pub(super) _guard: Option<ExclusiveGuard>,
}

impl From<Arc<ReadyLink>> for LinkLease {
    fn from(ready: Arc<ReadyLink>) -> Self {
        Self {
            ready,
            _guard: None,
        }
    }
}

impl Deref for LinkLease {
    type Target = ReadyLink;

    fn deref(&self) -> &ReadyLink {
        &self.ready
    }
}

impl ReadyLink {
    /// Returns the key of this link, for state that outlives a call.
    pub(crate) fn link_key(&self) -> LinkKey {
        match self.generation {
            GENERATION_BASE.. => LinkKey(self.generation),
            _ => LinkKey::SHARED,
        }
    }
}

impl Supervisor {
    /// Returns the open shared link if the call surely uses it.
    pub(crate) fn try_link_for(&self, call: &CallRequest) -> Option<LinkLease> {
        let may_be_elsewhere = matches!(call.subject, CallSubject::Task { .. });
        if may_be_elsewhere || self.dedicated_key(call).is_some() {
            return None;
        }
        self.open_link().map(LinkLease::from)
    }

    /// Returns the link for `call`: shared, or dedicated to its session or principal.
    pub async fn link_for(
        &self,
        call: &CallRequest,
        deadline: MonotonicTime,
    ) -> Result<LinkLease, CallError> {
        // Also for dedicated links: a server that fails to start reports it once.
        let common = self.shared_link(deadline).await?;
        let Some((key, caller)) = self.dedicated_key(call) else {
            return Ok(common.into());
        };
        let own = &self.shared.dedicated;
        own.acquire_link(&self.shared, key, caller, deadline).await
    }

    /// Returns the link of a task. A closed link ended its tasks. Then the caller's dedicated link
    /// gives a valid answer, while the shared link may have a different task with the same id. A
    /// sealed id names its link and uses no other link.
    pub async fn task_link(
        &self,
        call: &CallRequest,
        link: LinkKey,
        deadline: MonotonicTime,
    ) -> Result<LinkLease, CallError> {
        if link == LinkKey::SHARED {
            return self.shared_link(deadline).await.map(LinkLease::from);
        }
        match self.shared.dedicated.find_by_key(link) {
            Some(ready) => Ok(ready.into()),
            None if call.sealed_task_id().is_none() && self.dedicated_key(call).is_some() => {
                self.link_for(call, deadline).await
            }
            None => Err(CallError::UnknownTask {
                task: Arc::clone(call.subject.name()),
            }),
        }
    }

    /// Returns the link to list tasks on, unless closed.
    pub async fn task_list_link(
        &self,
        link: LinkKey,
        deadline: MonotonicTime,
    ) -> Result<Option<Arc<ReadyLink>>, CallError> {
        if link == LinkKey::SHARED {
            return self.shared_link(deadline).await.map(Some);
        }
        Ok(self.shared.dedicated.find_by_key(link))
    }

    /// True if the server may respond to this session differently than to other sessions.
    pub(crate) fn is_isolated(&self, call: &CallRequest) -> bool {
        match self.shared.spec.isolation {
            Isolation::Session => true,
            Isolation::Auto => self.dedicated_key(call).is_some(),
            Isolation::Shared | Isolation::Principal => false,
        }
    }

    /// Returns the owner of the dedicated link for a call; `None` for the shared link.
    fn dedicated_key<'a>(
        &self,
        call: &'a CallRequest,
    ) -> Option<(DedicatedKey, &'a Arc<dyn ClientHandle>)> {
        let caller = call.message.client.as_ref()?;
        let session = || {
            let session = caller.session();
            (session != SessionKey(0)).then_some(DedicatedKey::Session(session))
        };
        let key = match self.shared.spec.isolation {
            Isolation::Shared => None,
            Isolation::Principal => Some(DedicatedKey::Principal(Arc::clone(&call.principal.name))),
            Isolation::Session => session(),
            Isolation::Auto => {
                let apart = self.shared.is_interactive() && caller.capabilities().has_any();
                let key = apart.then(session).flatten();
                key.map(|key| match key {
                    DedicatedKey::Session(client) if caller.answers_by_retry() => {
                        DedicatedKey::SingleCall(client, 0)
                    }
                    key => key,
                })
            }
        };
        key.map(|key| (key, caller))
    }

    /// Waits, bounded by `deadline`, until the session's log level is applied on its dedicated
    /// links.
    pub(crate) async fn wait_session_level(&self, session: SessionKey, deadline: MonotonicTime) {
        let own = &self.shared.dedicated;
        own.recheck_levels();
        for (key, slot, ready) in own.session_links(session) {
            own.wait_level_applied(&self.shared, &key, &slot, &ready, deadline)
                .await;
        }
    }

    /// Notifies the server of changed roots, on the session's dedicated links only: on a shared
    /// link the roots belong to no single session. A peer knows sessions. Modern servers request
    /// roots when needed and have no such notification.
    pub(crate) fn notify_roots_changed(&self, session: SessionKey) {
        if let Some(ready) = self.open_link() {
            ready.link.on_roots_changed(session);
        }
        let own = self.shared.dedicated.session_links(session).into_iter();
        for (_, _, ready) in own.filter(|(_, _, own)| own.link.era() == Era::Legacy) {
            // A closed or congested link does not need the notification.
            let _missed = ready.link.notify(method::ROOTS_LIST_CHANGED, None);
        }
    }

    /// Closes everything kept for an ended session.
    pub fn close_session(&self, session: SessionKey) {
        if let Some(ready) = self.open_link() {
            ready.link.on_session_ended(session);
        }
        self.shared.dedicated.close_session(session);
    }
}

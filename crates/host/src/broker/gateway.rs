//! A host as the gateway around a hub, and around the sessions of a hub's clients.

use std::sync::Arc;

use bowline_broker::{HubGateway, RemoteSessions, SessionGateway};
use bowline_core::accounts::PrincipalAccounts;
use bowline_core::call::{EndpointScope, Principal};
use bowline_core::client_handle::SessionKey;
use bowline_runtime::{Clock, TaskTracker};
use bytes::Bytes;
use tokio::sync::watch;

use crate::catalog::ListKind;
use crate::events::EventKind;
use crate::host::Host;
use crate::ports::NotificationSink;

impl HubGateway for Host {
    fn clock(&self) -> &Arc<dyn Clock> {
        Self::clock(self)
    }

    fn tasks(&self) -> &TaskTracker {
        Self::tasks(self)
    }

    fn accounts(&self) -> &PrincipalAccounts {
        Self::accounts(self)
    }

    fn tools_digest(&self, principal: &Principal) -> [u8; 32] {
        let tools = self.list_for(principal, &EndpointScope::All, ListKind::Tools);
        tools.fingerprint
    }

    fn catalog_changes(&self) -> watch::Receiver<u64> {
        Self::catalog_changes(self)
    }

    fn policy_changes(&self) -> watch::Receiver<u64> {
        Self::policy_changes(self)
    }

    fn on_peer_change(&self, mailbox: &Arc<str>, state: &'static str) {
        self.events().publish(EventKind::Peer {
            mailbox: Arc::clone(mailbox),
            state: state.into(),
            reason: None,
        });
    }
}

impl SessionGateway for Host {
    fn clock(&self) -> &Arc<dyn Clock> {
        Self::clock(self)
    }

    fn register_sessions(&self, sessions: &Arc<RemoteSessions>) {
        let sink: Arc<dyn NotificationSink> = Arc::clone(sessions) as _;
        self.set_remote_sink(&sink);
    }

    fn end_session(&self, session: SessionKey) {
        Self::end_session(self, session);
    }

    fn notify_roots_changed(&self, session: SessionKey) {
        Self::notify_roots_changed(self, session);
    }
}

impl NotificationSink for RemoteSessions {
    fn deliver(&self, session: SessionKey, notification: Bytes) -> bool {
        Self::deliver(self, session, notification)
    }
}

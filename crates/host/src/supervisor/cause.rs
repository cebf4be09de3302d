//! Why a server does not serve: by type for machines, in one line for people.

use std::sync::Arc;
use std::time::Duration;

use bowline_core::error::{CallError, Class, Origin, is_away, whole};
use bowline_core::redact::Redactor;
use bowline_link::stdio::ConnectError;
use bowline_link::{Exit, LinkError};

use super::list::ListError;
use crate::callpath::{ResponseWait, explain};

/// What a server failed with.
#[derive(Clone, Debug)]
pub(super) struct Cause {
    pub(super) class: Class,
    pub(super) reason: Arc<str>,
    /// What it said about the credentials that it wants, if that was it.
    pub(super) challenge: Option<Arc<str>>,
    /// What becomes of what it offered before.
    pub(super) menu: Menu,
    /// What failed.
    pub(super) blame: Blame,
}

/// What failed: a server, its program, or the way to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blame {
    /// The server: it is started again only so often.
    Server,
    /// Its program does not exist, which costs it nothing.
    Program,
    /// The way to it, which costs it nothing.
    Way,
}

/// What becomes of what a server offered before it failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Menu {
    /// It is away, and may be back with the same: what it offered is still shown.
    LastKnown,
    /// It is there and refuses us: what it offered may have been taken away.
    Withdrawn,
}

impl Cause {
    pub(super) fn new(class: Class, reason: impl Into<Arc<str>>) -> Self {
        Self {
            class,
            reason: reason.into(),
            challenge: None,
            menu: Menu::LastKnown,
            blame: Blame::Server,
        }
    }

    /// Takes secrets out of all that people may read.
    pub(super) fn cleaned(self, secrets: &Redactor) -> Self {
        Self {
            class: self.class,
            reason: secrets.clean_shared(&self.reason),
            challenge: self.challenge.map(|said| secrets.clean_shared(&said)),
            menu: self.menu,
            blame: self.blame,
        }
    }

    /// Whether the server could not be reached, or something before it said that it is away.
    /// What it answers itself is no outage.
    pub(super) const fn is_outage(&self) -> bool {
        let is_away = matches!(
            self.class,
            Class::ConnectFailed
                | Class::SendFailed
                | Class::ConnectionLost
                | Class::Timeout
                | Class::Throttled
        );
        is_away && matches!(self.menu, Menu::LastKnown)
    }

    /// Whether it wants other credentials: then it is no use to wait for the next try.
    pub(super) const fn is_of_credentials(&self) -> bool {
        matches!(self.class, Class::AuthRequired | Class::ScopeRequired)
    }

    /// Returns what a caller is told who will not wait for the `next` try.
    pub(super) fn refusal(&self, server: &Arc<str>, next: Duration) -> CallError {
        let server = Arc::clone(server);
        let challenge = self.challenge.clone();
        if self.blame == Blame::Program {
            return CallError::ProgramNotFound {
                server,
                reason: Arc::clone(&self.reason),
                next,
            };
        }
        match self.class {
            Class::AuthRequired => CallError::AuthRequired { server, challenge },
            Class::ScopeRequired => CallError::ScopeRequired { server, challenge },
            _ => CallError::StartFailed {
                server,
                reason: Arc::clone(&self.reason),
                next,
            },
        }
    }
}

impl From<&ConnectError> for Cause {
    fn from(error: &ConnectError) -> Self {
        let class = match error {
            ConnectError::Spawn { .. }
            | ConnectError::ProgramNotFound { .. }
            | ConnectError::ExitedBeforeHandshake { .. }
            | ConnectError::HandshakeRefused { .. } => Class::ConnectFailed,
            ConnectError::HandshakeTimeout { .. } => Class::Timeout,
            ConnectError::UnsupportedRevision { .. } | ConnectError::BadHandshake { .. } => {
                Class::ProtocolError
            }
            ConnectError::Refused { source, .. } => class_of(source),
        };
        let (challenge, menu) = match error {
            ConnectError::Refused { source, .. } => (challenge_of(source), menu_of(source)),
            ConnectError::HandshakeRefused { .. } => (None, Menu::Withdrawn),
            _ => (None, Menu::LastKnown),
        };
        Self {
            class,
            reason: whole(error).into(),
            challenge,
            menu,
            blame: match error {
                ConnectError::Refused { source, .. } => blame_of(source),
                ConnectError::ExitedBeforeHandshake { exit, .. } => Blame::of(*exit),
                ConnectError::ProgramNotFound { .. } => Blame::Program,
                _ => Blame::Server,
            },
        }
    }
}

impl From<&ListError> for Cause {
    fn from(error: &ListError) -> Self {
        let (class, challenge, menu) = match error {
            ListError::Link { source, .. } => {
                (class_of(source), challenge_of(source), menu_of(source))
            }
            ListError::Refused { .. } => (Class::ProtocolError, None, Menu::Withdrawn),
            ListError::TooManyItems(_)
            | ListError::RepeatedCursor(_)
            | ListError::CursorTooLarge(_) => (Class::ProtocolError, None, Menu::LastKnown),
        };
        Self {
            class,
            reason: whole(error).into(),
            challenge,
            menu,
            blame: match error {
                ListError::Link { source, .. } => blame_of(source),
                _ => Blame::Server,
            },
        }
    }
}

impl Blame {
    /// Returns what failed where a link ended so.
    pub(super) const fn of(exit: Exit) -> Self {
        match exit {
            Exit::Away => Self::Way,
            Exit::ProgramNotFound => Self::Program,
            _ => Self::Server,
        }
    }
}

fn blame_of(error: &LinkError) -> Blame {
    match error {
        LinkError::Lost(exit) | LinkError::Closed(exit) => Blame::of(*exit),
        LinkError::Elsewhere(failure) if failure.origin == Origin::Executor => Blame::Way,
        _ => Blame::Server,
    }
}

/// A start that lost its way to the server is a start that failed.
fn class_of(error: &LinkError) -> Class {
    match explain(error, &Arc::default(), None, ResponseWait::for_server(0)).class() {
        Class::SendFailed | Class::ConnectionLost => Class::ConnectFailed,
        class => class,
    }
}

/// An answer is no outage, whatever it says.
fn menu_of(error: &LinkError) -> Menu {
    match error {
        LinkError::Unauthorized { .. } => Menu::Withdrawn,
        LinkError::Http { status, .. } if !is_away(*status) => Menu::Withdrawn,
        _ => Menu::LastKnown,
    }
}

fn challenge_of(error: &LinkError) -> Option<Arc<str>> {
    match error {
        LinkError::Unauthorized { challenge, .. } => challenge.clone(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use bowline_link::Exit;

    use super::*;

    fn refused(source: LinkError) -> ConnectError {
        let server = "s".into();
        ConnectError::Refused { server, source }
    }

    fn unauthorized(status: u16) -> ConnectError {
        refused(LinkError::Unauthorized {
            status,
            challenge: Some("Bearer realm=x".into()),
        })
    }

    #[test]
    fn a_failed_start_is_classed_by_what_failed() {
        let server = || Arc::from("s");
        for (error, class) in [
            (unauthorized(401), Class::AuthRequired),
            (unauthorized(403), Class::ScopeRequired),
            (
                refused(LinkError::Unreachable("no route".into())),
                Class::ConnectFailed,
            ),
            (
                ConnectError::HandshakeTimeout {
                    server: server(),
                    stderr_tail: Vec::new(),
                },
                Class::Timeout,
            ),
            (
                ConnectError::ExitedBeforeHandshake {
                    server: server(),
                    exit: Exit::Status(3),
                    stderr_tail: Vec::new(),
                },
                Class::ConnectFailed,
            ),
            (
                ConnectError::BadHandshake {
                    server: server(),
                    reason: "no revision".into(),
                },
                Class::ProtocolError,
            ),
        ] {
            assert_eq!(Cause::from(&error).class, class, "{error}");
        }
    }

    #[test]
    fn who_meets_wrong_credentials_at_the_start_is_told_of_credentials() {
        let refusal = |error| Cause::from(&error).refusal(&"s".into(), Duration::from_secs(1));
        let challenge = Some("Bearer realm=x".into());
        let server = "s".into();
        assert_eq!(
            refusal(unauthorized(401)),
            CallError::AuthRequired { server, challenge }
        );
        assert_eq!(refusal(unauthorized(403)).class(), Class::ScopeRequired);
        let error = refusal(refused(LinkError::Unreachable("no route".into())));
        assert_eq!(
            error.to_string().matches("`s`").count(),
            1,
            "the server is named once: {error}"
        );
    }
}

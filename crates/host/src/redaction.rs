//! Takes secrets that the gateway holds out of everything that a server sends to agents: results,
//! errors, lists, notifications and questions. This is the one exception to "lossless".

mod caller;
mod link;

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, Mutex};

use arc_swap::ArcSwapOption;
use bowline_core::caller::CallerEnd;
use bowline_core::era::Era;
use bowline_core::redact::{LEARNED_MAX, SecretFilter};
use bowline_core::sync::lock;
use bowline_link::stderr::StderrLog;
use bowline_link::{BoxFuture, ConnectError, LinkEvent};
use bytes::Bytes;
use tokio::time::Instant;
use zeroize::Zeroizing;

use self::caller::CleanCaller;
use self::link::CleanLink;
use crate::spec::ServerSpec;
use crate::supervisor::{Dial, Dialled};

/// The secrets that results are cleaned of: those of the configuration in force, and those that
/// were in use before. All servers share them, so that none hands out the secret of another.
/// Without a secret, nothing is looked at.
#[derive(Debug, Default)]
pub struct ResultSecrets {
    filter: ArcSwapOption<SecretFilter>,
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    /// Those of the configuration in force.
    configured: Vec<Pair>,
    /// Those that came later or went before, the oldest first.
    others: VecDeque<Pair>,
}

/// A label, and the secret that it stands for.
type Pair = (Box<str>, Zeroizing<Box<str>>);

impl std::fmt::Debug for Known {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let count = self.configured.len() + self.others.len();
        f.debug_tuple("Known").field(&count).finish()
    }
}

impl ResultSecrets {
    /// Knows these from now on; those of the configuration before are not forgotten at once.
    pub fn replace<'a>(&self, secrets: impl IntoIterator<Item = (&'a str, &'a str)>) {
        let secrets = secrets
            .into_iter()
            .map(|(label, secret)| pair(label, secret));
        let mut known = lock(&self.known);
        let before = std::mem::replace(&mut known.configured, secrets.collect());
        for pair in before {
            known.remember(pair);
        }
        self.filter.store(known.filter());
    }

    /// Knows one more from now on.
    pub fn learn(&self, label: &str, secret: &str) {
        let mut known = lock(&self.known);
        if known.remember(pair(label, secret)) {
            self.filter.store(known.filter());
        }
    }

    /// Whether there is nothing to look for.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.filter.load().is_none()
    }

    /// Returns a JSON text without secrets; the same bytes where it holds none.
    #[must_use]
    pub fn clean(&self, text: Bytes) -> Bytes {
        let cleaned = self.filter.load().as_ref().and_then(|one| one.clean(&text));
        cleaned.map_or(text, Bytes::from)
    }

    /// Cleans a part of a text, and says where that part stands now.
    #[must_use]
    pub fn clean_part(&self, text: Bytes, at: Range<usize>) -> (Bytes, Range<usize>) {
        let filter = self.filter.load();
        let part = text.get(at.clone()).unwrap_or_default();
        let Some(cleaned) = filter.as_ref().and_then(|one| one.clean(part)) else {
            return (text, at);
        };
        let mut whole = Vec::with_capacity(text.len() - part.len() + cleaned.len());
        whole.extend_from_slice(text.get(..at.start).unwrap_or_default());
        whole.extend_from_slice(&cleaned);
        let end = whole.len();
        whole.extend_from_slice(text.get(at.end..).unwrap_or_default());
        (whole.into(), at.start..end)
    }

    /// Cleans what a server says outside calls. Addresses and ids in it are the server's names
    /// for things, by which sessions are found, and stay.
    pub(crate) fn clean_event(&self, event: LinkEvent) -> LinkEvent {
        match event {
            LinkEvent::ResourceUpdated { uri, notification } => LinkEvent::ResourceUpdated {
                uri,
                notification: self.clean(notification),
            },
            LinkEvent::TaskStatus { task, notification } => LinkEvent::TaskStatus {
                task,
                notification: self.clean(notification),
            },
            LinkEvent::Told {
                session,
                notification,
            } => LinkEvent::Told {
                session,
                notification: self.clean(notification),
            },
            LinkEvent::Log(message) => LinkEvent::Log(self.clean(message)),
            LinkEvent::Other(message) => LinkEvent::Other(self.clean(message)),
            event @ (LinkEvent::ToolsChanged
            | LinkEvent::PromptsChanged
            | LinkEvent::ResourcesChanged
            | LinkEvent::Renewed
            | LinkEvent::Ambiguous) => event,
        }
    }
}

impl Known {
    /// Notes a secret, and says whether it was new.
    fn remember(&mut self, pair: Pair) -> bool {
        let mut all = self.configured.iter().chain(&self.others);
        if all.any(|(_, secret)| *secret == pair.1) {
            return false;
        }
        self.others.push_back(pair);
        if self.others.len() > LEARNED_MAX {
            self.others.pop_front();
        }
        true
    }

    fn filter(&self) -> Option<Arc<SecretFilter>> {
        let all = self.configured.iter().chain(&self.others);
        let all = all.map(|(label, secret)| (&**label, &***secret));
        SecretFilter::new(all).map(Arc::new)
    }
}

fn pair(label: &str, secret: &str) -> Pair {
    (Box::from(label), Zeroizing::new(Box::from(secret)))
}

/// Has the links of servers cleaned whose results are; what they say outside calls is cleaned
/// where it is heard.
#[derive(Debug)]
pub(crate) struct CleanDial(pub(crate) Arc<dyn Dial>);

impl Dial for CleanDial {
    fn dial<'a>(
        &'a self,
        spec: &'a ServerSpec,
        log: &'a Arc<StderrLog>,
        owner: Option<Arc<dyn CallerEnd>>,
        deadline: Instant,
    ) -> BoxFuture<'a, Result<Dialled, ConnectError>> {
        let Some(secrets) = &spec.redact_results else {
            return self.0.dial(spec, log, owner, deadline);
        };
        Box::pin(async move {
            let owner = owner.map(|owner| CleanCaller::wrap(owner, secrets));
            let (link, events) = self.0.dial(spec, log, owner, deadline).await?;
            Ok((CleanLink::wrap(link, secrets), events))
        })
    }

    fn recall_era(&self, spec: &ServerSpec, era: Era) {
        self.0.recall_era(spec, era);
    }

    fn back<'a>(&'a self, spec: &'a ServerSpec) -> BoxFuture<'a, ()> {
        self.0.back(spec)
    }

    fn is_away(&self, spec: &ServerSpec) -> bool {
        self.0.is_away(spec)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_replaced_remembered_and_learned() {
        let secrets = ResultSecrets::default();
        let clean = |text: &'static str| secrets.clean(Bytes::from_static(text.as_bytes()));
        assert!(secrets.is_empty());
        assert_eq!(clean(r#"["hunter2222"]"#), r#"["hunter2222"]"#);
        secrets.replace([("A", "hunter2222")]);
        assert_eq!(clean(r#"["hunter2222"]"#), r#"["‹A›"]"#);
        secrets.replace([("B", "hunter3333")]);
        secrets.learn("C", "hunter4444");
        let all = clean(r#"["hunter2222 hunter3333 hunter4444"]"#);
        assert_eq!(all, r#"["‹A› ‹B› ‹C›"]"#);
        assert_eq!(format!("{:?}", lock(&secrets.known)), "Known(3)");
    }

    #[test]
    fn clean_text_is_not_copied_and_a_part_is_found_again() {
        let secrets = ResultSecrets::default();
        secrets.replace([("A", "hunter2222")]);
        let text = Bytes::from_static(br#"{"id":"hunter2222","result":{"a":"hunter2222"}}"#);
        let (cleaned, at) = secrets.clean_part(text, 28..46);
        assert_eq!(
            cleaned,
            r#"{"id":"hunter2222","result":{"a":"‹A›"}}"#.as_bytes()
        );
        assert_eq!(&cleaned[at], r#"{"a":"‹A›"}"#.as_bytes());
        let plain = Bytes::from_static(b"[1]");
        assert_eq!(secrets.clean(plain.clone()).as_ptr(), plain.as_ptr());
    }
}

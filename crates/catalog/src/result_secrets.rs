//! The secrets that results of servers must not contain, and their removal.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, Mutex};

use arc_swap::ArcSwapOption;
use bowline_core::redact::{ADDED_SECRETS_MAX, SecretFilter};
use bowline_core::sync::lock;
use bowline_link::LinkEvent;
use bytes::Bytes;
use zeroize::Zeroizing;

/// The secrets to redact: those of the current configuration, and earlier ones. Shared by all
/// servers, so that no server can return the secret of another server. Without secrets, nothing
/// is scanned.
#[derive(Debug, Default)]
pub struct ResultSecrets {
    filter: ArcSwapOption<SecretFilter>,
    known: Mutex<KnownSecrets>,
}

#[derive(Default)]
struct KnownSecrets {
    /// Secrets of the current configuration.
    configured: Vec<LabelledSecret>,
    /// Learned and former secrets, oldest first.
    former: VecDeque<LabelledSecret>,
}

/// A secret and its label.
struct LabelledSecret {
    label: Box<str>,
    secret: Zeroizing<Box<str>>,
}

impl std::fmt::Debug for KnownSecrets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let count = self.configured.len() + self.former.len();
        f.debug_tuple("KnownSecrets").field(&count).finish()
    }
}

impl ResultSecrets {
    /// Replaces the configured secrets; the previous ones are remembered for a while.
    pub fn replace_configured<'a>(&self, secrets: impl IntoIterator<Item = (&'a str, &'a str)>) {
        let secrets = secrets
            .into_iter()
            .map(|(label, secret)| LabelledSecret::new(label, secret));
        let mut known_secrets = lock(&self.known);
        let before = std::mem::replace(&mut known_secrets.configured, secrets.collect());
        for former in before {
            known_secrets.add_former(former);
        }
        self.filter.store(known_secrets.build_filter());
    }

    /// Adds a secret.
    pub fn add_secret(&self, label: &str, secret: &str) {
        let mut known_secrets = lock(&self.known);
        if known_secrets.add_former(LabelledSecret::new(label, secret)) {
            self.filter.store(known_secrets.build_filter());
        }
    }

    /// True without secrets.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.filter.load().is_none()
    }

    /// Redacts a JSON text; returns the same bytes if it has no secret.
    #[must_use]
    pub fn redact(&self, text: Bytes) -> Bytes {
        let cleaned = self
            .filter
            .load()
            .as_ref()
            .and_then(|one| one.redact_json(&text));
        cleaned.map_or(text, Bytes::from)
    }

    /// Redacts part of a text, and returns the new position of the part.
    #[must_use]
    pub fn redact_part(&self, text: Bytes, at: Range<usize>) -> (Bytes, Range<usize>) {
        let filter = self.filter.load();
        let part = text.get(at.clone()).unwrap_or_default();
        let Some(cleaned) = filter.as_ref().and_then(|one| one.redact_json(part)) else {
            return (text, at);
        };
        let mut whole = Vec::with_capacity(text.len() - part.len() + cleaned.len());
        whole.extend_from_slice(text.get(..at.start).unwrap_or_default());
        whole.extend_from_slice(&cleaned);
        let end = whole.len();
        whole.extend_from_slice(text.get(at.end..).unwrap_or_default());
        (whole.into(), at.start..end)
    }

    /// Redacts a server event outside calls. URIs and ids stay: they are needed to find the
    /// sessions.
    pub fn redact_event(&self, event: LinkEvent) -> LinkEvent {
        match event {
            LinkEvent::ResourceUpdated { uri, notification } => LinkEvent::ResourceUpdated {
                uri,
                notification: self.redact(notification),
            },
            LinkEvent::TaskStatus { task, notification } => LinkEvent::TaskStatus {
                task,
                notification: self.redact(notification),
            },
            LinkEvent::SessionNotification {
                session,
                notification,
            } => LinkEvent::SessionNotification {
                session,
                notification: self.redact(notification),
            },
            LinkEvent::Log(message) => LinkEvent::Log(self.redact(message)),
            LinkEvent::Other(message) => LinkEvent::Other(self.redact(message)),
            event @ (LinkEvent::ToolsChanged
            | LinkEvent::PromptsChanged
            | LinkEvent::ResourcesChanged
            | LinkEvent::SessionReset
            | LinkEvent::UnattributedRequest) => event,
        }
    }
}

impl KnownSecrets {
    /// Adds a secret; returns whether it was new.
    fn add_former(&mut self, former: LabelledSecret) -> bool {
        let mut all = self.configured.iter().chain(&self.former);
        if all.any(|known| known.secret == former.secret) {
            return false;
        }
        self.former.push_back(former);
        if self.former.len() > ADDED_SECRETS_MAX {
            self.former.pop_front();
        }
        true
    }

    fn build_filter(&self) -> Option<Arc<SecretFilter>> {
        let all = self.configured.iter().chain(&self.former);
        let all = all.map(|known| (&*known.label, &**known.secret));
        SecretFilter::new(all).map(Arc::new)
    }
}

impl LabelledSecret {
    fn new(label: &str, secret: &str) -> Self {
        Self {
            label: Box::from(label),
            secret: Zeroizing::new(Box::from(secret)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn former_and_learned_secrets_are_redacted() {
        let secrets = ResultSecrets::default();
        let clean = |text: &'static str| secrets.redact(Bytes::from_static(text.as_bytes()));
        assert!(secrets.is_empty());
        assert_eq!(clean(r#"["hunter2222"]"#), r#"["hunter2222"]"#);
        secrets.replace_configured([("A", "hunter2222")]);
        assert_eq!(clean(r#"["hunter2222"]"#), r#"["‹A›"]"#);
        secrets.replace_configured([("B", "hunter3333")]);
        secrets.add_secret("C", "hunter4444");
        let all = clean(r#"["hunter2222 hunter3333 hunter4444"]"#);
        assert_eq!(all, r#"["‹A› ‹B› ‹C›"]"#);
        assert_eq!(format!("{:?}", lock(&secrets.known)), "KnownSecrets(3)");
    }

    #[test]
    fn clean_text_is_not_copied() {
        let secrets = ResultSecrets::default();
        secrets.replace_configured([("A", "hunter2222")]);
        let text = Bytes::from_static(br#"{"id":"hunter2222","result":{"a":"hunter2222"}}"#);
        let (cleaned, at) = secrets.redact_part(text, 28..46);
        assert_eq!(
            cleaned,
            r#"{"id":"hunter2222","result":{"a":"‹A›"}}"#.as_bytes()
        );
        assert_eq!(&cleaned[at], r#"{"a":"‹A›"}"#.as_bytes());
        let plain = Bytes::from_static(b"[1]");
        assert_eq!(secrets.redact(plain.clone()).as_ptr(), plain.as_ptr());
    }
}

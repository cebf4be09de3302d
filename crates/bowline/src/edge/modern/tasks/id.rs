//! Ids of tasks that say whose they are: sealed, so that they outlive this process and are of no
//! use to anybody else.

use std::sync::Arc;

use bowline_core::tasks::{LinkKey, Made, MadeIn, Sealed};

use crate::edge::seal::{Seal, Use};

/// What an id says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TaskId {
    /// Where the task lives, and what made it.
    pub(crate) sealed: Sealed,
    /// What its server calls it.
    pub(crate) inner: Arc<str>,
    /// When it was created, in the words of its server. A server may give out an id again.
    created: Box<str>,
}

impl TaskId {
    /// Whether what a server says has under this id was created with it.
    pub(crate) fn is_of(&self, created: &str) -> bool {
        *self.created == *created
    }
}

/// Seals what is known of a task of `principal` for this process and those after it; `None` when
/// the system gives no randomness.
pub(crate) fn seal(
    seal: &Seal,
    (principal, boot): (&str, u64),
    made: &Made,
    created: &str,
) -> Option<String> {
    // None of the parts before the last holds a line break, but for those that have their lengths
    // before them.
    let text = format!(
        "{boot}\n{}\n{}\n{principal}\n{}\n{}\n{}{created}{}",
        made.link.0,
        made.server,
        made.tool.len(),
        created.len(),
        made.tool,
        made.id
    );
    seal.close(Use::Task, text.as_bytes())
}

/// Opens an id that `principal` brings; `None` where it is none of its own.
pub(crate) fn open(seal: &Seal, (principal, boot): (&str, u64), id: &str) -> Option<TaskId> {
    let text = String::from_utf8(seal.disclose(Use::Task, id)?).ok()?;
    let mut lines = text.splitn(7, '\n');
    let made_in: u64 = lines.next()?.parse().ok()?;
    let link: u64 = lines.next()?.parse().ok()?;
    let server = lines.next()?;
    if lines.next()? != principal {
        return None;
    }
    let tool: usize = lines.next()?.parse().ok()?;
    let created: usize = lines.next()?.parse().ok()?;
    let (tool, rest) = lines.next()?.split_at_checked(tool)?;
    let (created, inner) = rest.split_at_checked(created)?;
    // Links of one's own are gone with the process that had them.
    let (link, made_in) = match made_in == boot {
        true => (LinkKey(link), MadeIn::This),
        false => (LinkKey::SHARED, MadeIn::Earlier),
    };
    Some(TaskId {
        sealed: Sealed {
            server: server.into(),
            tool: tool.into(),
            link,
            made_in,
        },
        inner: inner.into(),
        created: created.into(),
    })
}

#[cfg(test)]
mod tests {
    use bowline_core::tasks::{MadeBy, TaskTable};
    use bowline_core::time::Now;

    use super::*;

    fn made() -> Made {
        let mut table = TaskTable::default();
        let (server, tool) = ("s".into(), "odd\nname".into());
        let by = MadeBy {
            server: &server,
            tool: &tool,
            link: LinkKey(3),
        };
        let made = table.note(&"ann".into(), None, by, "inner\nid", Now(0));
        made.unwrap().clone()
    }

    #[test]
    fn an_id_opens_to_the_task_of_who_made_it() {
        let key = Seal::new(&[7; 32]);
        let id = seal(&key, ("ann", 5), &made(), "2026-07-28T00:00:00Z").unwrap();
        let want = TaskId {
            sealed: Sealed {
                server: "s".into(),
                tool: "odd\nname".into(),
                link: LinkKey(3),
                made_in: MadeIn::This,
            },
            inner: "inner\nid".into(),
            created: "2026-07-28T00:00:00Z".into(),
        };
        assert_eq!(open(&key, ("ann", 5), &id), Some(want.clone()));
        let mut later = want;
        later.sealed.link = LinkKey::SHARED;
        later.sealed.made_in = MadeIn::Earlier;
        assert_eq!(open(&key, ("ann", 6), &id), Some(later), "another process");
        assert_eq!(open(&key, ("bob", 5), &id), None);
        assert_eq!(open(&Seal::new(&[8; 32]), ("ann", 5), &id), None);
        assert!(id.bytes().all(|byte| byte.is_ascii_graphic()), "{id}");
        for at in 0..id.len() {
            let mut forged = id.clone().into_bytes();
            forged[at] = if forged[at] == b'A' { b'B' } else { b'A' };
            let forged = String::from_utf8(forged).unwrap();
            assert_eq!(open(&key, ("ann", 5), &forged), None, "byte {at}");
        }
        let state = key.close(Use::State, b"5\n3\ns\nann\n1\n1\ntcx").unwrap();
        let opened = open(&key, ("ann", 5), &state);
        assert_eq!(opened, None, "sealed for another use");
    }
}

//! Ids of tasks that say whose they are: sealed, so that they outlive this process and are of no
//! use to anybody else.

use std::sync::Arc;

use bowline_core::tasks::{LinkKey, Made};

use crate::edge::seal::{Seal, Use};

/// What an id says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TaskId {
    /// The server that has the task.
    pub(crate) server: Arc<str>,
    /// The tool whose call made it.
    pub(crate) tool: Arc<str>,
    /// The link it lives at.
    pub(crate) link: LinkKey,
    /// What its server calls it.
    pub(crate) inner: Arc<str>,
}

/// Seals what is known of a task of `principal`; `None` when the system gives no randomness.
pub(crate) fn seal(seal: &Seal, principal: &str, boot: u64, made: &Made) -> Option<String> {
    // None of the parts before the last holds a line break, but for the name of a tool: that one
    // has its length before it.
    let text = format!(
        "{boot}\n{}\n{}\n{principal}\n{}\n{}{}",
        made.link.0,
        made.server,
        made.tool.len(),
        made.tool,
        made.id
    );
    seal.close(Use::Task, text.as_bytes())
}

/// Opens an id that `principal` brings; `None` where it is none of its own.
pub(crate) fn open(seal: &Seal, principal: &str, boot: u64, id: &str) -> Option<TaskId> {
    let text = String::from_utf8(seal.disclose(Use::Task, id)?).ok()?;
    let mut lines = text.splitn(6, '\n');
    let made_in: u64 = lines.next()?.parse().ok()?;
    let link: u64 = lines.next()?.parse().ok()?;
    let server = lines.next()?;
    if lines.next()? != principal {
        return None;
    }
    let tool: usize = lines.next()?.parse().ok()?;
    let (tool, inner) = lines.next()?.split_at_checked(tool)?;
    // The links of one caller are gone with the process that they were made by.
    let link = if made_in == boot {
        LinkKey(link)
    } else {
        LinkKey::SHARED
    };
    Some(TaskId {
        server: server.into(),
        tool: tool.into(),
        link,
        inner: inner.into(),
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
        table.note(&"ann".into(), None, by, "inner\nid", Now(0));
        table.made("s", LinkKey(3), "inner\nid").unwrap().clone()
    }

    #[test]
    fn an_id_opens_to_the_task_of_who_made_it() {
        let key = Seal::new(&[7; 32]);
        let id = seal(&key, "ann", 5, &made()).unwrap();
        let want = TaskId {
            server: "s".into(),
            tool: "odd\nname".into(),
            link: LinkKey(3),
            inner: "inner\nid".into(),
        };
        assert_eq!(open(&key, "ann", 5, &id), Some(want.clone()));
        let later = TaskId {
            link: LinkKey::SHARED,
            ..want
        };
        assert_eq!(open(&key, "ann", 6, &id), Some(later), "another process");
        assert_eq!(open(&key, "bob", 5, &id), None);
        assert_eq!(open(&Seal::new(&[8; 32]), "ann", 5, &id), None);
        assert!(id.bytes().all(|byte| byte.is_ascii_graphic()), "{id}");
        for at in 0..id.len() {
            let mut forged = id.clone().into_bytes();
            forged[at] = if forged[at] == b'A' { b'B' } else { b'A' };
            let forged = String::from_utf8(forged).unwrap();
            assert_eq!(open(&key, "ann", 5, &forged), None, "byte {at}");
        }
        let state = key.close(Use::State, b"5\n3\ns\nann\n1\ntx").unwrap();
        assert_eq!(open(&key, "ann", 5, &state), None, "sealed for another use");
    }
}

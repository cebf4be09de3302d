//! Sealed task ids: bound to a principal and valid across restarts.

use std::sync::Arc;

use bowline_core::task_table::{LinkKey, OriginProcess, SealedTaskId, TaskRecord};

use crate::seal::{Seal, SealPurpose};

/// Content of a task id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TaskId {
    /// Location and origin of the task.
    pub(crate) origin: SealedTaskId,
    /// Task id of the server.
    pub(crate) server_id: Arc<str>,
    /// Creation time as reported by the server; detects reused ids.
    created: Box<str>,
}

impl TaskId {
    /// Returns whether the creation time matches.
    pub(crate) fn is_created_at(&self, created: &str) -> bool {
        *self.created == *created
    }
}

/// Seals a task of `principal` for this and later processes; `None` without system randomness.
pub(crate) fn seal_id(
    seal: &Seal,
    principal: &str,
    boot: u64,
    made: &TaskRecord,
    created: &str,
) -> Option<String> {
    // Only length-prefixed parts and the last part may contain line breaks.
    let text = format!(
        "{boot}\n{}\n{}\n{principal}\n{}\n{}\n{}{created}{}",
        made.link.0,
        made.server,
        made.tool.len(),
        created.len(),
        made.tool,
        made.id
    );
    seal.seal_bytes(SealPurpose::Task, text.as_bytes())
}

/// Opens an id presented by `principal`; `None` if not issued to this principal.
pub(crate) fn open_id(seal: &Seal, principal: &str, boot: u64, id: &str) -> Option<TaskId> {
    let text = String::from_utf8(seal.open_bytes(SealPurpose::Task, id)?).ok()?;
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
    // Dedicated links end with their process.
    let (link, made_in) = match made_in == boot {
        true => (LinkKey(link), OriginProcess::Current),
        false => (LinkKey::SHARED, OriginProcess::Earlier),
    };
    Some(TaskId {
        origin: SealedTaskId {
            server: server.into(),
            tool: tool.into(),
            link,
            origin_process: made_in,
        },
        server_id: inner.into(),
        created: created.into(),
    })
}

#[cfg(test)]
mod tests {
    use bowline_core::task_table::{TaskOrigin, TaskTable};
    use bowline_core::time::MonotonicTime;

    use super::*;

    fn test_task() -> TaskRecord {
        let mut table = TaskTable::default();
        let (server, tool) = ("s".into(), "odd\nname".into());
        let by = TaskOrigin {
            server: &server,
            tool: &tool,
            link: LinkKey(3),
        };
        let made = table.record_task(&"ann".into(), None, by, "inner\nid", MonotonicTime(0));
        made.unwrap().clone()
    }

    #[test]
    fn task_id_opens_for_its_principal() {
        let key = Seal::new(&[7; 32]);
        let id = seal_id(&key, "ann", 5, &test_task(), "2026-07-28T00:00:00Z").unwrap();
        let want = TaskId {
            origin: SealedTaskId {
                server: "s".into(),
                tool: "odd\nname".into(),
                link: LinkKey(3),
                origin_process: OriginProcess::Current,
            },
            server_id: "inner\nid".into(),
            created: "2026-07-28T00:00:00Z".into(),
        };
        assert_eq!(open_id(&key, "ann", 5, &id), Some(want.clone()));
        let mut later = want;
        later.origin.link = LinkKey::SHARED;
        later.origin.origin_process = OriginProcess::Earlier;
        assert_eq!(open_id(&key, "ann", 6, &id), Some(later), "another process");
        assert_eq!(open_id(&key, "bob", 5, &id), None);
        assert_eq!(open_id(&Seal::new(&[8; 32]), "ann", 5, &id), None);
        assert!(id.bytes().all(|byte| byte.is_ascii_graphic()), "{id}");
        for at in 0..id.len() {
            let mut forged = id.clone().into_bytes();
            forged[at] = if forged[at] == b'A' { b'B' } else { b'A' };
            let forged = String::from_utf8(forged).unwrap();
            assert_eq!(open_id(&key, "ann", 5, &forged), None, "byte {at}");
        }
        let state = key
            .seal_bytes(SealPurpose::State, b"5\n3\ns\nann\n1\n1\ntcx")
            .unwrap();
        let opened = open_id(&key, "ann", 5, &state);
        assert_eq!(opened, None, "sealed for another use");
    }
}

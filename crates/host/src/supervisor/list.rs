//! Asks a server for its lists, all pages, within bounds.

use std::borrow::Cow;
use std::collections::HashSet;
use std::time::Duration;

use bowline_core::call::Body;
use bowline_link::{Link, LinkError, OnBehalf, Request};
use bowline_wire::mcp::code;
use bowline_wire::object;
use bowline_wire::span::Span;
use bowline_wire::splice::write_string;
use bytes::Bytes;
use thiserror::Error;
use tokio::time::Instant;

use crate::catalog::ListKind;
use crate::catalog::introduction::declares;

/// Pages read of one list.
const PAGES_MAX: usize = 4_096;

/// Bytes of the pages of one list that are kept.
const LIST_BYTES_MAX: usize = bowline_link::LARGE_BYTES_MAX;

/// Bytes of a cursor.
const CURSOR_BYTES_MAX: usize = 64 * 1024;

/// How much of the time for all lists is kept for the tools: no other list holds up a start for
/// longer.
pub(super) const OTHERS_TIMEOUT: Duration = Duration::from_secs(5);

/// Why a list of a server is not known.
#[derive(Debug, Error)]
pub enum ListError {
    /// The server could not be asked.
    #[error("{method} failed")]
    Link {
        /// What was asked.
        method: &'static str,
        /// Why there is no answer.
        source: LinkError,
    },
    /// It answered with an error.
    #[error("{method} was refused: {}", String::from_utf8_lossy(error))]
    Refused {
        /// What was asked.
        method: &'static str,
        /// The error object.
        error: Bytes,
    },
    /// It is too much where nothing may be left out.
    #[error("{0} has too many entries")]
    TooManyItems(&'static str),
    /// It goes round in circles.
    #[error("{0} repeats a cursor")]
    RepeatedCursor(&'static str),
    /// A cursor is too large.
    #[error("{0} has a cursor of more than {CURSOR_BYTES_MAX} bytes")]
    CursorTooLarge(&'static str),
}

impl ListError {
    /// Whether the same question may have an answer later; what breaks a limit breaks it until
    /// the server says that it changed.
    pub(super) const fn may_pass(&self) -> bool {
        match self {
            Self::Link { .. } | Self::Refused { .. } => true,
            Self::TooManyItems(_) | Self::RepeatedCursor(_) | Self::CursorTooLarge(_) => false,
        }
    }
}

/// A list and what came of asking for it.
pub(super) type Listed = (ListKind, Result<ReadList, ListError>);

/// The part of a list that fits.
#[derive(Clone, Debug, Default)]
pub(crate) struct ReadList {
    /// The results, page by page.
    pub(crate) pages: Vec<Bytes>,
    /// What does not fit.
    pub(crate) left_out: LeftOut,
}

/// Entries of a list that are beyond its limits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LeftOut {
    /// How many were seen.
    pub(crate) entries: usize,
    /// Whether there are pages behind them that were not read.
    pub(crate) more: bool,
}

impl LeftOut {
    pub(crate) const fn is_empty(self) -> bool {
        self.entries == 0 && !self.more
    }
}

/// What is kept of one list.
#[derive(Clone, Copy, Debug)]
struct Room {
    entries: usize,
    bytes: usize,
}

impl Room {
    /// Takes the room of a page, and returns the page with those entries that fit and the number
    /// of the others. What else a page holds counts as well.
    fn fit(&mut self, member: &str, page: Bytes) -> (Bytes, usize) {
        let list = object::field(&page, member).unwrap_or(Span { start: 0, end: 0 });
        let around = page.len() - (list.end - list.start);
        let after = self.bytes.saturating_sub(page.len());
        self.bytes = self.bytes.saturating_sub(around);
        let mut items = object::items(list.of(&page));
        let mut end = None;
        let mut left_out = 0;
        for item in items.by_ref() {
            let bytes = item.end - item.start;
            if self.entries == 0 || bytes > self.bytes {
                left_out = 1;
                break;
            }
            self.entries -= 1;
            self.bytes -= bytes;
            end = Some(list.start + item.end);
        }
        if left_out == 0 {
            self.bytes = after;
            return (page, 0);
        }
        left_out += items.count();
        let mut kept = page
            .get(..end.unwrap_or(list.start))
            .unwrap_or_default()
            .to_vec();
        if end.is_none() {
            kept.push(b'[');
        }
        kept.push(b']');
        kept.extend_from_slice(page.get(list.end..).unwrap_or_default());
        (kept.into(), left_out)
    }
}

/// Asks for those lists that are `wanted`, all at once; a server is not asked for one that it
/// does not declare, and has then none.
pub(super) async fn list_all(
    link: &dyn Link,
    wanted: &[ListKind],
    entries_max: usize,
    deadline: Instant,
    others: Instant,
) -> Vec<Listed> {
    let one = async |kind: ListKind| {
        let until = match kind {
            ListKind::Tools => deadline,
            ListKind::Prompts | ListKind::Resources | ListKind::Templates => others.min(deadline),
        };
        match wanted.contains(&kind) {
            true => Some((kind, list(link, kind, entries_max, until).await)),
            false => None,
        }
    };
    let (tools, prompts, resources, templates) = tokio::join!(
        one(ListKind::Tools),
        one(ListKind::Prompts),
        one(ListKind::Resources),
        one(ListKind::Templates),
    );
    let all = [tools, prompts, resources, templates];
    all.into_iter().flatten().collect()
}

async fn list(
    link: &dyn Link,
    kind: ListKind,
    entries_max: usize,
    end: Instant,
) -> Result<ReadList, ListError> {
    if !declares(&link.server().initialize, kind.capability()) {
        return Ok(ReadList::default());
    }
    match pages(link, (kind.method(), None), kind.member(), entries_max, end).await {
        // It declares one half of a capability and does not know the other.
        Err(ListError::Refused { error, .. }) if is_unknown_method(&error) => {
            Ok(ReadList::default())
        }
        pages => pages,
    }
}

/// Returns the results of a listing `method`, page by page, as far as they fit; `member` holds the
/// entries. A peer is told whose they are, where they are somebody's.
pub(crate) async fn pages(
    link: &dyn Link,
    (method, whom): (&'static str, Option<Box<OnBehalf>>),
    member: &str,
    entries_max: usize,
    deadline: Instant,
) -> Result<ReadList, ListError> {
    let mut read = ReadList::default();
    let mut room = Room {
        entries: entries_max,
        bytes: LIST_BYTES_MAX,
    };
    let mut cursors: HashSet<String> = HashSet::new();
    let mut cursor: Option<String> = None;
    loop {
        let asked = (method, whom.clone());
        let page = page(link, asked, cursor.as_deref(), deadline).await?;
        let next = object::field(&page, "nextCursor")
            .and_then(|at| object::string(at.of(&page)).map(Cow::into_owned));
        let (page, entries) = room.fit(member, page);
        read.pages.push(page);
        let is_full = entries > 0 || room.bytes == 0 || read.pages.len() >= PAGES_MAX;
        read.left_out = LeftOut {
            entries,
            more: is_full && next.is_some(),
        };
        let Some(next) = next.filter(|_| !is_full) else {
            return Ok(read);
        };
        if next.len() > CURSOR_BYTES_MAX {
            return Err(ListError::CursorTooLarge(method));
        }
        if !cursors.insert(next.clone()) {
            return Err(ListError::RepeatedCursor(method));
        }
        cursor = Some(next);
    }
}

async fn page(
    link: &dyn Link,
    (method, on_behalf): (&'static str, Option<Box<OnBehalf>>),
    cursor: Option<&str>,
    deadline: Instant,
) -> Result<Bytes, ListError> {
    let params = cursor.map(|cursor| {
        let mut params = Vec::from(&b"{\"cursor\":"[..]);
        write_string(&mut params, cursor);
        params.push(b'}');
        Bytes::from(params)
    });
    let answer = link
        .request(Request {
            on_behalf,
            ..Request::own(method, params, deadline)
        })
        .await
        .map_err(|source| ListError::Link { method, source })?;
    let body = answer.bytes.slice(answer.body_at);
    match answer.body {
        Body::Result => Ok(body),
        Body::Error => Err(ListError::Refused {
            method,
            error: body,
        }),
    }
}

fn is_unknown_method(error: &[u8]) -> bool {
    let code = object::field(error, "code").map(|at| at.of(error));
    code == Some(code::METHOD_NOT_FOUND.to_string().as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_counts_entries_and_all_of_a_page() {
        let page = |entries: &str, rest: &str| {
            Bytes::from(format!(r#"{{"tools":[{entries}],"_meta":"{rest}"}}"#))
        };
        let room = || Room {
            entries: 2,
            bytes: 100,
        };
        for (entries, kept, left_out) in [("1,2", "1,2", 0), ("1, 2 ,3,4", "1, 2", 2), ("", "", 0)]
        {
            let fitting = room().fit("tools", page(entries, ""));
            assert_eq!(fitting, (page(kept, ""), left_out));
        }
        let mut spaced = room();
        let space = " ".repeat(79);
        assert_eq!(spaced.fit("tools", page(&space, "")).1, 0);
        assert_eq!(spaced.bytes, 0);
        // A page without entries takes room too, or many of them would take any.
        let mut filled = room();
        let rest = "x".repeat(90);
        assert_eq!(filled.fit("tools", page("", &rest)), (page("", &rest), 0));
        assert_eq!(filled.bytes, 0);
        assert_eq!(filled.fit("tools", page("1", "")), (page("", ""), 1));
        let other = Bytes::from_static(br#"{"prompts":[1,2,3]}"#);
        assert_eq!(room().fit("tools", other.clone()), (other, 0));
    }
}

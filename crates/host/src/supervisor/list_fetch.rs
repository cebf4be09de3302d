//! Reads a server's lists, page by page, within limits.

use std::borrow::Cow;
use std::collections::HashSet;
use std::time::Duration;

use bowline_core::call::BodyKind;
use bowline_link::{CallerIdentity, Link, LinkError, LinkRequest};
use bowline_wire::ByteSpan;
use bowline_wire::mcp::code;
use bowline_wire::object;
use bowline_wire::splice::write_string;
use bytes::Bytes;
use thiserror::Error;
use tokio::time::Instant;

use crate::catalog::ListKind;
use crate::catalog::initialize_info::declares_capability;

/// Maximum pages of a list.
const PAGES_MAX: usize = 4_096;

/// Maximum total bytes of a list's pages.
const LIST_BYTES_MAX: usize = bowline_link::LARGE_BYTES_MAX;

/// Maximum bytes of a cursor.
const CURSOR_BYTES_MAX: usize = 64 * 1024;

/// Timeout of the lists besides the tools: they never delay a start for longer.
pub(super) const SECONDARY_LISTS_TIMEOUT: Duration = Duration::from_secs(5);

/// Why a list could not be read.
#[derive(Debug, Error)]
pub enum ListError {
    /// The request failed.
    #[error("{method} failed")]
    Link {
        /// The method.
        method: &'static str,
        /// The link error.
        source: LinkError,
    },
    /// The server responded with an error.
    #[error("{method} was refused: {}", String::from_utf8_lossy(error))]
    Refused {
        /// The method.
        method: &'static str,
        /// The error object.
        error: Bytes,
    },
    /// Too many entries in a list that must be complete.
    #[error("{0} has too many entries")]
    TooManyItems(&'static str),
    /// The pages form a cycle.
    #[error("{0} repeats a cursor")]
    RepeatedCursor(&'static str),
    /// A cursor is too large.
    #[error("{0} has a cursor of more than {CURSOR_BYTES_MAX} bytes")]
    CursorTooLarge(&'static str),
}

impl ListError {
    /// True if a later attempt may succeed; a violated limit stays violated until the server
    /// announces a change.
    pub(super) const fn is_transient(&self) -> bool {
        match self {
            Self::Link { .. } | Self::Refused { .. } => true,
            Self::TooManyItems(_) | Self::RepeatedCursor(_) | Self::CursorTooLarge(_) => false,
        }
    }
}

/// A list and the result of reading it.
pub(super) type ListFetch = (ListKind, Result<FetchedList, ListError>);

/// A list, truncated to the limits.
#[derive(Clone, Debug, Default)]
pub(crate) struct FetchedList {
    /// Results, page by page.
    pub(crate) pages: Vec<Bytes>,
    /// Omitted entries.
    pub(crate) omitted: OmittedEntries,
}

/// Entries beyond the limits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct OmittedEntries {
    /// Number of entries seen.
    pub(crate) entries: usize,
    /// True if further pages were not read.
    pub(crate) more: bool,
}

impl OmittedEntries {
    pub(crate) const fn is_empty(self) -> bool {
        self.entries == 0 && !self.more
    }
}

/// Remaining capacity for a list.
#[derive(Clone, Copy, Debug)]
struct ListRoom {
    entries: usize,
    bytes: usize,
}

impl ListRoom {
    /// Charges a page to the capacity; returns the page with the fitting entries, and the number of
    /// omitted entries. Bytes outside the entries count as well.
    fn truncate_page(&mut self, member: &str, page: Bytes) -> (Bytes, usize) {
        let list = object::field(&page, member).unwrap_or(ByteSpan { start: 0, end: 0 });
        let around = page.len() - (list.end - list.start);
        let after = self.bytes.saturating_sub(page.len());
        self.bytes = self.bytes.saturating_sub(around);
        let mut items = object::items(list.slice(&page));
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
        let mut truncated = page
            .get(..end.unwrap_or(list.start))
            .unwrap_or_default()
            .to_vec();
        if end.is_none() {
            truncated.push(b'[');
        }
        truncated.push(b']');
        truncated.extend_from_slice(page.get(list.end..).unwrap_or_default());
        (truncated.into(), left_out)
    }
}

/// Reads the `wanted` lists concurrently; a list without its capability is empty and not requested.
pub(super) async fn fetch_lists(
    link: &dyn Link,
    kinds: &[ListKind],
    entries_max: usize,
    deadline: Instant,
    others: Instant,
) -> Vec<ListFetch> {
    let one = async |kind: ListKind| {
        let until = match kind {
            ListKind::Tools => deadline,
            ListKind::Prompts | ListKind::Resources | ListKind::Templates => others.min(deadline),
        };
        match kinds.contains(&kind) {
            true => Some((kind, fetch_list(link, kind, entries_max, until).await)),
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

async fn fetch_list(
    link: &dyn Link,
    kind: ListKind,
    entries_max: usize,
    end: Instant,
) -> Result<FetchedList, ListError> {
    if !declares_capability(&link.server_info().initialize, kind.capability()) {
        return Ok(FetchedList::default());
    }
    let (method, member) = (kind.method(), kind.member());
    match fetch_pages(link, method, None, member, entries_max, end).await {
        // The server declares a capability but supports only part of it.
        Err(ListError::Refused { error, .. }) if is_unknown_method(&error) => {
            Ok(FetchedList::default())
        }
        pages => pages,
    }
}

/// Reads all pages of a list `method` within the limits; `member` holds the entries. A peer
/// receives the principal, if any.
pub(crate) async fn fetch_pages(
    link: &dyn Link,
    method: &'static str,
    on_behalf: Option<Box<CallerIdentity>>,
    member: &str,
    entries_max: usize,
    deadline: Instant,
) -> Result<FetchedList, ListError> {
    let mut read = FetchedList::default();
    let mut room = ListRoom {
        entries: entries_max,
        bytes: LIST_BYTES_MAX,
    };
    let mut cursors: HashSet<String> = HashSet::new();
    let mut cursor: Option<String> = None;
    loop {
        let caller = on_behalf.clone();
        let page = fetch_page(link, method, caller, cursor.as_deref(), deadline).await?;
        let next = object::field(&page, "nextCursor")
            .and_then(|at| object::parse_string(at.slice(&page)).map(Cow::into_owned));
        let (page, entries) = room.truncate_page(member, page);
        read.pages.push(page);
        let is_full = entries > 0 || room.bytes == 0 || read.pages.len() >= PAGES_MAX;
        read.omitted = OmittedEntries {
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

async fn fetch_page(
    link: &dyn Link,
    method: &'static str,
    on_behalf: Option<Box<CallerIdentity>>,
    cursor: Option<&str>,
    deadline: Instant,
) -> Result<Bytes, ListError> {
    let params = cursor.map_or_else(Bytes::new, |cursor| {
        let mut params = Vec::from(&b"{\"cursor\":"[..]);
        write_string(&mut params, cursor);
        params.push(b'}');
        params.into()
    });
    let response = link
        .request(LinkRequest {
            caller_identity: on_behalf,
            ..LinkRequest::new_internal(method, params, deadline)
        })
        .await
        .map_err(|source| ListError::Link { method, source })?;
    let body = response.bytes.slice(response.body_at);
    match response.body {
        BodyKind::Result => Ok(body),
        BodyKind::Error => Err(ListError::Refused {
            method,
            error: body,
        }),
    }
}

fn is_unknown_method(error: &[u8]) -> bool {
    let code = object::field(error, "code").map(|at| at.slice(error));
    code == Some(code::METHOD_NOT_FOUND.to_string().as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capacity_counts_entries_and_page_bytes() {
        let page = |entries: &str, rest: &str| {
            Bytes::from(format!(r#"{{"tools":[{entries}],"_meta":"{rest}"}}"#))
        };
        let room = || ListRoom {
            entries: 2,
            bytes: 100,
        };
        for (entries, kept, left_out) in [("1,2", "1,2", 0), ("1, 2 ,3,4", "1, 2", 2), ("", "", 0)]
        {
            let fitting = room().truncate_page("tools", page(entries, ""));
            assert_eq!(fitting, (page(kept, ""), left_out));
        }
        let mut spaced = room();
        let space = " ".repeat(79);
        assert_eq!(spaced.truncate_page("tools", page(&space, "")).1, 0);
        assert_eq!(spaced.bytes, 0);
        // A page without entries uses capacity too; otherwise the number of such pages were
        // unlimited.
        let mut filled = room();
        let rest = "x".repeat(90);
        assert_eq!(
            filled.truncate_page("tools", page("", &rest)),
            (page("", &rest), 0)
        );
        assert_eq!(filled.bytes, 0);
        assert_eq!(
            filled.truncate_page("tools", page("1", "")),
            (page("", ""), 1)
        );
        let other = Bytes::from_static(br#"{"prompts":[1,2,3]}"#);
        assert_eq!(room().truncate_page("tools", other.clone()), (other, 0));
    }
}

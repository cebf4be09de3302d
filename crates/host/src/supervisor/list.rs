//! Asks a server for its lists, all pages, within bounds.

use std::borrow::Cow;
use std::collections::HashSet;
use std::time::Duration;

use bowline_core::call::Body;
use bowline_link::{Link, LinkError, OnBehalf, Request};
use bowline_wire::mcp::code;
use bowline_wire::object;
use bowline_wire::splice::write_string;
use bytes::Bytes;
use thiserror::Error;
use tokio::time::Instant;

use crate::catalog::introduction::declares;
use crate::catalog::{ListKind, listing};

/// Pages read of one list.
const PAGES_MAX: usize = 100;

/// Entries read of one list.
const ITEMS_MAX: usize = 2_048;

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
    /// It never ends.
    #[error("{0} has more than {PAGES_MAX} pages")]
    TooManyPages(&'static str),
    /// It is too much.
    #[error("{0} has more than {ITEMS_MAX} entries")]
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
            Self::TooManyPages(_)
            | Self::TooManyItems(_)
            | Self::RepeatedCursor(_)
            | Self::CursorTooLarge(_) => false,
        }
    }
}

/// A list and what came of asking for it.
pub(super) type Listed = (ListKind, Result<Vec<Bytes>, ListError>);

/// Asks for those lists that are `wanted`, all at once; a server is not asked for one that it
/// does not declare, and has then none.
pub(super) async fn list_all(
    link: &dyn Link,
    wanted: &[ListKind],
    deadline: Instant,
    others: Instant,
) -> Vec<Listed> {
    let one = async |kind: ListKind| {
        let until = match kind {
            ListKind::Tools => deadline,
            ListKind::Prompts | ListKind::Resources | ListKind::Templates => others.min(deadline),
        };
        match wanted.contains(&kind) {
            true => Some((kind, list(link, kind, until).await)),
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

async fn list(link: &dyn Link, kind: ListKind, end: Instant) -> Result<Vec<Bytes>, ListError> {
    if !declares(&link.server().initialize, kind.capability()) {
        return Ok(Vec::new());
    }
    match pages(link, (kind.method(), None), kind.member(), end).await {
        // It declares one half of a capability and does not know the other.
        Err(ListError::Refused { error, .. }) if is_unknown_method(&error) => Ok(Vec::new()),
        pages => pages,
    }
}

/// Returns the results of a listing `method`, page by page; `member` holds the entries. A peer is
/// told whose they are, where they are somebody's.
pub(crate) async fn pages(
    link: &dyn Link,
    (method, whom): (&'static str, Option<Box<OnBehalf>>),
    member: &str,
    deadline: Instant,
) -> Result<Vec<Bytes>, ListError> {
    let mut pages = Vec::new();
    let mut items = 0;
    let mut cursors: HashSet<String> = HashSet::new();
    let mut cursor: Option<String> = None;
    loop {
        let asked = (method, whom.clone());
        let page = page(link, asked, cursor.as_deref(), deadline).await?;
        items += listing::read_member(member, &page).count();
        let next = object::field(&page, "nextCursor")
            .and_then(|at| object::string(at.of(&page)).map(Cow::into_owned));
        pages.push(page);
        if items > ITEMS_MAX {
            return Err(ListError::TooManyItems(method));
        }
        let Some(next) = next else {
            return Ok(pages);
        };
        if next.len() > CURSOR_BYTES_MAX {
            return Err(ListError::CursorTooLarge(method));
        }
        if pages.len() >= PAGES_MAX {
            return Err(ListError::TooManyPages(method));
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

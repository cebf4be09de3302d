//! Asks a server for its tools, all pages, within bounds.

use std::borrow::Cow;
use std::collections::HashSet;

use bowline_core::call::Body;
use bowline_link::{Link, LinkError, Request};
use bowline_wire::object;
use bowline_wire::splice::write_string;
use bytes::Bytes;
use thiserror::Error;
use tokio::time::Instant;

use crate::catalog::read_tools;

/// Pages read of one list.
const PAGES_MAX: usize = 100;

/// Tools read of one server.
const TOOLS_MAX: usize = 2_048;

/// Bytes of a cursor.
const CURSOR_BYTES_MAX: usize = 64 * 1024;

/// Why a server's tools are not known.
#[derive(Debug, Error)]
pub enum ListError {
    /// The server could not be asked.
    #[error("tools/list failed")]
    Link(#[from] LinkError),
    /// It answered with an error.
    #[error("tools/list was refused: {0}")]
    Refused(String),
    /// It never ends.
    #[error("tools/list has more than {PAGES_MAX} pages")]
    TooManyPages,
    /// It is too much.
    #[error("tools/list has more than {TOOLS_MAX} tools")]
    TooManyTools,
    /// It goes round in circles.
    #[error("tools/list repeats a cursor")]
    RepeatedCursor,
    /// A cursor is too large.
    #[error("tools/list has a cursor of more than {CURSOR_BYTES_MAX} bytes")]
    CursorTooLarge,
}

/// Returns the `tools/list` results of `link`, page by page; none when it offers no tools.
pub(super) async fn list_tools(
    link: &dyn Link,
    deadline: Instant,
) -> Result<Vec<Bytes>, ListError> {
    if !offers_tools(&link.server().initialize) {
        return Ok(Vec::new());
    }
    let mut pages = Vec::new();
    let mut tools = 0;
    let mut cursors: HashSet<String> = HashSet::new();
    let mut cursor: Option<String> = None;
    loop {
        let page = list_page(link, cursor.as_deref(), deadline).await?;
        tools += read_tools(&page).count();
        let next = object::field(&page, "nextCursor")
            .and_then(|at| object::string(at.of(&page)).map(Cow::into_owned));
        pages.push(page);
        if tools > TOOLS_MAX {
            return Err(ListError::TooManyTools);
        }
        let Some(next) = next else {
            return Ok(pages);
        };
        if next.len() > CURSOR_BYTES_MAX {
            return Err(ListError::CursorTooLarge);
        }
        if pages.len() >= PAGES_MAX {
            return Err(ListError::TooManyPages);
        }
        if !cursors.insert(next.clone()) {
            return Err(ListError::RepeatedCursor);
        }
        cursor = Some(next);
    }
}

async fn list_page(
    link: &dyn Link,
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
            method: Cow::Borrowed("tools/list"),
            params,
            rename: None,
            progress_at: None,
            reply_id: Bytes::from_static(b"0"),
            deadline,
            caller: None,
        })
        .await?;
    let body = answer.bytes.slice(answer.body_at);
    match answer.body {
        Body::Result => Ok(body),
        Body::Error => Err(ListError::Refused(
            String::from_utf8_lossy(&body).into_owned(),
        )),
    }
}

fn offers_tools(initialize: &[u8]) -> bool {
    object::field(initialize, "capabilities")
        .is_some_and(|at| object::field(at.of(initialize), "tools").is_some())
}

//! Source of audit rows: the local files, with or without a gateway, or a remote gateway.

use std::path::PathBuf;

use bowline_journal::audit::{AuditCursor, AuditFilter, MergedPage, RowText};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::super::CommandContext;
use super::super::api_client::{ApiClient, QUICK_TIMEOUT, percent_encode};
use super::super::api_types;
use super::super::failure::{CliExit, CliFailure};
use super::super::gateway_finder::GatewayFinder;
use super::unreadable_trail;

/// Location of a trail.
#[derive(Debug)]
pub(super) enum TrailSource {
    /// Local files, readable without a gateway.
    Files(PathBuf),
    /// A gateway named by URL.
    Gateway(Box<ApiClient>),
}

/// Rows as text, each with a hash, and the cursor after the rows.
#[derive(Debug)]
pub(super) struct TrailRows {
    pub(super) rows: Vec<String>,
    pub(super) next: AuditCursor,
}

#[derive(Debug, Deserialize)]
struct TrailPage<'a> {
    #[serde(borrow)]
    rows: Vec<&'a RawValue>,
    next: &'a str,
}

impl TrailSource {
    /// Locates the trail. A local gateway first flushes pending rows.
    pub(super) fn locate_trail(context: &CommandContext) -> Result<Self, CliFailure> {
        let finder = GatewayFinder::new(context);
        if finder.has_explicit_url() {
            return Ok(Self::Gateway(Box::new(ApiClient::new(context)?)));
        }
        let Some(state) = &finder.state else {
            return Err(bowline_config::state::StateError::NoLocation.into());
        };
        if let Ok(client) = ApiClient::new(context) {
            // On failure, only the last rows may be missing.
            let _written = client.get("/api/v1/audit?limit=1", QUICK_TIMEOUT);
        }
        Ok(Self::Files(crate::audit::trail_directory(state)))
    }

    /// Returns the newest rows.
    pub(super) fn newest_rows(
        &self,
        filter: &AuditFilter,
        limit: u32,
    ) -> Result<TrailRows, CliFailure> {
        match self {
            Self::Files(directory) => {
                let page = MergedPage::read_newest(directory, filter, limit as usize);
                let page = page.map_err(|error| unreadable_trail(&error))?;
                let rows = page.rows.iter().map(RowText::to_json_line).collect();
                Ok(TrailRows {
                    rows,
                    next: page.next,
                })
            }
            Self::Gateway(client) => {
                let path = format!("/api/v1/audit?limit={limit}{}", filter_query(filter));
                parse_page(&client.get(&path, QUICK_TIMEOUT)?)
            }
        }
    }
}

/// Formats a filter as query parameters to append.
pub(super) fn filter_query(filter: &AuditFilter) -> String {
    let kind = filter.kind.map(|kind| kind.as_str().to_owned());
    let number = |number: Option<u64>| number.map(|number| number.to_string());
    let members = [
        ("principal", filter.principal.clone()),
        ("server", filter.server.clone()),
        ("kind", kind),
        ("from_ms", number(filter.from_ms)),
        ("to_ms", number(filter.to_ms)),
    ];
    let members = members.into_iter();
    let members = members.filter_map(|(key, value)| Some((key, value?)));
    members
        .map(|(key, value)| format!("&{key}={}", percent_encode(&value)))
        .collect()
}

/// Parses a page of rows from a response.
pub(super) fn parse_page(body: &[u8]) -> Result<TrailRows, CliFailure> {
    let page: TrailPage<'_> = api_types::parse_response(body)?;
    let rows = page.rows.iter().map(|row| row.get().to_owned()).collect();
    let next = page.next.parse().map_err(|_| {
        CliFailure::new(
            CliExit::Unexpected,
            "audit",
            "the gateway does not say how far it read",
        )
    })?;
    Ok(TrailRows { rows, next })
}

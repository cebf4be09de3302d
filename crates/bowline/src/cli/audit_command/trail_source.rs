//! Source of audit rows: the local files, with or without a gateway, or a remote gateway.

use std::path::PathBuf;
use std::time::Duration;

use bowline_api::audit_trail::{AuditQuery, AuditResponse};
use bowline_journal::audit::{AuditCursor, AuditFilter, MergedPage, RowText};

use super::super::CommandContext;
use super::super::api_client::{ApiClient, QUICK_TIMEOUT};
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
        Ok(Self::Files(bowline_edge::trail_directory(state)))
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
            Self::Gateway(client) => fetch_page(client, &filter_query(filter, limit as usize)),
        }
    }
}

/// Builds the query for the newest rows of a filter.
pub(super) fn filter_query(filter: &AuditFilter, limit: usize) -> AuditQuery {
    AuditQuery {
        limit: Some(limit),
        principal: filter.principal.clone(),
        server: filter.server.clone(),
        kind: filter.kind.map(|kind| kind.as_str().to_owned()),
        from_ms: filter.from_ms,
        to_ms: filter.to_ms,
        ..AuditQuery::default()
    }
}

/// Fetches a page of rows.
pub(super) fn fetch_page(client: &ApiClient, query: &AuditQuery) -> Result<TrailRows, CliFailure> {
    let wait = QUICK_TIMEOUT + Duration::from_millis(query.wait_ms);
    let path = api_types::with_query("/api/v1/audit", query)?;
    let page: AuditResponse = api_types::parse_response(&client.get(&path, wait)?)?;
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

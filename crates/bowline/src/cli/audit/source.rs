//! Where rows are read: the files of this machine, gateway or not, or a gateway elsewhere.

use std::path::PathBuf;

use bowline_journal::audit::{Cursor, Filter, Merged, RowText};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::super::Context;
use super::super::api;
use super::super::client::{Client, QUICK, encode};
use super::super::daemon::Finder;
use super::super::failure::{Exit, Failure};
use super::unreadable;

/// Where a trail is.
#[derive(Debug)]
pub(super) enum Source {
    /// In files that can be read without a gateway.
    Files(PathBuf),
    /// At a gateway that was named by its address.
    Gateway(Box<Client>),
}

/// Rows as text, each with its hash, and how far was looked.
#[derive(Debug)]
pub(super) struct Rows {
    pub(super) rows: Vec<String>,
    pub(super) next: Cursor,
}

#[derive(Debug, Deserialize)]
struct Page<'a> {
    #[serde(borrow)]
    rows: Vec<&'a RawValue>,
    next: &'a str,
}

impl Source {
    /// Finds the trail. A gateway that runs here writes down first what it has in hand.
    pub(super) fn find(context: &Context) -> Result<Self, Failure> {
        let finder = Finder::new(context);
        if finder.is_fixed() {
            return Ok(Self::Gateway(Box::new(Client::new(context)?)));
        }
        let Some(state) = &finder.state else {
            return Err(crate::state::Error::Homeless.into());
        };
        if let Ok(client) = Client::new(context) {
            // Failing, a row of the last moment is missing from what is read.
            let _written = client.get("/api/v1/audit?limit=1", QUICK);
        }
        Ok(Self::Files(crate::audit::directory(state)))
    }

    /// Returns the newest rows.
    pub(super) fn newest(&self, filter: &Filter, limit: u32) -> Result<Rows, Failure> {
        match self {
            Self::Files(directory) => {
                let page = Merged::newest(directory, filter, limit as usize);
                let page = page.map_err(|error| unreadable(&error))?;
                let rows = page.rows.iter().map(RowText::line).collect();
                Ok(Rows {
                    rows,
                    next: page.next,
                })
            }
            Self::Gateway(client) => {
                let path = format!("/api/v1/audit?limit={limit}{}", query(filter));
                read(&client.get(&path, QUICK)?)
            }
        }
    }
}

/// Returns what a filter is in a query, to be added to it.
pub(super) fn query(filter: &Filter) -> String {
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
        .map(|(key, value)| format!("&{key}={}", encode(&value)))
        .collect()
}

/// Reads what a gateway answered.
pub(super) fn read(body: &[u8]) -> Result<Rows, Failure> {
    let page: Page<'_> = api::read(body)?;
    let rows = page.rows.iter().map(|row| row.get().to_owned()).collect();
    let next = page.next.parse().map_err(|_| {
        Failure::new(
            Exit::Unexpected,
            "audit",
            "the gateway does not say how far it read",
        )
    })?;
    Ok(Rows { rows, next })
}

//! Filter of a `subscriptions/listen` request.

use bowline_core::subscriptions::{SUBSCRIPTIONS_MAX, URI_BYTES_MAX};
use bowline_wire::object;
use bowline_wire::splice::write_string;
use thiserror::Error;

use crate::client_session::ListChange;

/// Maximum number of resources per stream.
const RESOURCES_MAX: usize = SUBSCRIPTIONS_MAX;

/// Reason for rejecting a filter.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub(super) enum FilterError {
    /// Missing or not an object.
    #[error("subscriptions/listen needs an object `notifications`")]
    Missing,
    /// A list change is not a boolean.
    #[error("`{0}` must be true or false")]
    NotABool(&'static str),
    /// The resources are not a list of strings.
    #[error("`resourceSubscriptions` must be a list of URIs")]
    NotUris,
    /// Too many resources.
    #[error("`resourceSubscriptions` may hold {RESOURCES_MAX} URIs at most")]
    TooMany,
    /// A URI is too long.
    #[error("a URI in `resourceSubscriptions` may be {URI_BYTES_MAX} bytes long at most")]
    TooLong,
}

/// Notifications of a stream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ListenFilter {
    /// List changes, indexed like [`ListChange::ALL`].
    list_changes: [bool; ListChange::ALL.len()],
    /// Resources without duplicates, in the client's order.
    pub(super) resources: Vec<String>,
}

/// Returns the filter member of a list change.
const fn filter_key(change: ListChange) -> &'static str {
    match change {
        ListChange::Tools => "toolsListChanged",
        ListChange::Prompts => "promptsListChanged",
        ListChange::Resources => "resourcesListChanged",
    }
}

/// Returns the capability of a list.
const fn list_capability(change: ListChange) -> &'static str {
    match change {
        ListChange::Tools => "tools",
        ListChange::Prompts => "prompts",
        ListChange::Resources => "resources",
    }
}

impl ListenFilter {
    /// Parses the filter of a request. Unknown members are ignored.
    pub(super) fn parse(params: &[u8]) -> Result<Self, FilterError> {
        let at = object::field(params, "notifications").ok_or(FilterError::Missing)?;
        let notifications = at.slice(params);
        if notifications.first() != Some(&b'{') {
            return Err(FilterError::Missing);
        }
        let mut filter = Self::default();
        for (news, set) in ListChange::ALL.into_iter().zip(&mut filter.list_changes) {
            let value =
                object::field(notifications, filter_key(news)).map(|at| at.slice(notifications));
            *set = match value {
                Some(b"true") => true,
                None | Some(b"false") => false,
                Some(_) => return Err(FilterError::NotABool(filter_key(news))),
            };
        }
        if let Some(at) = object::field(notifications, "resourceSubscriptions") {
            filter.resources = parse_uris(at.slice(notifications))?;
        }
        Ok(filter)
    }

    /// Returns whether the filter includes a list change.
    pub(super) fn includes(&self, change: ListChange) -> bool {
        let mut all = ListChange::ALL.into_iter().zip(self.list_changes);
        all.any(|(one, set)| one == change && set)
    }

    /// Returns the filter limited to an endpoint's capabilities, without resources, since resources
    /// are subscribed individually.
    pub(super) fn restrict_to(&self, capabilities: &[u8]) -> Self {
        let mut offered = Self::default();
        for (change, set) in ListChange::ALL.into_iter().zip(&mut offered.list_changes) {
            *set = self.includes(change)
                && object::field(capabilities, list_capability(change)).is_some();
        }
        offered
    }

    /// Writes the filter as JSON.
    pub(super) fn write(&self, out: &mut Vec<u8>) {
        out.push(b'{');
        let included = ListChange::ALL
            .into_iter()
            .filter(|change| self.includes(*change));
        for change in included {
            write_separator(out);
            write_string(out, filter_key(change));
            out.extend_from_slice(b":true");
        }
        if !self.resources.is_empty() {
            write_separator(out);
            out.extend_from_slice(b"\"resourceSubscriptions\":[");
            for uri in &self.resources {
                if out.last() != Some(&b'[') {
                    out.push(b',');
                }
                write_string(out, uri);
            }
            out.push(b']');
        }
        out.push(b'}');
    }
}

fn write_separator(out: &mut Vec<u8>) {
    if out.last() != Some(&b'{') {
        out.push(b',');
    }
}

fn parse_uris(list: &[u8]) -> Result<Vec<String>, FilterError> {
    if list.first() != Some(&b'[') {
        return Err(FilterError::NotUris);
    }
    let mut known = std::collections::HashSet::new();
    let mut uris = Vec::new();
    for item in object::items(list) {
        let uri = object::parse_string(item.slice(list)).ok_or(FilterError::NotUris)?;
        if uri.len() > URI_BYTES_MAX {
            return Err(FilterError::TooLong);
        }
        if known.insert(uri.clone()) {
            uris.push(uri.into_owned());
        }
        if uris.len() > RESOURCES_MAX {
            return Err(FilterError::TooMany);
        }
    }
    Ok(uris)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_filter(filter: &str) -> Result<ListenFilter, FilterError> {
        ListenFilter::parse(format!(r#"{{"_meta":{{}},"notifications":{filter}}}"#).as_bytes())
    }

    fn filter_text(filter: &ListenFilter) -> String {
        let mut out = Vec::new();
        filter.write(&mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn filter_round_trips() {
        for same in [
            "{}",
            r#"{"toolsListChanged":true}"#,
            r#"{"promptsListChanged":true,"resourcesListChanged":true}"#,
            r#"{"toolsListChanged":true,"resourceSubscriptions":["a:\"b","c"]}"#,
        ] {
            assert_eq!(filter_text(&parse_filter(same).unwrap()), same);
        }
        let odd = r#"{"toolsListChanged":false,"later":[1],"resourceSubscriptions":["a","a"]}"#;
        let odd = parse_filter(odd).unwrap();
        assert_eq!(filter_text(&odd), r#"{"resourceSubscriptions":["a"]}"#);
    }

    #[test]
    fn filter_is_limited_to_capabilities() {
        let all =
            r#"{"toolsListChanged":true,"promptsListChanged":true,"resourceSubscriptions":["a"]}"#;
        let offered = parse_filter(all)
            .unwrap()
            .restrict_to(br#"{"tools":{},"resources":{}}"#);
        assert_eq!(filter_text(&offered), r#"{"toolsListChanged":true}"#);
    }

    #[test]
    fn malformed_filter_is_refused() {
        assert_eq!(ListenFilter::parse(b"{}"), Err(FilterError::Missing));
        for (bad, why) in [
            ("[]", FilterError::Missing),
            (
                r#"{"toolsListChanged":1}"#,
                FilterError::NotABool("toolsListChanged"),
            ),
            (r#"{"resourceSubscriptions":"a"}"#, FilterError::NotUris),
            (r#"{"resourceSubscriptions":[1]}"#, FilterError::NotUris),
        ] {
            assert_eq!(parse_filter(bad), Err(why), "{bad}");
        }
        let long = "x".repeat(URI_BYTES_MAX + 1);
        let long = format!(r#"{{"resourceSubscriptions":["{long}"]}}"#);
        assert_eq!(parse_filter(&long), Err(FilterError::TooLong));
        let many: Vec<_> = (0..=RESOURCES_MAX)
            .map(|one| format!("\"{one}\""))
            .collect();
        let many = format!(r#"{{"resourceSubscriptions":[{}]}}"#, many.join(","));
        assert_eq!(parse_filter(&many), Err(FilterError::TooMany));
    }
}

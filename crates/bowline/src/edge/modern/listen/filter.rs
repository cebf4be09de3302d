//! What a caller wants to hear of, as it says, and what of that it will.

use bowline_core::subscriptions::{SUBSCRIPTIONS_MAX, URI_BYTES_MAX};
use bowline_wire::object;
use bowline_wire::splice::write_string;
use thiserror::Error;

use crate::edge::session::News;

/// Resources that one stream tells of.
const RESOURCES_MAX: usize = SUBSCRIPTIONS_MAX;

/// Why nobody can tell what a caller wants to hear of.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub(super) enum BadFilter {
    /// There is none.
    #[error("subscriptions/listen needs an object `notifications`")]
    None,
    /// A kind of change is neither wanted nor not.
    #[error("`{0}` must be true or false")]
    NotABool(&'static str),
    /// The resources are no list of texts.
    #[error("`resourceSubscriptions` must be a list of URIs")]
    NotUris,
    /// There are too many.
    #[error("`resourceSubscriptions` may hold {RESOURCES_MAX} URIs at most")]
    TooMany,
    /// One is too long.
    #[error("a URI in `resourceSubscriptions` may be {URI_BYTES_MAX} bytes long at most")]
    TooLong,
}

/// What a stream tells of.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Filter {
    /// Lists, each at its place in [`News::ALL`].
    lists: [bool; News::ALL.len()],
    /// Resources, each once and in the order of the caller.
    pub(super) resources: Vec<String>,
}

/// Returns the member of the filter that stands for a list.
const fn key(news: News) -> &'static str {
    match news {
        News::Tools => "toolsListChanged",
        News::Prompts => "promptsListChanged",
        News::Resources => "resourcesListChanged",
    }
}

/// Returns the capability that a list belongs to.
const fn capability(news: News) -> &'static str {
    match news {
        News::Tools => "tools",
        News::Prompts => "prompts",
        News::Resources => "resources",
    }
}

impl Filter {
    /// Reads the filter of a request. Members that nobody here knows are not wanted.
    pub(super) fn read(params: &[u8]) -> Result<Self, BadFilter> {
        let at = object::field(params, "notifications").ok_or(BadFilter::None)?;
        let wanted = at.of(params);
        if wanted.first() != Some(&b'{') {
            return Err(BadFilter::None);
        }
        let mut filter = Self::default();
        for (news, set) in News::ALL.into_iter().zip(&mut filter.lists) {
            let said = object::field(wanted, key(news)).map(|at| at.of(wanted));
            *set = match said {
                Some(b"true") => true,
                None | Some(b"false") => false,
                Some(_) => return Err(BadFilter::NotABool(key(news))),
            };
        }
        if let Some(at) = object::field(wanted, "resourceSubscriptions") {
            filter.resources = uris(at.of(wanted))?;
        }
        Ok(filter)
    }

    /// Whether changes of this list are told.
    pub(super) fn has(&self, news: News) -> bool {
        let mut all = News::ALL.into_iter().zip(self.lists);
        all.any(|(one, set)| one == news && set)
    }

    /// Returns what of it an endpoint with these capabilities tells; resources are asked for one
    /// by one.
    pub(super) fn offered(&self, capabilities: &[u8]) -> Self {
        let mut offered = Self::default();
        for (news, set) in News::ALL.into_iter().zip(&mut offered.lists) {
            *set = self.has(news) && object::field(capabilities, capability(news)).is_some();
        }
        offered
    }

    /// Writes it as its caller would.
    pub(super) fn write(&self, out: &mut Vec<u8>) {
        out.push(b'{');
        let told = News::ALL.into_iter().filter(|news| self.has(*news));
        for news in told {
            separate(out);
            write_string(out, key(news));
            out.extend_from_slice(b":true");
        }
        if !self.resources.is_empty() {
            separate(out);
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

fn separate(out: &mut Vec<u8>) {
    if out.last() != Some(&b'{') {
        out.push(b',');
    }
}

fn uris(list: &[u8]) -> Result<Vec<String>, BadFilter> {
    if list.first() != Some(&b'[') {
        return Err(BadFilter::NotUris);
    }
    let mut known = std::collections::HashSet::new();
    let mut uris = Vec::new();
    for item in object::items(list) {
        let uri = object::string(item.of(list)).ok_or(BadFilter::NotUris)?;
        if uri.len() > URI_BYTES_MAX {
            return Err(BadFilter::TooLong);
        }
        if known.insert(uri.clone()) {
            uris.push(uri.into_owned());
        }
        if uris.len() > RESOURCES_MAX {
            return Err(BadFilter::TooMany);
        }
    }
    Ok(uris)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(filter: &str) -> Result<Filter, BadFilter> {
        Filter::read(format!(r#"{{"_meta":{{}},"notifications":{filter}}}"#).as_bytes())
    }

    fn written(filter: &Filter) -> String {
        let mut out = Vec::new();
        filter.write(&mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_filter_reads_back_as_it_was_written() {
        for same in [
            "{}",
            r#"{"toolsListChanged":true}"#,
            r#"{"promptsListChanged":true,"resourcesListChanged":true}"#,
            r#"{"toolsListChanged":true,"resourceSubscriptions":["a:\"b","c"]}"#,
        ] {
            assert_eq!(written(&read(same).unwrap()), same);
        }
        let odd = r#"{"toolsListChanged":false,"later":[1],"resourceSubscriptions":["a","a"]}"#;
        let odd = read(odd).unwrap();
        assert_eq!(written(&odd), r#"{"resourceSubscriptions":["a"]}"#);
    }

    #[test]
    fn only_what_the_endpoint_has_is_told() {
        let all =
            r#"{"toolsListChanged":true,"promptsListChanged":true,"resourceSubscriptions":["a"]}"#;
        let offered = read(all)
            .unwrap()
            .offered(br#"{"tools":{},"resources":{}}"#);
        assert_eq!(written(&offered), r#"{"toolsListChanged":true}"#);
    }

    #[test]
    fn a_filter_that_says_nothing_sensible_is_refused() {
        assert_eq!(Filter::read(b"{}"), Err(BadFilter::None));
        for (bad, why) in [
            ("[]", BadFilter::None),
            (
                r#"{"toolsListChanged":1}"#,
                BadFilter::NotABool("toolsListChanged"),
            ),
            (r#"{"resourceSubscriptions":"a"}"#, BadFilter::NotUris),
            (r#"{"resourceSubscriptions":[1]}"#, BadFilter::NotUris),
        ] {
            assert_eq!(read(bad), Err(why), "{bad}");
        }
        let long = "x".repeat(URI_BYTES_MAX + 1);
        let long = format!(r#"{{"resourceSubscriptions":["{long}"]}}"#);
        assert_eq!(read(&long), Err(BadFilter::TooLong));
        let many: Vec<_> = (0..=RESOURCES_MAX)
            .map(|one| format!("\"{one}\""))
            .collect();
        let many = format!(r#"{{"resourceSubscriptions":[{}]}}"#, many.join(","));
        assert_eq!(read(&many), Err(BadFilter::TooMany));
    }
}

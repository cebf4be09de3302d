//! URI templates, as far as needed to attribute a URI to a server.

/// Longer URIs match no template.
const URI_BYTES_MAX: usize = 8 * 1024;

/// Templates with more parts are refused.
const PARTS_MAX: usize = 64;

/// A parsed template of RFC 6570.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UriTemplate(Vec<TemplatePart>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum TemplatePart {
    /// Literal bytes.
    Literal(Box<[u8]>),
    /// `{x}`: one or more bytes except slash.
    Segment,
    /// `{+x}`: any bytes.
    Rest,
    /// `{?x}` and similar operators: empty, or this byte followed by any bytes.
    Prefixed(u8),
}

impl UriTemplate {
    /// Parses a template; `None` if invalid or with too many parts.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = Vec::new();
        let mut rest = text;
        while let Some((literal, after)) = rest.split_once('{') {
            let (expression, after) = after.split_once('}')?;
            if !literal.is_empty() {
                parts.push(TemplatePart::Literal(literal.as_bytes().into()));
            }
            parts.push(TemplatePart::parse_expression(expression)?);
            rest = after;
        }
        if !rest.is_empty() {
            parts.push(TemplatePart::Literal(rest.as_bytes().into()));
        }
        let plain = !text.is_empty() && !rest.contains('}') && parts.len() <= PARTS_MAX;
        plain.then_some(Self(parts))
    }

    /// Whether the template can expand to `uri`.
    ///
    /// Tracks the set of reachable positions part by part, so the cost is bounded by parts times
    /// URI length.
    #[must_use]
    pub fn matches_uri(&self, uri: &str) -> bool {
        let uri = uri.as_bytes();
        let starts_alike = match self.0.first() {
            Some(TemplatePart::Literal(literal)) => uri.starts_with(literal),
            Some(_) | None => true,
        };
        if !starts_alike || uri.len() > URI_BYTES_MAX {
            return false;
        }
        let mut positions = vec![0];
        for part in &self.0 {
            positions = part.reachable_ends(uri, &positions);
            if positions.is_empty() {
                return false;
            }
        }
        positions.last() == Some(&uri.len())
    }
}

impl TemplatePart {
    fn parse_expression(expression: &str) -> Option<Self> {
        let first = *expression.as_bytes().first()?;
        match first {
            b'+' => Some(Self::Rest),
            b'#' | b'.' | b'/' | b';' | b'?' | b'&' => Some(Self::Prefixed(first)),
            _ if expression.contains('{') => None,
            _ => Some(Self::Segment),
        }
    }

    /// Returns the sorted end positions of this part for sorted start positions.
    fn reachable_ends(&self, uri: &[u8], positions: &[usize]) -> Vec<usize> {
        let after = |at: usize| uri.get(at..).unwrap_or_default();
        match self {
            Self::Literal(literal) => positions
                .iter()
                .filter(|at| after(**at).starts_with(literal))
                .map(|at| at + literal.len())
                .collect(),
            Self::Segment => {
                let mut starts = positions.iter().copied().peekable();
                // Whether a segment started earlier can continue.
                let mut open = false;
                let mut reached = Vec::new();
                for (at, byte) in uri.iter().enumerate() {
                    open |= starts.next_if_eq(&at).is_some();
                    open &= *byte != b'/';
                    if open {
                        reached.push(at + 1);
                    }
                }
                reached
            }
            Self::Rest => match positions.first() {
                Some(&at) => (at..=uri.len()).collect(),
                None => Vec::new(),
            },
            Self::Prefixed(lead) => {
                let led = positions.iter().find(|at| uri.get(**at) == Some(lead));
                let mut reached: Vec<usize> = positions.to_vec();
                if let Some(&led) = led {
                    reached.retain(|at| *at <= led);
                    reached.extend(led + 1..=uri.len());
                }
                reached
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn template_matches(template: &str, uri: &str) -> bool {
        UriTemplate::parse(template).unwrap().matches_uri(uri)
    }

    #[test]
    fn variable_matches_segment_reserved_matches_anything() {
        assert!(template_matches(
            "test://template/{id}/data",
            "test://template/123/data"
        ));
        assert!(!template_matches(
            "test://template/{id}/data",
            "test://template/1/2/data"
        ));
        assert!(!template_matches(
            "test://template/{id}/data",
            "test://template//data"
        ));
        assert!(!template_matches(
            "test://template/{id}",
            "test://template/1/"
        ));
        assert!(template_matches("file:///{+path}", "file:///a/b/c.txt"));
        assert!(template_matches("file:///{+path}", "file:///"));
        assert!(template_matches("{+any}/end", "x/end/y/end"));
        assert!(!template_matches("{+any}/end", "x/end/y"));
        assert!(template_matches("a{x}b{y}c", "abbbcbc"));
        assert!(!template_matches("a{x}b{y}c", "abc"));
        assert!(template_matches("plain:uri", "plain:uri"));
        assert!(!template_matches("plain:uri", "plain:uri2"));
        assert!(!template_matches("other:{x}", "plain:uri"));
    }

    #[test]
    fn query_expression_is_optional() {
        assert!(template_matches("db://t{?limit,page}", "db://t"));
        assert!(template_matches(
            "db://t{?limit,page}",
            "db://t?limit=3&page=/x"
        ));
        assert!(!template_matches("db://t{?limit}", "db://table"));
        assert!(template_matches("a{/path*}", "a/b/c"));
        assert!(template_matches("a{/path*}{?q}", "a?q=1"));
    }

    #[test]
    fn invalid_templates_do_not_parse() {
        for bad in ["", "a{b", "a}b", "{}", "a{{b}}", "{x}}"] {
            assert_eq!(UriTemplate::parse(bad), None, "{bad}");
        }
        assert_eq!(UriTemplate::parse(&"{x}".repeat(65)), None);
        assert!(!template_matches("{+x}", &"a".repeat(URI_BYTES_MAX + 1)));
    }

    /// Expands random templates and matches the results.
    #[test]
    fn template_matches_its_expansions() {
        let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
        let mut next = |below: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 33) % below
        };
        for _ in 0..20_000 {
            let (mut template, mut uri) = (String::new(), String::new());
            for _ in 0..=next(6) {
                let value: String = (0..=next(4))
                    .map(|_| ["a", "b", "/", ":", "?"][usize::try_from(next(5)).unwrap()])
                    .collect();
                match next(4) {
                    0 => {
                        template.push_str("{v}");
                        uri.push_str(&value.replace('/', "%2F"));
                    }
                    1 => {
                        template.push_str("{+v}");
                        uri.push_str(&value);
                    }
                    2 if next(2) == 0 => template.push_str("{?v}"),
                    2 => {
                        template.push_str("{?v}");
                        uri.push('?');
                        uri.push_str(&value);
                    }
                    _ => {
                        template.push_str(&value);
                        uri.push_str(&value);
                    }
                }
            }
            assert!(template_matches(&template, &uri), "{template} {uri}");
        }
    }

    #[test]
    fn adversarial_template_stays_fast() {
        let template = format!("{}!", "{a}{+b}".repeat(31));
        assert!(!template_matches(&template, &"a".repeat(URI_BYTES_MAX)));
    }
}

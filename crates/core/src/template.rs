//! URI templates, as far as is needed to tell whose resource a URI is.

/// A longer URI fits no template.
const URI_BYTES_MAX: usize = 8 * 1024;

/// A template of more parts fits no URI.
const PARTS_MAX: usize = 64;

/// A template of RFC 6570, ready to be held against URIs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template(Vec<Part>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    /// These bytes.
    Literal(Box<[u8]>),
    /// `{x}`: at least one byte, none of them a slash.
    Segment,
    /// `{+x}`: anything.
    Rest,
    /// `{?x}` and the other operators: nothing, or this byte and anything.
    Led(u8),
}

impl Template {
    /// Reads a template; nothing when it is not one, or has too many parts.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = Vec::new();
        let mut rest = text;
        while let Some((literal, after)) = rest.split_once('{') {
            let (expression, after) = after.split_once('}')?;
            if !literal.is_empty() {
                parts.push(Part::Literal(literal.as_bytes().into()));
            }
            parts.push(Part::of(expression)?);
            rest = after;
        }
        if !rest.is_empty() {
            parts.push(Part::Literal(rest.as_bytes().into()));
        }
        let plain = !text.is_empty() && !rest.contains('}') && parts.len() <= PARTS_MAX;
        plain.then_some(Self(parts))
    }

    /// Whether `uri` may have come from the template.
    ///
    /// Walks the set of places that can be reached part by part, so that no template takes more
    /// than its parts times the length of the URI.
    #[must_use]
    pub fn fits(&self, uri: &str) -> bool {
        let uri = uri.as_bytes();
        let starts_alike = match self.0.first() {
            Some(Part::Literal(literal)) => uri.starts_with(literal),
            Some(_) | None => true,
        };
        if !starts_alike || uri.len() > URI_BYTES_MAX {
            return false;
        }
        let mut places = vec![0];
        for part in &self.0 {
            places = part.pass(uri, &places);
            if places.is_empty() {
                return false;
            }
        }
        places.last() == Some(&uri.len())
    }
}

impl Part {
    fn of(expression: &str) -> Option<Self> {
        let first = *expression.as_bytes().first()?;
        match first {
            b'+' => Some(Self::Rest),
            b'#' | b'.' | b'/' | b';' | b'?' | b'&' => Some(Self::Led(first)),
            _ if expression.contains('{') => None,
            _ => Some(Self::Segment),
        }
    }

    /// Returns the places after this part, in order, given those before it, in order.
    fn pass(&self, uri: &[u8], places: &[usize]) -> Vec<usize> {
        let after = |at: usize| uri.get(at..).unwrap_or_default();
        match self {
            Self::Literal(literal) => places
                .iter()
                .filter(|at| after(**at).starts_with(literal))
                .map(|at| at + literal.len())
                .collect(),
            Self::Segment => {
                let mut starts = places.iter().copied().peekable();
                // Whether a segment that began at some place may still go on.
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
            Self::Rest => match places.first() {
                Some(&at) => (at..=uri.len()).collect(),
                None => Vec::new(),
            },
            Self::Led(lead) => {
                let led = places.iter().find(|at| uri.get(**at) == Some(lead));
                let mut reached: Vec<usize> = places.to_vec();
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

    fn fits(template: &str, uri: &str) -> bool {
        Template::parse(template).unwrap().fits(uri)
    }

    #[test]
    fn a_variable_is_one_segment_and_a_reserved_one_is_anything() {
        assert!(fits(
            "test://template/{id}/data",
            "test://template/123/data"
        ));
        assert!(!fits(
            "test://template/{id}/data",
            "test://template/1/2/data"
        ));
        assert!(!fits("test://template/{id}/data", "test://template//data"));
        assert!(!fits("test://template/{id}", "test://template/1/"));
        assert!(fits("file:///{+path}", "file:///a/b/c.txt"));
        assert!(fits("file:///{+path}", "file:///"));
        assert!(fits("{+any}/end", "x/end/y/end"));
        assert!(!fits("{+any}/end", "x/end/y"));
        assert!(fits("a{x}b{y}c", "abbbcbc"));
        assert!(!fits("a{x}b{y}c", "abc"));
        assert!(fits("plain:uri", "plain:uri"));
        assert!(!fits("plain:uri", "plain:uri2"));
        assert!(!fits("other:{x}", "plain:uri"));
    }

    #[test]
    fn a_query_may_be_there_or_not() {
        assert!(fits("db://t{?limit,page}", "db://t"));
        assert!(fits("db://t{?limit,page}", "db://t?limit=3&page=/x"));
        assert!(!fits("db://t{?limit}", "db://table"));
        assert!(fits("a{/path*}", "a/b/c"));
        assert!(fits("a{/path*}{?q}", "a?q=1"));
    }

    #[test]
    fn what_is_not_a_template_is_nothing() {
        for bad in ["", "a{b", "a}b", "{}", "a{{b}}", "{x}}"] {
            assert_eq!(Template::parse(bad), None, "{bad}");
        }
        assert_eq!(Template::parse(&"{x}".repeat(65)), None);
        assert!(!fits("{+x}", &"a".repeat(URI_BYTES_MAX + 1)));
    }

    /// Expands with values that the variables may have, and looks whether the result fits.
    #[test]
    fn whatever_a_template_expands_to_fits_it() {
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
            assert!(fits(&template, &uri), "{template} {uri}");
        }
    }

    #[test]
    fn a_template_made_to_be_slow_is_not() {
        let template = format!("{}!", "{a}{+b}".repeat(31));
        assert!(!fits(&template, &"a".repeat(URI_BYTES_MAX)));
    }
}

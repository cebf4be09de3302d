//! W3C trace context of a call, parsed and written.

use std::fmt;

/// Length of a `traceparent` of version 00.
pub const TRACEPARENT_BYTES: usize = 55;

/// Longer `tracestate` values are dropped.
pub const TRACESTATE_BYTES_MAX: usize = 512;

/// Name of the trace context, as a header and as a `_meta` member.
pub const TRACEPARENT: &str = "traceparent";

/// Name of the vendor-specific trace state.
pub const TRACESTATE: &str = "tracestate";

/// Flag: the caller records this trace.
const SAMPLED: u8 = 1;

/// The version forbidden by the standard.
const FORBIDDEN_VERSION: u8 = 0xff;

/// A trace id; never all zeroes.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct TraceId([u8; 16]);

/// A span id; never all zeroes.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct SpanId([u8; 8]);

impl TraceId {
    /// Returns an id from bytes.
    #[must_use]
    pub fn new(bytes: [u8; 16]) -> Option<Self> {
        (bytes != [0; 16]).then_some(Self(bytes))
    }

    /// Parses lower-case hexadecimal.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        Self::new(parse_hex(text.as_bytes())?)
    }

    /// Returns a number from 0 to 1, equal on every node for the same trace.
    #[must_use]
    pub fn sampling_ratio(self) -> f64 {
        let [.., a, b, c, d] = self.0;
        f64::from(u32::from_be_bytes([a, b, c, d])) / f64::from(u32::MAX)
    }
}

impl SpanId {
    /// Returns an id from bytes.
    #[must_use]
    pub fn new(bytes: [u8; 8]) -> Option<Self> {
        (bytes != [0; 8]).then_some(Self(bytes))
    }

    /// Parses lower-case hexadecimal.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        Self::new(parse_hex(text.as_bytes())?)
    }
}

impl fmt::Display for TraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_hex(f, &self.0)
    }
}

impl fmt::Display for SpanId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_hex(f, &self.0)
    }
}

impl fmt::Debug for TraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_hex(f, &self.0)
    }
}

impl fmt::Debug for SpanId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_hex(f, &self.0)
    }
}

/// A span as propagated; displays as a `traceparent`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceContext {
    /// The trace.
    pub trace: TraceId,
    /// The parent span of the following work.
    pub span: SpanId,
    /// The trace flags.
    pub flags: u8,
}

impl TraceContext {
    /// Returns a sampled span.
    #[must_use]
    pub const fn new_sampled(trace: TraceId, span: SpanId) -> Self {
        Self {
            trace,
            span,
            flags: SAMPLED,
        }
    }

    /// Whether the span's creator records the span.
    #[must_use]
    pub const fn is_sampled(self) -> bool {
        self.flags & SAMPLED != 0
    }

    /// Parses a `traceparent`. Later versions are parsed as version 00, as the standard demands;
    /// `None` if invalid.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (head, more) = text.as_bytes().split_at_checked(TRACEPARENT_BYTES)?;
        let mut parts = head.split(|byte| *byte == b'-');
        let [version] = parse_hex(parts.next()?)?;
        let trace = TraceId::new(parse_hex(parts.next()?)?)?;
        let span = SpanId::new(parse_hex(parts.next()?)?)?;
        let [flags] = parse_hex(parts.next()?)?;
        let ends = match version {
            0 => more.is_empty(),
            FORBIDDEN_VERSION => false,
            _ => more.is_empty() || more.starts_with(b"-"),
        };
        (ends && parts.next().is_none()).then_some(Self { trace, span, flags })
    }
}

impl fmt::Display for TraceContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { trace, span, flags } = self;
        write!(f, "00-{trace}-{span}-{flags:02x}")
    }
}

/// The trace position of one call, and the context sent upstream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallTrace {
    /// The parent span of the server's work: the gateway's span if recorded, else the client's.
    pub context: TraceContext,
    /// The `tracestate` as received.
    pub trace_state: Option<Box<str>>,
    /// The client's span, if the gateway records a child span.
    pub parent_span: Option<SpanId>,
    /// Whether the gateway records a span.
    pub is_recorded: bool,
    /// Whether the call parameters already contain this context.
    pub in_params: bool,
}

impl CallTrace {
    /// Parses a client's trace context; `None` without a valid `traceparent`. An invalid
    /// `tracestate` is dropped.
    #[must_use]
    pub fn parse(parent: &str, state: Option<&str>) -> Option<Self> {
        Some(Self {
            context: TraceContext::parse(parent)?,
            trace_state: state.filter(|state| is_valid_state(state)).map(Box::from),
            parent_span: None,
            is_recorded: false,
            in_params: false,
        })
    }
}

/// Whether a `tracestate` fits a header and the length limit. The grammar is not checked.
fn is_valid_state(state: &str) -> bool {
    let fits = |byte: u8| byte == b'\t' || (b' '..=b'~').contains(&byte);
    !state.is_empty() && state.len() <= TRACESTATE_BYTES_MAX && state.bytes().all(fits)
}

/// Parses exactly `N` bytes of lower-case hexadecimal.
fn parse_hex<const N: usize>(text: &[u8]) -> Option<[u8; N]> {
    let (pairs, []) = text.as_chunks::<2>() else {
        return None;
    };
    if pairs.len() != N {
        return None;
    }
    let mut bytes = [0; N];
    for (byte, [high, low]) in bytes.iter_mut().zip(pairs) {
        *byte = hex_digit(*high)? << 4 | hex_digit(*low)?;
    }
    Some(bytes)
}

const fn hex_digit(byte: u8) -> Option<u8> {
    match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    }
}

fn write_hex(f: &mut fmt::Formatter<'_>, bytes: &[u8]) -> fmt::Result {
    bytes.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    #[test]
    fn trace_context_round_trips() {
        let context = TraceContext::parse(GOOD).unwrap();
        assert_eq!(context.to_string(), GOOD);
        assert_eq!(context.trace.to_string(), GOOD[3..35]);
        assert_eq!(context.span.to_string(), GOOD[36..52]);
        assert!(context.is_sampled());
        let unsampled = GOOD.replace("-01", "-80");
        assert!(!TraceContext::parse(&unsampled).unwrap().is_sampled());
        assert_eq!(
            TraceContext::parse(&unsampled).unwrap().to_string(),
            unsampled
        );
    }

    #[test]
    fn later_version_is_read_leniently() {
        for later in [
            GOOD.replacen("00-", "01-", 1),
            format!("{}-what-comes", GOOD.replacen("00-", "cc-", 1)),
        ] {
            assert_eq!(
                TraceContext::parse(&later),
                TraceContext::parse(GOOD),
                "{later}"
            );
        }
    }

    #[test]
    fn invalid_context_is_ignored() {
        for bad in [
            String::new(),
            GOOD[..54].to_owned(),
            format!("{GOOD}-x"),
            format!("{GOOD} "),
            format!(" {GOOD}"),
            GOOD.to_uppercase(),
            GOOD.replacen("00-", "ff-", 1),
            GOOD.replacen("00-", "01-", 1) + "x",
            GOOD.replacen('-', "_", 1),
            GOOD.replace("b7ad6b7169203331", "0000000000000000"),
            GOOD.replace("0af7651916cd43dd8448eb211c80319c", &"0".repeat(32)),
            GOOD.replace("0af7", "0ag7"),
            GOOD.replace("0af7", "0-f7"),
            GOOD.replace("-01", "-0é").replace("00-0", "00-"),
        ] {
            assert_eq!(TraceContext::parse(&bad), None, "{bad}");
        }
    }

    #[test]
    fn invalid_trace_state_is_dropped() {
        let state = |state: &str| CallTrace::parse(GOOD, Some(state)).unwrap().trace_state;
        assert_eq!(state("a=1,b=2").as_deref(), Some("a=1,b=2"));
        for bad in ["", "a=1\r\nx: y", "a=é", &"a".repeat(513)] {
            assert_eq!(state(bad), None, "{bad:?}");
        }
        assert_eq!(CallTrace::parse("no", Some("a=1")), None);
    }

    #[test]
    fn sampling_ratio_is_between_zero_and_one() {
        let id = |last: u8| TraceId::new([last; 16]).unwrap();
        assert!(id(1).sampling_ratio() < 0.01);
        assert!((0.5..0.51).contains(&id(0x80).sampling_ratio()));
        assert_eq!(id(0xff).sampling_ratio(), 1.0);
        assert_eq!(TraceId::new([0; 16]), None);
        assert_eq!(SpanId::new([0; 8]), None);
    }
}

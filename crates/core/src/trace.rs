//! Where a call stands in a distributed trace: W3C trace context, read and written.

use std::fmt;

/// The length of a `traceparent` of the version that is written here.
pub const TRACEPARENT_BYTES: usize = 55;

/// A `tracestate` that is longer is not passed on.
pub const TRACESTATE_BYTES_MAX: usize = 512;

/// The name under which the context travels, as a header and as a member of `_meta`.
pub const TRACEPARENT: &str = "traceparent";

/// The name under which vendors' notes on it travel.
pub const TRACESTATE: &str = "tracestate";

/// The flag that says that the caller records this trace.
const SAMPLED: u8 = 1;

/// The version that no `traceparent` may have.
const FORBIDDEN_VERSION: u8 = 0xff;

/// Names a trace: never all zeroes.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct TraceId([u8; 16]);

/// Names a span of a trace: never all zeroes.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct SpanId([u8; 8]);

impl TraceId {
    /// Returns the id of these bytes.
    #[must_use]
    pub fn new(bytes: [u8; 16]) -> Option<Self> {
        (bytes != [0; 16]).then_some(Self(bytes))
    }

    /// Reads the lower-case hexadecimal form.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        Self::new(hex(text.as_bytes())?)
    }

    /// Returns a number from 0 to 1 that is the same wherever this trace is seen.
    #[must_use]
    pub fn share(self) -> f64 {
        let [.., a, b, c, d] = self.0;
        f64::from(u32::from_be_bytes([a, b, c, d])) / f64::from(u32::MAX)
    }
}

impl SpanId {
    /// Returns the id of these bytes.
    #[must_use]
    pub fn new(bytes: [u8; 8]) -> Option<Self> {
        (bytes != [0; 8]).then_some(Self(bytes))
    }

    /// Reads the lower-case hexadecimal form.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        Self::new(hex(text.as_bytes())?)
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

/// One span, as others are told of it. Its text is a `traceparent`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Context {
    /// The trace.
    pub trace: TraceId,
    /// The span that what follows is part of.
    pub span: SpanId,
    /// What else is said of it, as it came.
    pub flags: u8,
}

impl Context {
    /// Returns a span that is recorded.
    #[must_use]
    pub const fn recorded(trace: TraceId, span: SpanId) -> Self {
        Self {
            trace,
            span,
            flags: SAMPLED,
        }
    }

    /// Whether whoever made it records it.
    #[must_use]
    pub const fn is_sampled(self) -> bool {
        self.flags & SAMPLED != 0
    }

    /// Reads a `traceparent`. One of a later version is read as far as this one goes, as the
    /// standard asks for; nothing where it is not valid.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (known, more) = text.as_bytes().split_at_checked(TRACEPARENT_BYTES)?;
        let mut parts = known.split(|byte| *byte == b'-');
        let [version] = hex(parts.next()?)?;
        let trace = TraceId::new(hex(parts.next()?)?)?;
        let span = SpanId::new(hex(parts.next()?)?)?;
        let [flags] = hex(parts.next()?)?;
        let ends = match version {
            0 => more.is_empty(),
            FORBIDDEN_VERSION => false,
            _ => more.is_empty() || more.starts_with(b"-"),
        };
        (ends && parts.next().is_none()).then_some(Self { trace, span, flags })
    }
}

impl fmt::Display for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { trace, span, flags } = self;
        write!(f, "00-{trace}-{span}-{flags:02x}")
    }
}

/// Where one call stands in a trace, and what its server is told of that.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace {
    /// The span that the server's work is part of: the gateway's own where it records one, else
    /// the caller's.
    pub context: Context,
    /// Vendors' notes, as they came.
    pub state: Option<Box<str>>,
    /// The caller's span, where the gateway records one of its own within it.
    pub parent: Option<SpanId>,
    /// Whether the gateway records a span of its own.
    pub recorded: bool,
    /// Whether the parameters of the call say all of this already.
    pub in_params: bool,
}

impl Trace {
    /// Reads what a caller sent; nothing where there is no valid context. Notes that cannot be
    /// passed on are left out.
    #[must_use]
    pub fn read(parent: &str, state: Option<&str>) -> Option<Self> {
        Some(Self {
            context: Context::parse(parent)?,
            state: state.filter(|state| is_state(state)).map(Box::from),
            parent: None,
            recorded: false,
            in_params: false,
        })
    }
}

/// Whether notes can stand in a header, and are not too long. Their grammar is their vendors'.
fn is_state(state: &str) -> bool {
    let fits = |byte: u8| byte == b'\t' || (b' '..=b'~').contains(&byte);
    !state.is_empty() && state.len() <= TRACESTATE_BYTES_MAX && state.bytes().all(fits)
}

/// Reads `N` bytes in lower-case hexadecimal, no more and no less.
fn hex<const N: usize>(text: &[u8]) -> Option<[u8; N]> {
    let (pairs, []) = text.as_chunks::<2>() else {
        return None;
    };
    if pairs.len() != N {
        return None;
    }
    let mut bytes = [0; N];
    for (byte, [high, low]) in bytes.iter_mut().zip(pairs) {
        *byte = digit(*high)? << 4 | digit(*low)?;
    }
    Some(bytes)
}

const fn digit(byte: u8) -> Option<u8> {
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
    fn a_context_is_written_as_it_was_read() {
        let context = Context::parse(GOOD).unwrap();
        assert_eq!(context.to_string(), GOOD);
        assert_eq!(context.trace.to_string(), GOOD[3..35]);
        assert_eq!(context.span.to_string(), GOOD[36..52]);
        assert!(context.is_sampled());
        let unsampled = GOOD.replace("-01", "-80");
        assert!(!Context::parse(&unsampled).unwrap().is_sampled());
        assert_eq!(Context::parse(&unsampled).unwrap().to_string(), unsampled);
    }

    #[test]
    fn a_later_version_is_read_as_far_as_it_is_known() {
        for later in [
            GOOD.replacen("00-", "01-", 1),
            format!("{}-what-comes", GOOD.replacen("00-", "cc-", 1)),
        ] {
            assert_eq!(Context::parse(&later), Context::parse(GOOD), "{later}");
        }
    }

    #[test]
    fn what_is_no_context_is_ignored() {
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
            assert_eq!(Context::parse(&bad), None, "{bad}");
        }
    }

    #[test]
    fn notes_that_fit_no_header_are_left_out_and_the_rest_is_kept() {
        let state = |state: &str| Trace::read(GOOD, Some(state)).unwrap().state;
        assert_eq!(state("a=1,b=2").as_deref(), Some("a=1,b=2"));
        for bad in ["", "a=1\r\nx: y", "a=é", &"a".repeat(513)] {
            assert_eq!(state(bad), None, "{bad:?}");
        }
        assert_eq!(Trace::read("no", Some("a=1")), None);
    }

    #[test]
    fn the_share_of_a_trace_lies_between_none_and_all() {
        let id = |last: u8| TraceId::new([last; 16]).unwrap();
        assert!(id(1).share() < 0.01);
        assert!((0.5..0.51).contains(&id(0x80).share()));
        assert_eq!(id(0xff).share(), 1.0);
        assert_eq!(TraceId::new([0; 16]), None);
        assert_eq!(SpanId::new([0; 8]), None);
    }
}

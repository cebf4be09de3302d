//! Control payloads of the executor protocol, in JSON.

use std::sync::Arc;

use bowline_core::error::ExecutionStatus;
use bowline_wire::object;
use bowline_wire::object_members::ObjectMembers;
use bowline_wire::object_writer::ObjectWriter;
use bowline_wire::splice::write_string;
use bytes::Bytes;

use super::FrameError;

/// The executor's introduction.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExecutorHello {
    /// The protocol revision.
    pub protocol_version: u64,
    /// The name.
    pub name: Arc<str>,
    /// Changes with every start of the executor; state of older instances is lost.
    pub instance: Arc<str>,
    /// Software and version.
    pub software: Arc<str>,
    /// The servers the executor can start.
    pub servers: Vec<Arc<str>>,
    /// Names of available secrets.
    pub secrets: Vec<Arc<str>>,
    /// Concurrent streams.
    pub streams_max: u64,
    /// Initial credit of a new stream.
    pub credit: u64,
}

const HELLO_MEMBERS: [&str; 8] = [
    "v",
    "name",
    "instance",
    "software",
    "servers",
    "secrets",
    "streams_max",
    "credit",
];

impl ExecutorHello {
    pub(super) fn parse(payload: &Bytes) -> Result<Self, FrameError> {
        let members = ObjectMembers::parse(payload, &HELLO_MEMBERS)?;
        Ok(Self {
            protocol_version: members
                .optional_number("v")?
                .ok_or(FrameError::Member("v"))?,
            name: members.required_text("name")?,
            instance: members.required_text("instance")?,
            software: members.optional_text("software")?.unwrap_or_default(),
            servers: parse_texts(&members, "servers")?,
            secrets: parse_texts(&members, "secrets")?,
            streams_max: members.optional_number("streams_max")?.unwrap_or_default(),
            credit: members.optional_number("credit")?.unwrap_or_default(),
        })
    }

    pub(super) fn to_vec(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(256);
        ObjectWriter::begin(&mut out)
            .number("v", self.protocol_version)
            .text("name", &self.name)
            .text("instance", &self.instance)
            .text("software", &self.software)
            .value_with("servers", |out| write_texts(&self.servers, out))
            .value_with("secrets", |out| write_texts(&self.secrets, out))
            .number("streams_max", self.streams_max)
            .number("credit", self.credit)
            .end();
        out
    }
}

fn parse_texts<const N: usize>(
    members: &ObjectMembers<'_, N>,
    name: &'static str,
) -> Result<Vec<Arc<str>>, FrameError> {
    let Some(list) = members.optional_raw(name, b'[')? else {
        return Ok(Vec::new());
    };
    let texts =
        object::items(&list).map(|span| object::parse_string(span.slice(&list)).map(Arc::from));
    let texts: Option<Vec<_>> = texts.collect();
    texts.ok_or(FrameError::Member(name))
}

fn write_texts(texts: &[Arc<str>], out: &mut Vec<u8>) {
    out.push(b'[');
    for (at, text) in texts.iter().enumerate() {
        if at > 0 {
            out.push(b',');
        }
        write_string(out, text);
    }
    out.push(b']');
}

/// Resume point of one stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamMark {
    /// The stream.
    pub stream: u64,
    /// Received bytes; the peer continues from this offset.
    pub received: u64,
    /// Credit from this offset.
    pub credit: u64,
}

/// The gateway's request to open a session.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OpenSession {
    /// The protocol revision.
    pub protocol_version: u64,
    /// The session; a new session if unknown to the executor.
    pub session: Arc<str>,
    /// The gateway's server streams in the session.
    pub marks: Vec<StreamMark>,
}

/// The executor's reply. Servers of the session without a mark are gone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OpenSessionReply {
    /// Whether the session was resumed.
    pub is_resumed: bool,
    /// The executor's server streams in the session.
    pub marks: Vec<StreamMark>,
}

const OPEN_MEMBERS: [&str; 3] = ["v", "session", "marks"];

const OPEN_REPLY_MEMBERS: [&str; 2] = ["resumed", "marks"];

const MARK_MEMBERS: [&str; 3] = ["stream", "received", "credit"];

impl OpenSession {
    pub(super) fn parse(payload: &Bytes) -> Result<Self, FrameError> {
        let members = ObjectMembers::parse(payload, &OPEN_MEMBERS)?;
        Ok(Self {
            protocol_version: members
                .optional_number("v")?
                .ok_or(FrameError::Member("v"))?,
            session: members.required_text("session")?,
            marks: parse_marks(&members)?,
        })
    }

    pub(super) fn to_vec(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(128);
        ObjectWriter::begin(&mut out)
            .number("v", self.protocol_version)
            .text("session", &self.session)
            .value_with("marks", |out| write_marks(&self.marks, out))
            .end();
        out
    }
}

impl OpenSessionReply {
    pub(super) fn parse(payload: &Bytes) -> Result<Self, FrameError> {
        let members = ObjectMembers::parse(payload, &OPEN_REPLY_MEMBERS)?;
        Ok(Self {
            is_resumed: members.optional_flag("resumed")?.unwrap_or_default(),
            marks: parse_marks(&members)?,
        })
    }

    pub(super) fn to_vec(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(128);
        ObjectWriter::begin(&mut out)
            .flag("resumed", self.is_resumed)
            .value_with("marks", |out| write_marks(&self.marks, out))
            .end();
        out
    }
}

fn parse_marks<const N: usize>(
    members: &ObjectMembers<'_, N>,
) -> Result<Vec<StreamMark>, FrameError> {
    let Some(list) = members.optional_raw("marks", b'[')? else {
        return Ok(Vec::new());
    };
    let mut marks = Vec::new();
    for span in object::items(&list) {
        let members = ObjectMembers::parse_at(&list, span, &MARK_MEMBERS, "marks")?;
        let number = |name| {
            members
                .optional_number(name)?
                .ok_or(FrameError::Member(name))
        };
        marks.push(StreamMark {
            stream: number("stream")?,
            received: number("received")?,
            credit: number("credit")?,
        });
    }
    Ok(marks)
}

fn write_marks(marks: &[StreamMark], out: &mut Vec<u8>) {
    out.push(b'[');
    for (at, mark) in marks.iter().enumerate() {
        if at > 0 {
            out.push(b',');
        }
        ObjectWriter::begin(out)
            .number("stream", mark.stream)
            .number("received", mark.received)
            .number("credit", mark.credit)
            .end();
    }
    out.push(b']');
}

/// Why a stream failed. Decisions use the code, never the text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamFault {
    /// The code.
    pub code: StreamFaultCode,
    /// Whether the request may have been processed.
    pub execution: ExecutionStatus,
    /// One clause for people, without details of a forbidden address.
    pub reason: Arc<str>,
}

/// Fault code of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamFaultCode {
    /// Denied by the egress rules.
    Denied,
    /// No connection.
    Unreachable,
    /// Connect timeout.
    ConnectTimeout,
    /// Timeout for the response head.
    FirstByteTimeout,
    /// The response head violates a limit or the grammar.
    Head,
    /// The connection was lost before the end.
    Lost,
    /// The request cannot be sent.
    Invalid,
    /// Unknown server.
    UnknownServer,
    /// Unknown secret, or not allowed for this address.
    UnknownSecret,
    /// Too many streams.
    Busy,
    /// The credit was exceeded.
    Overflow,
    /// A chunk is missing, duplicate or out of order.
    Order,
    /// The executor is shutting down.
    Closing,
}

const FAULT_WORDS: [(StreamFaultCode, &str); 13] = [
    (StreamFaultCode::Denied, "denied"),
    (StreamFaultCode::Unreachable, "unreachable"),
    (StreamFaultCode::ConnectTimeout, "connect_timeout"),
    (StreamFaultCode::FirstByteTimeout, "first_byte_timeout"),
    (StreamFaultCode::Head, "head"),
    (StreamFaultCode::Lost, "lost"),
    (StreamFaultCode::Invalid, "invalid"),
    (StreamFaultCode::UnknownServer, "unknown_server"),
    (StreamFaultCode::UnknownSecret, "unknown_secret"),
    (StreamFaultCode::Busy, "busy"),
    (StreamFaultCode::Overflow, "overflow"),
    (StreamFaultCode::Order, "order"),
    (StreamFaultCode::Closing, "closing"),
];

impl StreamFaultCode {
    /// Returns the wire word.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        let named = FAULT_WORDS.iter().find(|(code, _)| *code == self);
        named.map_or("lost", |(_, word)| word)
    }

    /// Parses the wire word; an unknown word means a lost stream.
    #[must_use]
    pub fn parse(word: &str) -> Self {
        let named = FAULT_WORDS.iter().find(|(_, known)| *known == word);
        named.map_or(Self::Lost, |(code, _)| *code)
    }
}

const FAULT_MEMBERS: [&str; 3] = ["code", "execution", "reason"];

impl StreamFault {
    pub(crate) fn parse(payload: &Bytes) -> Result<Self, FrameError> {
        let members = ObjectMembers::parse(payload, &FAULT_MEMBERS)?;
        let execution = members.optional_text("execution")?;
        Ok(Self {
            code: StreamFaultCode::parse(&members.required_text("code")?),
            // Unknown if absent.
            execution: execution
                .and_then(|word| ExecutionStatus::parse(&word))
                .unwrap_or(ExecutionStatus::Unknown),
            reason: members.optional_text("reason")?.unwrap_or_default(),
        })
    }

    pub(crate) fn to_vec(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(128);
        ObjectWriter::begin(&mut out)
            .text("code", self.code.as_str())
            .text("execution", self.execution.as_str())
            .text("reason", &self.reason)
            .end();
        out
    }
}

/// A request to start a server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StartServer {
    /// The name in the executor's configuration.
    pub server: Arc<str>,
    /// Initial credit for stdout.
    pub credit: u64,
}

const START_MEMBERS: [&str; 2] = ["server", "credit"];

impl StartServer {
    pub(super) fn parse(payload: &Bytes) -> Result<Self, FrameError> {
        let members = ObjectMembers::parse(payload, &START_MEMBERS)?;
        Ok(Self {
            server: members.required_text("server")?,
            credit: members.optional_number("credit")?.unwrap_or_default(),
        })
    }

    pub(super) fn to_vec(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(64);
        ObjectWriter::begin(&mut out)
            .text("server", &self.server)
            .number("credit", self.credit)
            .end();
        out
    }
}

/// The exit of a remote server, in the terms of a link's exit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServerExit {
    /// `status`, `signal`, `closed`, `overrun`, `memory`, `processes`, `stopping` or `gone`.
    pub cause: Arc<str>,
    /// The exit code, the signal or the limit.
    pub number: Option<u64>,
}

const EXIT_MEMBERS: [&str; 2] = ["how", "number"];

impl ServerExit {
    pub(super) fn parse(payload: &Bytes) -> Result<Self, FrameError> {
        let members = ObjectMembers::parse(payload, &EXIT_MEMBERS)?;
        Ok(Self {
            cause: members.required_text("how")?,
            number: members.optional_number("number")?,
        })
    }

    pub(super) fn to_vec(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(64);
        ObjectWriter::begin(&mut out)
            .text("how", &self.cause)
            .number_if("number", self.number)
            .end();
        out
    }
}

//! What is small and rare: JSON.

use std::sync::Arc;

use bowline_core::error::Execution;
use bytes::Bytes;

use super::FrameError;
use crate::members::Members;
use crate::object;
use crate::splice::write_string;
use crate::writer::Object;

/// What an executor says of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hello {
    /// The revision of the protocol.
    pub v: u64,
    /// What it is called.
    pub name: Arc<str>,
    /// Changes with every start of the executor: what an older one held is gone.
    pub instance: Arc<str>,
    /// Its software and version.
    pub software: Arc<str>,
    /// Servers that it can start.
    pub servers: Vec<Arc<str>>,
    /// Names of the secrets that it can fill in.
    pub secrets: Vec<Arc<str>>,
    /// Streams that it takes at once.
    pub streams_max: u64,
    /// Bytes that it takes of a new stream before it says that it takes more.
    pub credit: u64,
}

const HELLO: [&str; 8] = [
    "v",
    "name",
    "instance",
    "software",
    "servers",
    "secrets",
    "streams_max",
    "credit",
];

impl Hello {
    pub(super) fn read(said: &Bytes) -> Result<Self, FrameError> {
        let members = Members::of_text(said, &HELLO)?;
        Ok(Self {
            v: members.number_if("v")?.ok_or(FrameError::Member("v"))?,
            name: members.text("name")?,
            instance: members.text("instance")?,
            software: members.text_if("software")?.unwrap_or_default(),
            servers: texts(&members, "servers")?,
            secrets: texts(&members, "secrets")?,
            streams_max: members.number_if("streams_max")?.unwrap_or_default(),
            credit: members.number_if("credit")?.unwrap_or_default(),
        })
    }

    pub(super) fn to_vec(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(256);
        Object::bare(&mut out)
            .number("v", self.v)
            .text("name", &self.name)
            .text("instance", &self.instance)
            .text("software", &self.software)
            .nested("servers", |out| write_texts(&self.servers, out))
            .nested("secrets", |out| write_texts(&self.secrets, out))
            .number("streams_max", self.streams_max)
            .number("credit", self.credit)
            .end();
        out
    }
}

fn texts<const N: usize>(
    members: &Members<'_, N>,
    name: &'static str,
) -> Result<Vec<Arc<str>>, FrameError> {
    let Some(list) = members.begun(name, b'[')? else {
        return Ok(Vec::new());
    };
    let texts = object::items(&list).map(|span| object::string(span.of(&list)).map(Arc::from));
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

/// How far a stream of a server has come to one side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// The stream.
    pub stream: u64,
    /// How many bytes of it this side has: the other goes on behind them.
    pub received: u64,
    /// How many bytes it takes from there before it says that it takes more.
    pub credit: u64,
}

/// What a gateway opens.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Open {
    /// The revision of the protocol.
    pub v: u64,
    /// The session: a new one where the executor does not know it.
    pub session: Arc<str>,
    /// Servers of it that the gateway still has.
    pub marks: Vec<Mark>,
}

/// What an executor says to that. Servers of the session that are not named are gone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Opened {
    /// Whether the session was still there.
    pub resumed: bool,
    /// Servers of it that are still there.
    pub marks: Vec<Mark>,
}

const OPEN: [&str; 3] = ["v", "session", "marks"];

const OPENED: [&str; 2] = ["resumed", "marks"];

const MARK: [&str; 3] = ["stream", "received", "credit"];

impl Open {
    pub(super) fn read(said: &Bytes) -> Result<Self, FrameError> {
        let members = Members::of_text(said, &OPEN)?;
        Ok(Self {
            v: members.number_if("v")?.ok_or(FrameError::Member("v"))?,
            session: members.text("session")?,
            marks: marks(&members)?,
        })
    }

    pub(super) fn to_vec(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(128);
        Object::bare(&mut out)
            .number("v", self.v)
            .text("session", &self.session)
            .nested("marks", |out| write_marks(&self.marks, out))
            .end();
        out
    }
}

impl Opened {
    pub(super) fn read(said: &Bytes) -> Result<Self, FrameError> {
        let members = Members::of_text(said, &OPENED)?;
        Ok(Self {
            resumed: members.flag_if("resumed")?.unwrap_or_default(),
            marks: marks(&members)?,
        })
    }

    pub(super) fn to_vec(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(128);
        Object::bare(&mut out)
            .flag("resumed", self.resumed)
            .nested("marks", |out| write_marks(&self.marks, out))
            .end();
        out
    }
}

fn marks<const N: usize>(members: &Members<'_, N>) -> Result<Vec<Mark>, FrameError> {
    let Some(list) = members.begun("marks", b'[')? else {
        return Ok(Vec::new());
    };
    let mut marks = Vec::new();
    for span in object::items(&list) {
        let members = Members::inside(&list, span, &MARK, "marks")?;
        let number = |name| members.number_if(name)?.ok_or(FrameError::Member(name));
        marks.push(Mark {
            stream: number("stream")?,
            received: number("received")?,
            credit: number("credit")?,
        });
    }
    Ok(marks)
}

fn write_marks(marks: &[Mark], out: &mut Vec<u8>) {
    out.push(b'[');
    for (at, mark) in marks.iter().enumerate() {
        if at > 0 {
            out.push(b',');
        }
        Object::bare(out)
            .number("stream", mark.stream)
            .number("received", mark.received)
            .number("credit", mark.credit)
            .end();
    }
    out.push(b']');
}

/// Why a stream is over before its end. Decided by the code, never by the text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// What went wrong.
    pub code: FaultCode,
    /// Whether the request may have been carried out.
    pub execution: Execution,
    /// One clause for people; it tells nothing of what is at a forbidden address.
    pub reason: Arc<str>,
}

/// What went wrong with a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultCode {
    /// The executor may not go there.
    Denied,
    /// Nothing was reached.
    Unreachable,
    /// No connection in time.
    ConnectTimeout,
    /// No head of an answer in time.
    FirstByteTimeout,
    /// The head of the answer breaks a limit or the grammar.
    Head,
    /// The server went away before the end.
    Lost,
    /// What is asked for cannot be sent.
    Invalid,
    /// The executor has no such server.
    UnknownServer,
    /// The executor has no such secret, or not for this address.
    UnknownSecret,
    /// Too many streams.
    Busy,
    /// More came than was allowed.
    Overflow,
    /// A piece is missing, doubled or out of place.
    Order,
    /// The executor goes down.
    Closing,
}

const CODES: [(FaultCode, &str); 13] = [
    (FaultCode::Denied, "denied"),
    (FaultCode::Unreachable, "unreachable"),
    (FaultCode::ConnectTimeout, "connect_timeout"),
    (FaultCode::FirstByteTimeout, "first_byte_timeout"),
    (FaultCode::Head, "head"),
    (FaultCode::Lost, "lost"),
    (FaultCode::Invalid, "invalid"),
    (FaultCode::UnknownServer, "unknown_server"),
    (FaultCode::UnknownSecret, "unknown_secret"),
    (FaultCode::Busy, "busy"),
    (FaultCode::Overflow, "overflow"),
    (FaultCode::Order, "order"),
    (FaultCode::Closing, "closing"),
];

impl FaultCode {
    /// Returns the word on the wire.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        let named = CODES.iter().find(|(code, _)| *code == self);
        named.map_or("lost", |(_, word)| word)
    }

    /// Returns what a word means; an unknown one tells that the stream is lost.
    #[must_use]
    pub fn parse(word: &str) -> Self {
        let named = CODES.iter().find(|(_, known)| *known == word);
        named.map_or(Self::Lost, |(code, _)| *code)
    }
}

const FAULT: [&str; 3] = ["code", "execution", "reason"];

impl Fault {
    pub(crate) fn read(said: &Bytes) -> Result<Self, FrameError> {
        let members = Members::of_text(said, &FAULT)?;
        let execution = members.text_if("execution")?;
        Ok(Self {
            code: FaultCode::parse(&members.text("code")?),
            // Who does not say it cannot know it.
            execution: execution
                .and_then(|word| Execution::parse(&word))
                .unwrap_or(Execution::Unknown),
            reason: members.text_if("reason")?.unwrap_or_default(),
        })
    }

    pub(crate) fn to_vec(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(128);
        Object::bare(&mut out)
            .text("code", self.code.as_str())
            .text("execution", self.execution.as_str())
            .text("reason", &self.reason)
            .end();
        out
    }
}

/// A server that is to be started.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Start {
    /// Its name in the executor's own configuration.
    pub server: Arc<str>,
    /// How many bytes of its stdout may be sent before the gateway says that it takes more.
    pub credit: u64,
}

const START: [&str; 2] = ["server", "credit"];

impl Start {
    pub(super) fn read(said: &Bytes) -> Result<Self, FrameError> {
        let members = Members::of_text(said, &START)?;
        Ok(Self {
            server: members.text("server")?,
            credit: members.number_if("credit")?.unwrap_or_default(),
        })
    }

    pub(super) fn to_vec(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(64);
        Object::bare(&mut out)
            .text("server", &self.server)
            .number("credit", self.credit)
            .end();
        out
    }
}

/// How a server ended over there: the words of a link's own exits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Exited {
    /// `status`, `signal`, `closed`, `overrun`, `memory`, `processes`, `stopping` or `gone`.
    pub how: Arc<str>,
    /// The code, the signal or the limit.
    pub number: Option<u64>,
}

const EXITED: [&str; 2] = ["how", "number"];

impl Exited {
    pub(super) fn read(said: &Bytes) -> Result<Self, FrameError> {
        let members = Members::of_text(said, &EXITED)?;
        Ok(Self {
            how: members.text("how")?,
            number: members.number_if("number")?,
        })
    }

    pub(super) fn to_vec(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(64);
        Object::bare(&mut out)
            .text("how", &self.how)
            .number_if("number", self.number)
            .end();
        out
    }
}

//! The body of a request: what is wanted.

use std::sync::Arc;

use bytes::Bytes;

use super::context::Context;
use crate::frame::FrameError;
use crate::members::Members;
use crate::object;
use crate::scan::{self, Keys};
use crate::writer::Object;

/// What is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ask {
    /// `{"op":"manifest"}`: what the caller may use.
    Manifest,
    /// `{"op":"call","tool":..,"arguments":..}`: run a tool.
    Call {
        /// Its name among those of the manifest, or that of the server where one is named.
        tool: Arc<str>,
        /// The server, where the tool is meant by the server's own name.
        server: Option<Arc<str>>,
        /// What it is given.
        arguments: Arguments,
    },
    /// `{"op":"mcp","server":..,"method":..,"params":{..},"mcp":{..}}`: any other request of the
    /// protocol to one server. Live only, and between our own peers.
    Mcp {
        /// The server.
        server: Arc<str>,
        /// The method.
        method: Arc<str>,
        /// Its parameters, an object.
        params: Option<Bytes>,
        /// Who asks, and in which era.
        context: Context,
    },
}

/// The arguments of a call, exactly as they came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Arguments {
    /// One JSON object: it came as such, or as a string that holds one.
    Object(Bytes),
    /// One JSON object that is written as a string, the only form that peers of other systems
    /// read, and who asks. It reads back as [`Object`](Self::Object), or as
    /// [`Told`](Self::Told) where something is said of who asks.
    Text(Box<TextArguments>),
    /// All parameters of `tools/call`, `_meta` included (our own peers only: member `params`).
    Params(Bytes),
    /// The same with what the caller can be asked for and the era of the parameters (member `mcp`).
    Told(Box<Told>),
    /// There were none.
    None,
}

/// All parameters of `tools/call`, and who asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Told {
    /// The parameters.
    pub params: Bytes,
    /// Who asks, and in which era.
    pub context: Context,
}

/// Arguments that are written as text, and who asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TextArguments {
    /// The arguments, one JSON object.
    pub json: Bytes,
    /// Who asks.
    pub context: Context,
}

/// The members of a body.
const NAMES: [&str; 7] = [
    "op",
    "tool",
    "server",
    "arguments",
    "params",
    "method",
    "mcp",
];

impl Ask {
    /// Reads a body. What is read of the arguments is checked: an object that repeats no key at
    /// any depth, as from every other caller.
    ///
    /// # Errors
    /// It is no such body, or the arguments are not JSON.
    pub fn read(body: &Bytes) -> Result<Self, FrameError> {
        let members = Members::of_text(body, &NAMES)?;
        match &*members.text("op")? {
            "manifest" => Ok(Self::Manifest),
            "call" => {
                let tool = members.text("tool")?;
                let arguments = match (arguments(body, &members)?, context(body, &members)?) {
                    (Arguments::Object(json), Some(context)) => told(&tool, &json, context),
                    (Arguments::None, Some(context)) => told(&tool, b"{}", context),
                    (arguments, _) => arguments,
                };
                Ok(Self::Call {
                    tool,
                    server: members.text_if("server")?,
                    arguments,
                })
            }
            "mcp" => Ok(Self::Mcp {
                server: members.text("server")?,
                method: members.text("method")?,
                params: members
                    .begun("params", b'{')?
                    .map(|params| checked(params, Keys::Params, "params"))
                    .transpose()?,
                context: context(body, &members)?.unwrap_or_default(),
            }),
            _ => Err(FrameError::Member("op")),
        }
    }

    /// Writes a body. Arguments go out as an object, unless they are to be text.
    pub fn write(&self, out: &mut Vec<u8>) {
        match self {
            Self::Manifest => Object::bare(out).text("op", "manifest").end(),
            Self::Call {
                tool,
                server,
                arguments,
            } => {
                let object = Object::bare(out)
                    .text("op", "call")
                    .text("tool", tool)
                    .text_if("server", server.as_deref());
                let object = match arguments {
                    Arguments::Object(json) => object.raw("arguments", json),
                    Arguments::Text(text) => {
                        let json = String::from_utf8_lossy(&text.json);
                        let object = object.text("arguments", &json);
                        match text.context.is_empty() {
                            true => object,
                            false => object.nested("mcp", |out| text.context.write(out)),
                        }
                    }
                    Arguments::Params(json) => object.raw("params", json),
                    Arguments::Told(told) => object
                        .raw("params", &told.params)
                        .nested("mcp", |out| told.context.write(out)),
                    Arguments::None => object,
                };
                object.end();
            }
            Self::Mcp {
                server,
                method,
                params,
                context,
            } => {
                let object = Object::bare(out)
                    .text("op", "mcp")
                    .text("server", server)
                    .text("method", method);
                let object = match params {
                    Some(params) => object.raw("params", params),
                    None => object,
                };
                object.nested("mcp", |out| context.write(out)).end();
            }
        }
    }

    /// Returns who asks, and in which era, where that is said.
    #[must_use]
    pub fn context(&self) -> Option<&Context> {
        match self {
            Self::Mcp { context, .. } => Some(context),
            Self::Call {
                arguments: Arguments::Told(told),
                ..
            } => Some(&told.context),
            Self::Call {
                arguments: Arguments::Text(text),
                ..
            } => Some(&text.context),
            Self::Call { .. } | Self::Manifest => None,
        }
    }

    /// Returns the body as bytes.
    #[must_use]
    pub fn to_bytes(&self) -> Bytes {
        let mut out = Vec::new();
        self.write(&mut out);
        out.into()
    }
}

fn context(body: &Bytes, members: &Members<'_, 7>) -> Result<Option<Context>, FrameError> {
    let at = members.span("mcp");
    at.map(|at| Context::inside(body, at)).transpose()
}

/// Writes the parameters around arguments of which is said who asks.
fn told(tool: &str, arguments: &[u8], context: Context) -> Arguments {
    let mut params = Vec::with_capacity(tool.len() + arguments.len() + 32);
    Object::bare(&mut params)
        .text("name", tool)
        .raw("arguments", arguments)
        .end();
    let params = params.into();
    Arguments::Told(Box::new(Told { params, context }))
}

fn arguments(body: &Bytes, members: &Members<'_, 7>) -> Result<Arguments, FrameError> {
    if let Some(params) = members.begun("params", b'{')? {
        // Of two that differ nobody could say which was checked.
        if members.span("arguments").is_some() {
            return Err(FrameError::Member("arguments"));
        }
        let params = checked(params, Keys::Params, "params")?;
        return Ok(match context(body, members)? {
            Some(context) => Arguments::Told(Box::new(Told { params, context })),
            None => Arguments::Params(params),
        });
    }
    let Some(at) = members.span("arguments") else {
        return Ok(Arguments::None);
    };
    let Some(text) = object::string(at.of(body)) else {
        let whole = members.begun("arguments", b'{')?;
        return whole.map_or(Ok(Arguments::None), |whole| {
            Ok(Arguments::Object(checked(
                whole,
                Keys::Unique,
                "arguments",
            )?))
        });
    };
    // What models write for a tool that takes nothing.
    if text.trim_ascii().is_empty() {
        return Ok(Arguments::None);
    }
    let whole = Bytes::from(text.into_owned());
    let whole = whole.slice_ref(whole.trim_ascii());
    match whole.first() {
        Some(b'{') => Ok(Arguments::Object(checked(
            whole,
            Keys::Unique,
            "arguments",
        )?)),
        _ => Err(FrameError::Member("arguments")),
    }
}

fn checked(json: Bytes, keys: Keys, what: &'static str) -> Result<Bytes, FrameError> {
    match scan::check(&json, keys) {
        Ok(()) => Ok(json),
        Err(_) => Err(FrameError::Member(what)),
    }
}

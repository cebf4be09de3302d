//! Request bodies on the broker.

use std::sync::Arc;

use bytes::Bytes;

use super::caller_context::CallerContext;
use bowline_wire::FrameError;
use bowline_wire::object;
use bowline_wire::object_members::ObjectMembers;
use bowline_wire::object_writer::ObjectWriter;
use bowline_wire::scan::{self, KeyPolicy};

/// A request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BrokerRequest {
    /// `{"op":"manifest"}`: list the tools available to the caller.
    Manifest,
    /// `{"op":"call","tool":..,"arguments":..}`: call a tool.
    Call {
        /// The name in the manifest, or the upstream name if `server` is given.
        tool: Arc<str>,
        /// The server, for an upstream tool name.
        server: Option<Arc<str>>,
        /// The arguments.
        arguments: BrokerArguments,
    },
    /// `{"op":"mcp","server":..,"method":..,"params":{..},"mcp":{..}}`: any further MCP request to
    /// one server. Live only, between Bowline peers.
    Mcp {
        /// The server.
        server: Arc<str>,
        /// The method.
        method: Arc<str>,
        /// The parameters, an object.
        params: Option<Bytes>,
        /// The caller, and the era.
        context: CallerContext,
    },
}

/// The arguments of a call, as raw bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BrokerArguments {
    /// A JSON object, received as such or inside a string.
    Object(Bytes),
    /// A JSON object written as a string, the only form foreign peers accept, with the caller.
    /// Parses back as [`Object`](Self::Object), or as
    /// [`ParamsWithContext`](Self::ParamsWithContext) with a caller.
    Text(Box<TextArguments>),
    /// All parameters of `tools/call`, including `_meta` (Bowline peers only: member `params`).
    Params(Bytes),
    /// The same with the client capabilities and the era (member `mcp`).
    ParamsWithContext(Box<CallWithContext>),
    /// No arguments.
    None,
}

/// All parameters of `tools/call`, with the caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallWithContext {
    /// The parameters.
    pub params: Bytes,
    /// The caller, and the era.
    pub context: CallerContext,
}

/// Arguments written as text, with the caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TextArguments {
    /// The arguments, a JSON object.
    pub json: Bytes,
    /// The caller.
    pub context: CallerContext,
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

impl BrokerRequest {
    /// Parses a body. Arguments must be an object without duplicate keys at any depth, as for every
    /// client.
    ///
    /// # Errors
    /// The body is invalid, or the arguments are not JSON.
    pub fn parse(body: &Bytes) -> Result<Self, FrameError> {
        let members = ObjectMembers::parse(body, &NAMES)?;
        match &*members.required_text("op")? {
            "manifest" => Ok(Self::Manifest),
            "call" => {
                let tool = members.required_text("tool")?;
                let arguments = match (
                    parse_arguments(body, &members)?,
                    parse_context(body, &members)?,
                ) {
                    (BrokerArguments::Object(json), Some(context)) => {
                        with_context(&tool, &json, context)
                    }
                    (BrokerArguments::None, Some(context)) => with_context(&tool, b"{}", context),
                    (arguments, _) => arguments,
                };
                Ok(Self::Call {
                    tool,
                    server: members.optional_text("server")?,
                    arguments,
                })
            }
            "mcp" => Ok(Self::Mcp {
                server: members.required_text("server")?,
                method: members.required_text("method")?,
                params: members
                    .optional_raw("params", b'{')?
                    .map(|params| check_json(params, KeyPolicy::Params, "params"))
                    .transpose()?,
                context: parse_context(body, &members)?.unwrap_or_default(),
            }),
            _ => Err(FrameError::Member("op")),
        }
    }

    /// Writes the body. Arguments are written as an object, except [`BrokerArguments::Text`].
    pub fn write(&self, out: &mut Vec<u8>) {
        match self {
            Self::Manifest => ObjectWriter::begin(out).text("op", "manifest").end(),
            Self::Call {
                tool,
                server,
                arguments,
            } => {
                let object = ObjectWriter::begin(out)
                    .text("op", "call")
                    .text("tool", tool)
                    .text_if("server", server.as_deref());
                let object = match arguments {
                    BrokerArguments::Object(json) => object.raw("arguments", json),
                    BrokerArguments::Text(text) => {
                        let json = String::from_utf8_lossy(&text.json);
                        let object = object.text("arguments", &json);
                        match text.context.is_empty() {
                            true => object,
                            false => object.value_with("mcp", |out| text.context.write(out)),
                        }
                    }
                    BrokerArguments::Params(json) => object.raw("params", json),
                    BrokerArguments::ParamsWithContext(call) => object
                        .raw("params", &call.params)
                        .value_with("mcp", |out| call.context.write(out)),
                    BrokerArguments::None => object,
                };
                object.end();
            }
            Self::Mcp {
                server,
                method,
                params,
                context,
            } => {
                let object = ObjectWriter::begin(out)
                    .text("op", "mcp")
                    .text("server", server)
                    .text("method", method);
                let object = match params {
                    Some(params) => object.raw("params", params),
                    None => object,
                };
                object.value_with("mcp", |out| context.write(out)).end();
            }
        }
    }

    /// Returns the caller and the era, if given.
    #[must_use]
    pub fn context(&self) -> Option<&CallerContext> {
        match self {
            Self::Mcp { context, .. } => Some(context),
            Self::Call {
                arguments: BrokerArguments::ParamsWithContext(call),
                ..
            } => Some(&call.context),
            Self::Call {
                arguments: BrokerArguments::Text(text),
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

fn parse_context(
    body: &Bytes,
    members: &ObjectMembers<'_, 7>,
) -> Result<Option<CallerContext>, FrameError> {
    let at = members.span("mcp");
    at.map(|at| CallerContext::parse_at(body, at)).transpose()
}

/// Wraps arguments with a caller into parameters.
fn with_context(tool: &str, arguments: &[u8], context: CallerContext) -> BrokerArguments {
    let mut params = Vec::with_capacity(tool.len() + arguments.len() + 32);
    ObjectWriter::begin(&mut params)
        .text("name", tool)
        .raw("arguments", arguments)
        .end();
    let params = params.into();
    BrokerArguments::ParamsWithContext(Box::new(CallWithContext { params, context }))
}

fn parse_arguments(
    body: &Bytes,
    members: &ObjectMembers<'_, 7>,
) -> Result<BrokerArguments, FrameError> {
    if let Some(params) = members.optional_raw("params", b'{')? {
        // With two differing members, the checked member would be ambiguous.
        if members.span("arguments").is_some() {
            return Err(FrameError::Member("arguments"));
        }
        let params = check_json(params, KeyPolicy::Params, "params")?;
        return Ok(match parse_context(body, members)? {
            Some(context) => {
                BrokerArguments::ParamsWithContext(Box::new(CallWithContext { params, context }))
            }
            None => BrokerArguments::Params(params),
        });
    }
    let Some(at) = members.span("arguments") else {
        return Ok(BrokerArguments::None);
    };
    let Some(text) = object::parse_string(at.slice(body)) else {
        let whole = members.optional_raw("arguments", b'{')?;
        return whole.map_or(Ok(BrokerArguments::None), |whole| {
            Ok(BrokerArguments::Object(check_json(
                whole,
                KeyPolicy::Unique,
                "arguments",
            )?))
        });
    };
    // Models write an empty string for a tool without arguments.
    if text.trim_ascii().is_empty() {
        return Ok(BrokerArguments::None);
    }
    let whole = Bytes::from(text.into_owned());
    let whole = whole.slice_ref(whole.trim_ascii());
    match whole.first() {
        Some(b'{') => Ok(BrokerArguments::Object(check_json(
            whole,
            KeyPolicy::Unique,
            "arguments",
        )?)),
        _ => Err(FrameError::Member("arguments")),
    }
}

fn check_json(json: Bytes, keys: KeyPolicy, member: &'static str) -> Result<Bytes, FrameError> {
    match scan::check_json(&json, keys) {
        Ok(()) => Ok(json),
        Err(_) => Err(FrameError::Member(member)),
    }
}

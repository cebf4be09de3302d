//! One tool of a manifest.

use std::sync::Arc;

use bytes::Bytes;

use super::super::FrameError;
use super::ResultForm;
use bowline_wire::ByteSpan;
use bowline_wire::object;
use bowline_wire::object_members::ObjectMembers;
use bowline_wire::object_writer::ObjectWriter;

/// Parameters of a tool without a parameter schema.
const ANY_PARAMETERS: &[u8] = br#"{"type":"object"}"#;

/// One tool of a manifest:
/// `{"type":"function","function":{name, description, parameters},"server","tool","repeatable",
/// "definition"}`; Bowline peers use `name` in place of `function`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ManifestItem {
    /// The name for calls.
    pub name: Arc<str>,
    /// The server.
    pub server: Option<Arc<str>>,
    /// The upstream name.
    pub tool: Option<Arc<str>>,
    /// Whether the tool is idempotent.
    pub is_repeatable: bool,
    /// The whole MCP definition; derived from `function` if absent.
    pub definition: Bytes,
}

impl ManifestItem {
    pub(super) fn parse(list: &Bytes, at: ByteSpan) -> Result<Self, FrameError> {
        const NAMES: [&str; 6] = [
            "name",
            "function",
            "server",
            "tool",
            "repeatable",
            "definition",
        ];
        let members = ObjectMembers::parse_at(list, at, &NAMES, "manifest")?;
        let function = members.span("function");
        let function = function
            .map(|at| FunctionDefinition::parse(list, at))
            .transpose()?;
        let name = match members.optional_text("name")? {
            Some(name) => Some(name),
            None => function.as_ref().map(|function| Arc::clone(&function.name)),
        };
        let definition = match members.optional_raw("definition", b'{')? {
            Some(definition) => Some(definition),
            None => function.map(FunctionDefinition::into_definition),
        };
        Ok(Self {
            name: name.ok_or(FrameError::Member("name"))?,
            server: members.optional_text("server")?,
            tool: members.optional_text("tool")?,
            is_repeatable: members.optional_flag("repeatable")?.unwrap_or(false),
            definition: definition.ok_or(FrameError::Member("definition"))?,
        })
    }

    pub(super) fn write(&self, form: ResultForm, out: &mut Vec<u8>) {
        let object = match form {
            ResultForm::Brief => ObjectWriter::begin(out).text("name", &self.name),
            ResultForm::Whole => ObjectWriter::begin(out)
                .text("type", "function")
                .value_with("function", |out| self.write_function(out)),
        };
        object
            .text_if("server", self.server.as_deref())
            .text_if("tool", self.tool.as_deref())
            .flag("repeatable", self.is_repeatable)
            .raw("definition", &self.definition)
            .end();
    }

    fn write_function(&self, out: &mut Vec<u8>) {
        let definition = &self.definition;
        let description = object::text_field(definition, "description").unwrap_or_default();
        let parameters = object::field(definition, "inputSchema");
        let parameters = parameters.map_or(ANY_PARAMETERS, |at| at.slice(definition));
        ObjectWriter::begin(out)
            .text("name", &self.name)
            .text("description", &description)
            .raw("parameters", parameters)
            .end();
    }
}

/// A tool definition of a minimal peer.
#[derive(Debug)]
struct FunctionDefinition {
    name: Arc<str>,
    description: Option<Arc<str>>,
    parameters: Option<Bytes>,
}

impl FunctionDefinition {
    fn parse(list: &Bytes, at: ByteSpan) -> Result<Self, FrameError> {
        const NAMES: [&str; 3] = ["name", "description", "parameters"];
        let members = ObjectMembers::parse_at(list, at, &NAMES, "function")?;
        Ok(Self {
            name: members.required_text("name")?,
            description: members.optional_text("description")?,
            parameters: members.optional_raw("parameters", b'{')?,
        })
    }

    fn into_definition(self) -> Bytes {
        let mut out = Vec::new();
        let parameters = self.parameters.as_deref().unwrap_or(ANY_PARAMETERS);
        ObjectWriter::begin(&mut out)
            .text("name", &self.name)
            .text_if("description", self.description.as_deref())
            .raw("inputSchema", parameters)
            .end();
        out.into()
    }
}

//! One tool of a manifest.

use std::sync::Arc;

use bytes::Bytes;

use super::super::FrameError;
use super::Said;
use crate::members::Members;
use crate::object;
use crate::span::Span;
use crate::writer::Object;

/// The parameters of a tool that says nothing of them.
const ANY_PARAMETERS: &[u8] = br#"{"type":"object"}"#;

/// One tool of a manifest:
/// `{"type":"function","function":{name, description, parameters},"server","tool","repeatable",
/// "definition"}`; between our own peers `name` in place of `function`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// The name by which it is called.
    pub name: Arc<str>,
    /// Its server.
    pub server: Option<Arc<str>>,
    /// The server's own name of it.
    pub tool: Option<Arc<str>>,
    /// Whether running it twice is like running it once.
    pub repeatable: bool,
    /// Its MCP definition, whole; made from `function` where there is no other.
    pub definition: Bytes,
}

impl Item {
    pub(super) fn read(list: &Bytes, at: Span) -> Result<Self, FrameError> {
        const NAMES: [&str; 6] = [
            "name",
            "function",
            "server",
            "tool",
            "repeatable",
            "definition",
        ];
        let members = Members::inside(list, at, &NAMES, "manifest")?;
        let function = members.span("function");
        let function = function.map(|at| Function::read(list, at)).transpose()?;
        let name = match members.text_if("name")? {
            Some(name) => Some(name),
            None => function.as_ref().map(|function| Arc::clone(&function.name)),
        };
        let definition = match members.begun("definition", b'{')? {
            Some(definition) => Some(definition),
            None => function.map(Function::into_definition),
        };
        Ok(Self {
            name: name.ok_or(FrameError::Member("name"))?,
            server: members.text_if("server")?,
            tool: members.text_if("tool")?,
            repeatable: members.flag_if("repeatable")?.unwrap_or(false),
            definition: definition.ok_or(FrameError::Member("definition"))?,
        })
    }

    pub(super) fn write(&self, said: Said, out: &mut Vec<u8>) {
        let object = match said {
            Said::Brief => Object::bare(out).text("name", &self.name),
            Said::Whole => Object::bare(out)
                .text("type", "function")
                .nested("function", |out| self.write_function(out)),
        };
        object
            .text_if("server", self.server.as_deref())
            .text_if("tool", self.tool.as_deref())
            .flag("repeatable", self.repeatable)
            .raw("definition", &self.definition)
            .end();
    }

    fn write_function(&self, out: &mut Vec<u8>) {
        let definition = &self.definition;
        let description = object::text(definition, "description").unwrap_or_default();
        let parameters = object::field(definition, "inputSchema");
        let parameters = parameters.map_or(ANY_PARAMETERS, |at| at.of(definition));
        Object::bare(out)
            .text("name", &self.name)
            .text("description", &description)
            .raw("parameters", parameters)
            .end();
    }
}

/// A tool as peers know it that know no more.
#[derive(Debug)]
struct Function {
    name: Arc<str>,
    description: Option<Arc<str>>,
    parameters: Option<Bytes>,
}

impl Function {
    fn read(list: &Bytes, at: Span) -> Result<Self, FrameError> {
        const NAMES: [&str; 3] = ["name", "description", "parameters"];
        let members = Members::inside(list, at, &NAMES, "function")?;
        Ok(Self {
            name: members.text("name")?,
            description: members.text_if("description")?,
            parameters: members.begun("parameters", b'{')?,
        })
    }

    fn into_definition(self) -> Bytes {
        let mut out = Vec::new();
        let parameters = self.parameters.as_deref().unwrap_or(ANY_PARAMETERS);
        Object::bare(&mut out)
            .text("name", &self.name)
            .text_if("description", self.description.as_deref())
            .raw("inputSchema", parameters)
            .end();
        out.into()
    }
}

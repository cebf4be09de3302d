//! The parameters of a call as a host or an executor wants them, around the bytes that came.

use std::ops::Range;

use bowline_core::error::Failure;
use bowline_wire::broker::Arguments;
use bowline_wire::object;
use bowline_wire::splice::write_string;
use bytes::Bytes;

use crate::broker::failures;
use crate::tools;

/// The parameters of `tools/call`, and what stands where in them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Given {
    pub(super) params: Bytes,
    pub(super) name_at: Range<usize>,
    pub(super) progress_at: Option<Range<usize>>,
    pub(super) makes_task: bool,
}

impl Given {
    /// Takes parameters as they are, or writes them around arguments.
    pub(super) fn read(tool: &str, arguments: &Arguments) -> Result<Self, Failure> {
        match arguments {
            Arguments::Params(params) => Self::whole(tool, params),
            Arguments::Object(object) => Ok(Self::around(tool, object)),
            Arguments::None => Ok(Self::around(tool, b"{}")),
        }
    }

    /// The name in the parameters must be the one that is asked for. That no key comes twice was
    /// seen when they were read.
    fn whole(tool: &str, params: &Bytes) -> Result<Self, Failure> {
        let mut given = Self {
            params: params.clone(),
            name_at: 0..0,
            progress_at: None,
            makes_task: false,
        };
        let mut named = false;
        for (key, at) in object::fields(params) {
            match key.as_ref() {
                "name" => {
                    named = object::string(at.of(params)).as_deref() == Some(tool);
                    given.name_at = at.start..at.end;
                }
                "task" => given.makes_task = true,
                "_meta" => {
                    let token = object::field(at.of(params), "progressToken");
                    let token = token.map(|token| token.shift(at.start));
                    given.progress_at = token.map(|token| token.start..token.end);
                }
                _ => {}
            }
        }
        match named {
            true => Ok(given),
            false => Err(failures::bad_request(
                &"the parameters do not name the tool that is asked for",
            )),
        }
    }

    fn around(tool: &str, arguments: &[u8]) -> Self {
        let mut params = Vec::with_capacity(tool.len() + arguments.len() + 32);
        params.extend_from_slice(b"{\"name\":");
        let start = params.len();
        write_string(&mut params, tool);
        let name_at = start..params.len();
        params.extend_from_slice(b",\"arguments\":");
        params.extend_from_slice(arguments);
        params.push(b'}');
        Self {
            params: params.into(),
            name_at,
            progress_at: None,
            makes_task: false,
        }
    }

    /// Returns the arguments alone.
    pub(super) fn arguments(&self) -> tools::Arguments {
        let at = object::field(&self.params, "arguments");
        at.map_or_else(tools::Arguments::default, |at| {
            tools::Arguments::unchecked(self.params.slice(at.start..at.end))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whole(params: &'static str) -> Result<Given, Failure> {
        let params = Bytes::from_static(params.as_bytes());
        Given::read("t", &Arguments::Params(params))
    }

    #[test]
    fn whole_parameters_stay_as_they_came_and_name_the_tool() {
        let text = r#"{ "_meta":{"progressToken":7}, "arguments":{"a":1.0}, "name":"t" }"#;
        let given = whole(text).unwrap();
        assert_eq!(given.params, text.as_bytes());
        assert_eq!(&text[given.name_at.clone()], "\"t\"");
        assert_eq!(&text[given.progress_at.clone().unwrap()], "7");
        assert_eq!(given.arguments().raw(), &br#"{"a":1.0}"#[..]);
        assert!(!given.makes_task);
        assert!(whole(r#"{"name":"t","task":{}}"#).unwrap().makes_task);
        for bad in [
            r#"{"name":"other"}"#,
            r#"{"arguments":{}}"#,
            r#"{"name":7}"#,
            "[]",
        ] {
            assert_eq!(
                &*whole(bad).unwrap_err().code,
                failures::BAD_REQUEST,
                "{bad}"
            );
        }
    }

    #[test]
    fn arguments_are_written_around_byte_for_byte() {
        let object = Bytes::from_static(br#"{"n":1e400, "s":"\u00e9"}"#);
        let given = Given::read("a\"b", &Arguments::Object(object.clone())).unwrap();
        assert_eq!(given.arguments().raw(), &object);
        let name = given.params.slice(given.name_at);
        assert_eq!(object::string(&name).unwrap(), "a\"b");
        let none = Given::read("t", &Arguments::None).unwrap();
        assert_eq!(none.params, &br#"{"name":"t","arguments":{}}"#[..]);
    }
}

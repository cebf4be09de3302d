//! The arguments of a call: `key=value` by the tool's schema, `key:=JSON`, or a whole object.

use bowline_host::tools::signature::allowed_types;
use std::io::Read;

use serde_json::Value;
use serde_json::value::RawValue;

use crate::cli::args::{ArgumentPair, ArgumentValue, CallArgs};
use crate::cli::failure::CliFailure;

/// Maximum size of arguments.
const ARGUMENTS_BYTES_MAX: u64 = 8 * 1024 * 1024;

/// Reads a JSON object from the text, from `@FILE`, or from stdin.
pub(super) fn read_json_object(source: &str, stdin: impl Read) -> Result<String, CliFailure> {
    let text = match (source, source.strip_prefix('@')) {
        ("-", _) => read_bounded_text("stdin", stdin)?,
        (_, Some(path)) => {
            let file = std::fs::File::open(path)
                .map_err(|error| CliFailure::usage(format!("cannot read `{path}`: {error}")))?;
            read_bounded_text(path, file)?
        }
        (text, None) => text.to_owned(),
    };
    let raw: &RawValue = serde_json::from_str(&text)
        .map_err(|error| CliFailure::usage(format!("--args is not valid JSON: {error}")))?;
    if !raw.get().starts_with('{') {
        return Err(CliFailure::usage(
            "--args must be a JSON object such as {\"key\": 1}",
        ));
    }
    Ok(raw.get().to_owned())
}

fn read_bounded_text(name: &str, source: impl Read) -> Result<String, CliFailure> {
    let mut bytes = Vec::new();
    source
        .take(ARGUMENTS_BYTES_MAX + 1)
        .read_to_end(&mut bytes)
        .map_err(|error| CliFailure::usage(format!("cannot read `{name}`: {error}")))?;
    if bytes.len() as u64 > ARGUMENTS_BYTES_MAX {
        return Err(CliFailure::usage(format!("`{name}` is longer than 8 MiB")));
    }
    String::from_utf8(bytes).map_err(|_bytes| CliFailure::usage(format!("`{name}` is not text")))
}

/// Builds an object from pairs, each value converted by the schema of the key.
pub(super) fn from_pairs(
    pairs: &[ArgumentPair],
    schema: Option<&Value>,
) -> Result<String, CliFailure> {
    let properties = schema.and_then(|schema| schema.get("properties"));
    let mut members: Vec<String> = Vec::with_capacity(pairs.len());
    for (index, pair) in pairs.iter().enumerate() {
        if pairs
            .iter()
            .take(index)
            .any(|earlier| earlier.key == pair.key)
        {
            return Err(CliFailure::usage(format!(
                "argument `{}` is given twice",
                pair.key
            )));
        }
        let schema = properties.and_then(|properties| properties.get(&pair.key));
        let value = match &pair.value {
            ArgumentValue::Json(text) => parse_raw_json(text).ok_or_else(|| {
                CliFailure::usage(format!("`{}:={text}` is not valid JSON", pair.key))
            })?,
            ArgumentValue::Typed(text) => convert_value(&pair.key, text, schema)?,
        };
        members.push(format!("{}:{value}", quote_json(&pair.key)));
    }
    Ok(format!("{{{}}}", members.join(",")))
}

fn convert_value(key: &str, text: &str, schema: Option<&Value>) -> Result<String, CliFailure> {
    let types = schema.map(allowed_types).unwrap_or_default();
    // If the schema permits a string, the value is the typed text.
    if types.is_empty() || types.contains(&"string") {
        return Ok(quote_json(text));
    }
    let value =
        parse_raw_json(text).filter(|value| types.iter().any(|kind| has_json_type(kind, value)));
    value.ok_or_else(|| {
        let expected = types.join(" or ");
        CliFailure::usage(format!("argument `{key}` must be {expected}, not `{text}`"))
            .with_hint(format!("to send it as it is: {key}:=JSON"))
    })
}

fn has_json_type(kind: &str, json: &str) -> bool {
    let first = json.bytes().next().unwrap_or_default();
    match kind {
        "number" => first == b'-' || first.is_ascii_digit(),
        "integer" => {
            let whole = serde_json::from_str::<f64>(json).is_ok_and(|number| number.fract() == 0.0);
            whole && (first == b'-' || first.is_ascii_digit())
        }
        "boolean" => matches!(json, "true" | "false"),
        "null" => json == "null",
        "array" => first == b'[',
        "object" => first == b'{',
        _ => false,
    }
}

fn parse_raw_json(text: &str) -> Option<String> {
    let raw: &RawValue = serde_json::from_str(text).ok()?;
    Some(raw.get().to_owned())
}

/// Encodes a JSON string.
pub(super) fn quote_json(text: &str) -> String {
    Value::from(text).to_string()
}

/// Formats the same call with another target as a shell command.
pub(super) fn format_command(target: &str, call: &CallArgs) -> String {
    let pairs = call.pairs.iter().map(|pair| match &pair.value {
        ArgumentValue::Typed(value) => quote_shell(&format!("{}={value}", pair.key)),
        ArgumentValue::Json(value) => quote_shell(&format!("{}:={value}", pair.key)),
    });
    let whole = call
        .args
        .iter()
        .map(|args| format!("--args {}", quote_shell(args)));
    let key = call
        .key
        .iter()
        .map(|key| format!("--key {}", quote_shell(key)));
    let words = std::iter::once(format!("bowline call {}", quote_shell(target)));
    words
        .chain(pairs)
        .chain(whole)
        .chain(key)
        .collect::<Vec<_>>()
        .join(" ")
}

fn quote_shell(word: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_./:=@%+,-".contains(&byte);
    if !word.is_empty() && word.bytes().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', "'\\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_pairs(words: &[&str]) -> Vec<ArgumentPair> {
        words.iter().map(|word| word.parse().unwrap()).collect()
    }

    fn assert_arguments(words: &[&str], expected: Result<&str, &str>) {
        let schema = serde_json::json!({"properties": {
            "n": {"type": "number"}, "i": {"type": "integer"}, "b": {"type": "boolean"},
            "s": {"type": "string"}, "a": {"type": "array"}, "o": {"type": ["object", "null"]},
            "sn": {"type": ["string", "number"]},
            "x": {"anyOf": [{"type": "number"}, {"type": "boolean"}]},
        }});
        let found =
            from_pairs(&parse_pairs(words), Some(&schema)).map_err(|failure| failure.message);
        assert_eq!(
            found.as_deref().map_err(String::as_str),
            expected,
            "{words:?}"
        );
    }

    #[test]
    fn values_are_converted_by_schema() {
        assert_arguments(
            &["n=1.50", "i=9007199254740993"],
            Ok(r#"{"n":1.50,"i":9007199254740993}"#),
        );
        assert_arguments(
            &["b=true", "s=true", "s2=5"],
            Ok(r#"{"b":true,"s":"true","s2":"5"}"#),
        );
        assert_arguments(
            &["a=[1, 2]", "o=null", "sn=5"],
            Ok(r#"{"a":[1, 2],"o":null,"sn":"5"}"#),
        );
        assert_arguments(&["x=3", "s="], Ok(r#"{"x":3,"s":""}"#));
        assert_arguments(&["s:=5", "q:={\"a\":1.0}"], Ok(r#"{"s":5,"q":{"a":1.0}}"#));
        assert_arguments(&[], Ok("{}"));
    }

    #[test]
    fn mistyped_values_are_refused() {
        assert_arguments(&["n=abc"], Err("argument `n` must be number, not `abc`"));
        assert_arguments(&["i=1.5"], Err("argument `i` must be integer, not `1.5`"));
        assert_arguments(&["b=yes"], Err("argument `b` must be boolean, not `yes`"));
        assert_arguments(
            &["o=[]"],
            Err("argument `o` must be object or null, not `[]`"),
        );
        assert_arguments(&["s:=}"], Err("`s:=}` is not valid JSON"));
        assert_arguments(&["s=1", "s=2"], Err("argument `s` is given twice"));
    }

    #[test]
    fn values_without_schema_are_strings() {
        assert_eq!(
            from_pairs(&parse_pairs(&["n=1"]), None).unwrap(),
            r#"{"n":"1"}"#
        );
    }

    #[test]
    fn json_object_reads_text_file_or_stdin() {
        assert_eq!(
            read_json_object(" {\"a\": 1.0} ", std::io::empty()).unwrap(),
            "{\"a\": 1.0}"
        );
        assert_eq!(
            read_json_object("-", &b"{\"b\":2}\n"[..]).unwrap(),
            "{\"b\":2}"
        );
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.json");
        std::fs::write(&path, "{}").unwrap();
        assert_eq!(
            read_json_object(&format!("@{}", path.display()), std::io::empty()).unwrap(),
            "{}"
        );
        for bad in ["[1]", "{", "@/nowhere/x", "5"] {
            assert!(read_json_object(bad, std::io::empty()).is_err(), "{bad}");
        }
    }

    #[test]
    fn corrected_command_is_shell_quoted() {
        let call = CallArgs {
            target: "a.b".parse().unwrap(),
            pairs: parse_pairs(&["title=it's new", "n=1"]),
            args: None,
            timeout: None,
            key: Some("order 7".to_owned()),
        };
        assert_eq!(
            format_command("c.d", &call),
            r"bowline call c.d 'title=it'\''s new' n=1 --key 'order 7'"
        );
    }
}

//! The arguments of a call: `key=value` by the tool's schema, `key:=JSON`, or one object.

use bowline_host::tools::signature::types;
use std::io::Read;

use serde_json::Value;
use serde_json::value::RawValue;

use crate::cli::args::{Call, Given, Pair};
use crate::cli::failure::Failure;

/// Longest arguments that are taken.
const ARGUMENTS_BYTES_MAX: u64 = 8 * 1024 * 1024;

/// One JSON object from the word itself, from `@FILE`, or from stdin.
pub(super) fn whole(source: &str, stdin: impl Read) -> Result<String, Failure> {
    let text = match (source, source.strip_prefix('@')) {
        ("-", _) => read("stdin", stdin)?,
        (_, Some(path)) => {
            let file = std::fs::File::open(path)
                .map_err(|error| Failure::usage(format!("cannot read `{path}`: {error}")))?;
            read(path, file)?
        }
        (text, None) => text.to_owned(),
    };
    let raw: &RawValue = serde_json::from_str(&text)
        .map_err(|error| Failure::usage(format!("--args is not valid JSON: {error}")))?;
    if !raw.get().starts_with('{') {
        return Err(Failure::usage(
            "--args must be a JSON object such as {\"key\": 1}",
        ));
    }
    Ok(raw.get().to_owned())
}

fn read(name: &str, source: impl Read) -> Result<String, Failure> {
    let mut bytes = Vec::new();
    source
        .take(ARGUMENTS_BYTES_MAX + 1)
        .read_to_end(&mut bytes)
        .map_err(|error| Failure::usage(format!("cannot read `{name}`: {error}")))?;
    if bytes.len() as u64 > ARGUMENTS_BYTES_MAX {
        return Err(Failure::usage(format!("`{name}` is longer than 8 MiB")));
    }
    String::from_utf8(bytes).map_err(|_bytes| Failure::usage(format!("`{name}` is not text")))
}

/// An object of the pairs, each value typed by the schema of its name.
pub(super) fn from_pairs(pairs: &[Pair], schema: Option<&Value>) -> Result<String, Failure> {
    let properties = schema.and_then(|schema| schema.get("properties"));
    let mut members: Vec<String> = Vec::with_capacity(pairs.len());
    for (index, pair) in pairs.iter().enumerate() {
        if pairs
            .iter()
            .take(index)
            .any(|earlier| earlier.key == pair.key)
        {
            return Err(Failure::usage(format!(
                "argument `{}` is given twice",
                pair.key
            )));
        }
        let schema = properties.and_then(|properties| properties.get(&pair.key));
        let value = match &pair.value {
            Given::Json(text) => json(text).ok_or_else(|| {
                Failure::usage(format!("`{}:={text}` is not valid JSON", pair.key))
            })?,
            Given::Typed(text) => typed(&pair.key, text, schema)?,
        };
        members.push(format!("{}:{value}", quote(&pair.key)));
    }
    Ok(format!("{{{}}}", members.join(",")))
}

fn typed(key: &str, text: &str, schema: Option<&Value>) -> Result<String, Failure> {
    let types = schema.map(types).unwrap_or_default();
    // Where text is allowed, what was typed is the text.
    if types.is_empty() || types.contains(&"string") {
        return Ok(quote(text));
    }
    let value = json(text).filter(|value| types.iter().any(|kind| is_a(kind, value)));
    value.ok_or_else(|| {
        let wanted = types.join(" or ");
        Failure::usage(format!("argument `{key}` must be {wanted}, not `{text}`"))
            .hint(format!("to send it as it is: {key}:=JSON"))
    })
}

fn is_a(kind: &str, json: &str) -> bool {
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

fn json(text: &str) -> Option<String> {
    let raw: &RawValue = serde_json::from_str(text).ok()?;
    Some(raw.get().to_owned())
}

/// A JSON string.
pub(super) fn quote(text: &str) -> String {
    Value::from(text).to_string()
}

/// The same call with another target, as it could be typed into a shell.
pub(super) fn command(target: &str, call: &Call) -> String {
    let pairs = call.pairs.iter().map(|pair| match &pair.value {
        Given::Typed(value) => shell(&format!("{}={value}", pair.key)),
        Given::Json(value) => shell(&format!("{}:={value}", pair.key)),
    });
    let whole = call
        .args
        .iter()
        .map(|args| format!("--args {}", shell(args)));
    let key = call.key.iter().map(|key| format!("--key {}", shell(key)));
    let words = std::iter::once(format!("bowline call {}", shell(target)));
    words
        .chain(pairs)
        .chain(whole)
        .chain(key)
        .collect::<Vec<_>>()
        .join(" ")
}

fn shell(word: &str) -> String {
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

    fn pairs(words: &[&str]) -> Vec<Pair> {
        words.iter().map(|word| word.parse().unwrap()).collect()
    }

    fn check(words: &[&str], expected: Result<&str, &str>) {
        let schema = serde_json::json!({"properties": {
            "n": {"type": "number"}, "i": {"type": "integer"}, "b": {"type": "boolean"},
            "s": {"type": "string"}, "a": {"type": "array"}, "o": {"type": ["object", "null"]},
            "sn": {"type": ["string", "number"]},
            "x": {"anyOf": [{"type": "number"}, {"type": "boolean"}]},
        }});
        let found = from_pairs(&pairs(words), Some(&schema)).map_err(|failure| failure.message);
        assert_eq!(
            found.as_deref().map_err(String::as_str),
            expected,
            "{words:?}"
        );
    }

    #[test]
    fn values_are_typed_by_the_schema() {
        check(
            &["n=1.50", "i=9007199254740993"],
            Ok(r#"{"n":1.50,"i":9007199254740993}"#),
        );
        check(
            &["b=true", "s=true", "s2=5"],
            Ok(r#"{"b":true,"s":"true","s2":"5"}"#),
        );
        check(
            &["a=[1, 2]", "o=null", "sn=5"],
            Ok(r#"{"a":[1, 2],"o":null,"sn":"5"}"#),
        );
        check(&["x=3", "s="], Ok(r#"{"x":3,"s":""}"#));
        check(&["s:=5", "q:={\"a\":1.0}"], Ok(r#"{"s":5,"q":{"a":1.0}}"#));
        check(&[], Ok("{}"));
    }

    #[test]
    fn values_that_do_not_fit_are_refused_before_anything_is_sent() {
        check(&["n=abc"], Err("argument `n` must be number, not `abc`"));
        check(&["i=1.5"], Err("argument `i` must be integer, not `1.5`"));
        check(&["b=yes"], Err("argument `b` must be boolean, not `yes`"));
        check(
            &["o=[]"],
            Err("argument `o` must be object or null, not `[]`"),
        );
        check(&["s:=}"], Err("`s:=}` is not valid JSON"));
        check(&["s=1", "s=2"], Err("argument `s` is given twice"));
    }

    #[test]
    fn without_a_schema_everything_is_text() {
        assert_eq!(from_pairs(&pairs(&["n=1"]), None).unwrap(), r#"{"n":"1"}"#);
    }

    #[test]
    fn whole_arguments_come_from_the_word_a_file_or_stdin() {
        assert_eq!(
            whole(" {\"a\": 1.0} ", std::io::empty()).unwrap(),
            "{\"a\": 1.0}"
        );
        assert_eq!(whole("-", &b"{\"b\":2}\n"[..]).unwrap(), "{\"b\":2}");
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.json");
        std::fs::write(&path, "{}").unwrap();
        assert_eq!(
            whole(&format!("@{}", path.display()), std::io::empty()).unwrap(),
            "{}"
        );
        for bad in ["[1]", "{", "@/nowhere/x", "5"] {
            assert!(whole(bad, std::io::empty()).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_corrected_command_can_be_pasted() {
        let call = Call {
            target: "a.b".parse().unwrap(),
            pairs: pairs(&["title=it's new", "n=1"]),
            args: None,
            timeout: None,
            key: Some("order 7".to_owned()),
        };
        assert_eq!(
            command("c.d", &call),
            r"bowline call c.d 'title=it'\''s new' n=1 --key 'order 7'"
        );
    }
}

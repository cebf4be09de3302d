//! Prints the result of a tool for people.

use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use crate::cli::clean;
use crate::cli::output::CliOutput;
use crate::cli::pretty::indent_json;

#[derive(Default, Deserialize)]
#[serde(default)]
struct ToolResult<'a> {
    #[serde(borrow)]
    content: Vec<&'a RawValue>,
    #[serde(borrow, rename = "structuredContent")]
    structured: Option<&'a RawValue>,
    #[serde(rename = "isError")]
    is_error: bool,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ContentItem {
    #[serde(rename = "type")]
    kind: String,
    text: Option<String>,
    data: Option<String>,
    #[serde(rename = "mimeType")]
    mime: Option<String>,
    uri: Option<String>,
    resource: Option<EmbeddedResource>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct EmbeddedResource {
    uri: String,
    text: Option<String>,
}

/// Returns whether the tool reports an error.
pub(super) fn is_error_result(result: &RawValue) -> bool {
    serde_json::from_str::<ToolResult<'_>>(result.get()).is_ok_and(|result| result.is_error)
}

/// Parses structured content as `T`, or returns the default.
pub(super) fn parse_structured<T: Default + serde::de::DeserializeOwned>(result: &RawValue) -> T {
    let result: Option<ToolResult<'_>> = serde_json::from_str(result.get()).ok();
    let structured = result.and_then(|result| result.structured);
    let read = structured.and_then(|raw| serde_json::from_str(raw.get()).ok());
    read.unwrap_or_default()
}

/// Prints text verbatim, other content as a short line, structured content indented.
pub(super) fn print_result(result: &RawValue, out: &mut CliOutput) -> std::io::Result<()> {
    let Ok(parsed) = serde_json::from_str::<ToolResult<'_>>(result.get()) else {
        // Not shaped like a tool result: printed verbatim.
        return out.write_line(&clean::escape_text(&indent_json(result.get())));
    };
    let mut texts = Vec::new();
    for raw in &parsed.content {
        let item: ContentItem = serde_json::from_str(raw.get()).unwrap_or_default();
        out.write_line(&clean::escape_text(&describe_item(&item)))?;
        texts.extend(item.text);
    }
    match parsed.structured {
        // Servers repeat structured content as text for older clients; print it once.
        Some(structured) if !texts.iter().any(|text| is_same_json(text, structured)) => {
            out.write_line(&clean::escape_text(&indent_json(structured.get())))
        }
        _ => Ok(()),
    }
}

fn is_same_json(text: &str, structured: &RawValue) -> bool {
    let text: Option<Value> = serde_json::from_str(text).ok();
    text.is_some() && text == serde_json::from_str(structured.get()).ok()
}

fn describe_item(item: &ContentItem) -> String {
    let mime = item.mime.as_deref().unwrap_or("unknown type");
    match (item.kind.as_str(), &item.text, &item.resource) {
        ("text", Some(text), _) => text.strip_suffix('\n').unwrap_or(text).to_owned(),
        (kind @ ("image" | "audio"), _, _) => {
            let bytes = item.data.as_deref().map_or(0, |data| data.len() / 4 * 3);
            format!("[{kind} {mime}, about {bytes} bytes]")
        }
        (
            "resource",
            _,
            Some(EmbeddedResource {
                uri,
                text: Some(text),
            }),
        ) => format!("[{uri}]\n{text}"),
        ("resource", _, Some(EmbeddedResource { uri, text: None })) => format!("[resource {uri}]"),
        ("resource_link", _, _) => {
            format!(
                "[link {}]",
                item.uri.as_deref().unwrap_or("without address")
            )
        }
        (kind, _, _) => format!("[{kind} content]"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::output::{OutputFormat, captured};

    fn print_to_string(json: &str) -> String {
        let raw: &RawValue = serde_json::from_str(json).unwrap();
        let (mut out, stdout, _) = captured::captured_output(OutputFormat::Human);
        print_result(raw, &mut out).unwrap();
        stdout.text()
    }

    #[test]
    fn text_prints_verbatim_and_media_short() {
        let json = r#"{"content":[{"type":"text","text":"a\nb\n"},
            {"type":"image","data":"AAAABBBB","mimeType":"image/png"},
            {"type":"resource_link","uri":"file:///x"},
            {"type":"resource","resource":{"uri":"u:1","text":"t"}},
            {"type":"novel"}]}"#;
        assert_eq!(
            print_to_string(json),
            "a\nb\n[image image/png, about 6 bytes]\n[link file:///x]\n[u:1]\nt\n[novel content]\n"
        );
    }

    #[test]
    fn duplicate_structured_content_prints_once() {
        let json = r#"{"content":[],"structuredContent":{"n":1.0}}"#;
        assert_eq!(print_to_string(json), "{\n  \"n\": 1.0\n}\n");
        let json = r#"{"content":[{"type":"text","text":"{\"n\": 1}"}],
            "structuredContent":{"n":1}}"#;
        assert_eq!(print_to_string(json), "{\"n\": 1}\n");
    }

    #[test]
    fn result_control_characters_are_escaped() {
        assert_eq!(
            print_to_string(r#"{"content":[{"type":"text","text":"\u001b[2J\rx"}]}"#),
            "\\x1b[2J\\rx\n"
        );
    }

    #[test]
    fn malformed_result_prints_verbatim() {
        assert_eq!(
            print_to_string("{\"content\":5}"),
            "{\n  \"content\": 5\n}\n"
        );
        let raw: &RawValue = serde_json::from_str("{\"isError\":true}").unwrap();
        assert!(is_error_result(raw));
    }
}

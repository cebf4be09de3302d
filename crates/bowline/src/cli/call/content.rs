//! What a tool answered, for people.

use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use crate::cli::clean;
use crate::cli::out::Out;
use crate::cli::pretty::pretty;

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
struct Item {
    #[serde(rename = "type")]
    kind: String,
    text: Option<String>,
    data: Option<String>,
    #[serde(rename = "mimeType")]
    mime: Option<String>,
    uri: Option<String>,
    resource: Option<Resource>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Resource {
    uri: String,
    text: Option<String>,
}

/// Whether the tool says that it failed.
pub(super) fn is_error(result: &RawValue) -> bool {
    serde_json::from_str::<ToolResult<'_>>(result.get()).is_ok_and(|result| result.is_error)
}

/// Reads structured content as something known; its defaults where it is something else.
pub(super) fn structured<T: Default + serde::de::DeserializeOwned>(result: &RawValue) -> T {
    let result: Option<ToolResult<'_>> = serde_json::from_str(result.get()).ok();
    let structured = result.and_then(|result| result.structured);
    let read = structured.and_then(|raw| serde_json::from_str(raw.get()).ok());
    read.unwrap_or_default()
}

/// Text as it is, other content as a short line, structured content laid out.
pub(super) fn show(result: &RawValue, out: &mut Out) -> std::io::Result<()> {
    let Ok(parsed) = serde_json::from_str::<ToolResult<'_>>(result.get()) else {
        // Not the shape of a tool result: better shown as it is than not at all.
        return out.line(&clean::text(&pretty(result.get())));
    };
    let mut texts = Vec::new();
    for raw in &parsed.content {
        let item: Item = serde_json::from_str(raw.get()).unwrap_or_default();
        out.line(&clean::text(&describe(&item)))?;
        texts.extend(item.text);
    }
    match parsed.structured {
        // Servers repeat structured content as text for older clients; once is enough.
        Some(structured) if !texts.iter().any(|text| is_same(text, structured)) => {
            out.line(&clean::text(&pretty(structured.get())))
        }
        _ => Ok(()),
    }
}

fn is_same(text: &str, structured: &RawValue) -> bool {
    let text: Option<Value> = serde_json::from_str(text).ok();
    text.is_some() && text == serde_json::from_str(structured.get()).ok()
}

fn describe(item: &Item) -> String {
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
            Some(Resource {
                uri,
                text: Some(text),
            }),
        ) => format!("[{uri}]\n{text}"),
        ("resource", _, Some(Resource { uri, text: None })) => format!("[resource {uri}]"),
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
    use crate::cli::out::{Format, captured};

    fn shown(json: &str) -> String {
        let raw: &RawValue = serde_json::from_str(json).unwrap();
        let (mut out, stdout, _) = captured::out(Format::Human);
        show(raw, &mut out).unwrap();
        stdout.text()
    }

    #[test]
    fn text_is_plain_and_the_rest_is_a_short_line() {
        let json = r#"{"content":[{"type":"text","text":"a\nb\n"},
            {"type":"image","data":"AAAABBBB","mimeType":"image/png"},
            {"type":"resource_link","uri":"file:///x"},
            {"type":"resource","resource":{"uri":"u:1","text":"t"}},
            {"type":"novel"}]}"#;
        assert_eq!(
            shown(json),
            "a\nb\n[image image/png, about 6 bytes]\n[link file:///x]\n[u:1]\nt\n[novel content]\n"
        );
    }

    #[test]
    fn structured_content_is_laid_out_unless_the_text_says_the_same() {
        let json = r#"{"content":[],"structuredContent":{"n":1.0}}"#;
        assert_eq!(shown(json), "{\n  \"n\": 1.0\n}\n");
        let json = r#"{"content":[{"type":"text","text":"{\"n\": 1}"}],
            "structuredContent":{"n":1}}"#;
        assert_eq!(shown(json), "{\"n\": 1}\n");
    }

    #[test]
    fn control_characters_of_a_server_do_not_reach_the_terminal() {
        assert_eq!(
            shown(r#"{"content":[{"type":"text","text":"\u001b[2J\rx"}]}"#),
            "\\x1b[2J\\rx\n"
        );
    }

    #[test]
    fn an_odd_result_is_shown_as_it_is() {
        assert_eq!(shown("{\"content\":5}"), "{\n  \"content\": 5\n}\n");
        let raw: &RawValue = serde_json::from_str("{\"isError\":true}").unwrap();
        assert!(is_error(raw));
    }
}

//! Finds the response to a request among the events of a body.

use std::ops::Range;

use serde::Deserialize;
use serde_json::value::RawValue;

#[derive(Deserialize)]
struct EventEnvelope<'a> {
    #[serde(borrow)]
    id: Option<&'a RawValue>,
    #[serde(borrow)]
    result: Option<&'a RawValue>,
    #[serde(borrow)]
    error: Option<&'a RawValue>,
}

/// Returns the bytes of the `data:` line that responds to request `id`.
pub(super) fn find_response(body: &[u8], id: u64) -> Option<Range<usize>> {
    let id = id.to_string();
    let mut start = 0;
    for line in body.split(|byte| *byte == b'\n') {
        let data = line.strip_prefix(b"data:").map(<[u8]>::trim_ascii);
        if let Some(data) = data
            && is_response(data, &id)
        {
            let spaces = line.len() - line.trim_ascii_end().len();
            let end = start + line.len() - spaces;
            return Some(end - data.len()..end);
        }
        start += line.len() + 1;
    }
    None
}

fn is_response(data: &[u8], id: &str) -> bool {
    let Ok(envelope) = serde_json::from_slice::<EventEnvelope<'_>>(data) else {
        return false;
    };
    let has_id = envelope.id.is_some_and(|raw| raw.get() == id);
    has_id && (envelope.result.is_some() || envelope.error.is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn response_is_found_behind_other_events() {
        let response = r#"{"id":7,"result":{}}"#;
        let body = format!(
            "event: message\ndata: {{\"method\":\"ping\",\"id\":7}}\n\ndata: {response}\r\n\r\n"
        );
        let found = find_response(body.as_bytes(), 7).unwrap();
        assert_eq!(body.get(found), Some(response));
        assert_eq!(find_response(body.as_bytes(), 8), None);
    }
}

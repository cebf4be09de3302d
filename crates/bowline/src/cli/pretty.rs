//! Indents JSON, with every number and string verbatim.

/// Indents valid `json`.
pub(crate) fn indent_json(json: &str) -> String {
    let mut out = String::with_capacity(json.len() * 2);
    let mut depth = 0_usize;
    let mut in_string = false;
    let mut escaped = false;
    let mut characters = json.chars().peekable();
    while let Some(character) = characters.next() {
        if in_string {
            out.push(character);
            in_string = escaped || character != '"';
            escaped = !escaped && character == '\\';
            continue;
        }
        match character {
            ' ' | '\n' | '\r' | '\t' => {}
            '{' | '[' => {
                out.push(character);
                while characters.next_if(char::is_ascii_whitespace).is_some() {}
                if let Some(close) = characters.next_if(|next| matches!(next, '}' | ']')) {
                    out.push(close);
                } else {
                    depth += 1;
                    push_indent(&mut out, depth);
                }
            }
            '}' | ']' => {
                depth = depth.saturating_sub(1);
                push_indent(&mut out, depth);
                out.push(character);
            }
            ',' => {
                out.push(character);
                push_indent(&mut out, depth);
            }
            ':' => out.push_str(": "),
            _ => {
                in_string = character == '"';
                out.push(character);
            }
        }
    }
    out
}

fn push_indent(out: &mut String, depth: usize) {
    out.push('\n');
    out.extend(std::iter::repeat_n("  ", depth));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indented_json_keeps_literals() {
        let json = r#"{"a":1.0,"b":[9007199254740993,1e400],"c":"{\"x\\",":d":{ },"e":[]}"#;
        let expected = r#"{
  "a": 1.0,
  "b": [
    9007199254740993,
    1e400
  ],
  "c": "{\"x\\",
  ":d": {},
  "e": []
}"#;
        assert_eq!(indent_json(json), expected);
        assert_eq!(indent_json(expected), expected);
    }
}

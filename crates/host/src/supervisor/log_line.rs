//! Renders a server's log notifications as log lines.

use bowline_wire::object;

/// Renders `notifications/message` as `[level] logger: data`. Data other than a string stays JSON.
pub(super) fn render_log_line(notification: &[u8]) -> String {
    let field = |within, key| object::field(within, key).map(|at| at.slice(within));
    let text = |raw: &[u8]| match object::parse_string(raw) {
        Some(text) => text.into_owned(),
        None => String::from_utf8_lossy(raw).into_owned(),
    };
    let params = field(notification, "params").unwrap_or_default();
    let level = field(params, "level").map_or_else(|| "?".to_owned(), text);
    let data = field(params, "data").map(text).unwrap_or_default();
    match field(params, "logger").map(text) {
        Some(logger) => format!("[{level}] {logger}: {data}"),
        None => format!("[{level}] {data}"),
    }
}

#[cfg(test)]
mod tests {
    use super::render_log_line;

    #[test]
    fn log_notification_renders_as_line() {
        for (params, want) in [
            (
                r#"{"level":"info","logger":"db","data":"a\nb"}"#,
                "[info] db: a\nb",
            ),
            (
                r#"{"level":"error","data":{"n": 1.0}}"#,
                r#"[error] {"n": 1.0}"#,
            ),
            (r#"{"data":null,"level":7}"#, "[7] null"),
            ("{}", "[?] "),
        ] {
            let notification = format!(r#"{{"method":"m","params":{params}}}"#);
            assert_eq!(render_log_line(notification.as_bytes()), want);
        }
        assert_eq!(render_log_line(b"{}"), "[?] ");
    }
}

//! Reads a secret from stdin, or from a terminal without echo. Arguments are not used, since other
//! users of the machine can read them.

use std::io::{self, BufRead, IsTerminal as _, Read as _, Write as _};

use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};
use zeroize::Zeroizing;

use crate::cli::CliFailure;
use bowline_config::secrets::{SecretValue, VALUE_BYTES_MAX};

/// Bytes of Ctrl-C and Ctrl-D in raw mode.
const CTRL_C: u8 = 3;
const CTRL_D: u8 = 4;

/// Bytes of the two backspace keys.
const BACKSPACE_KEYS: [u8; 2] = [8, 127];

pub(super) fn read_secret_value(name: &str) -> Result<SecretValue, CliFailure> {
    let stdin = io::stdin();
    if stdin.is_terminal() {
        let mut stderr = io::stderr();
        // A closed stderr is no error.
        let _ = write!(stderr, "{name} (not shown): ");
        let _ = stderr.flush();
        let typed = {
            let _quiet = NoEchoTerminal::disable_echo()?;
            read_typed_line(stdin.lock())
        };
        let _ = writeln!(stderr);
        return typed?.ok_or_else(|| CliFailure::usage("given up; nothing was changed"));
    }
    let mut bytes = Zeroizing::new(Vec::with_capacity(VALUE_BYTES_MAX + 3));
    let limit = VALUE_BYTES_MAX as u64 + 3;
    stdin.lock().take(limit).read_to_end(&mut bytes)?;
    decode_secret(&bytes)
}

/// Decodes a secret. `echo` and editors add a trailing newline that is no part of the secret.
fn decode_secret(bytes: &[u8]) -> Result<SecretValue, CliFailure> {
    let bytes = bytes.strip_suffix(b"\n").unwrap_or(bytes);
    let bytes = bytes.strip_suffix(b"\r").unwrap_or(bytes);
    let text = std::str::from_utf8(bytes);
    let text = text.map_err(|_| CliFailure::usage("a secret is a text in UTF-8"))?;
    Ok(SecretValue::new(text.to_owned()))
}

/// Reads keys until the end of the line; `None` after Ctrl-C.
fn read_typed_line(keys: impl BufRead) -> Result<Option<SecretValue>, CliFailure> {
    let mut line = Zeroizing::new(Vec::with_capacity(VALUE_BYTES_MAX + 1));
    for key in keys.bytes() {
        match key? {
            CTRL_C => return Ok(None),
            b'\n' | b'\r' | CTRL_D => break,
            key if BACKSPACE_KEYS.contains(&key) => {
                // A character may be several bytes.
                while let Some(0x80..=0xbf) = line.pop() {}
            }
            key if line.len() <= VALUE_BYTES_MAX => line.push(key),
            _ => {}
        }
    }
    decode_secret(&line).map(Some)
}

/// A terminal without echo, restored on drop.
struct NoEchoTerminal(Termios);

impl NoEchoTerminal {
    fn disable_echo() -> io::Result<Self> {
        let before = tcgetattr(io::stdin())?;
        let mut quiet = before.clone();
        // Raw keys: a Ctrl-C that killed this process would leave the terminal without echo.
        quiet
            .local_modes
            .remove(LocalModes::ECHO | LocalModes::ICANON | LocalModes::ISIG);
        tcsetattr(io::stdin(), OptionalActions::Flush, &quiet)?;
        Ok(Self(before))
    }
}

impl Drop for NoEchoTerminal {
    fn drop(&mut self) {
        // A vanished terminal needs no restoring.
        let _ = tcsetattr(io::stdin(), OptionalActions::Flush, &self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn typed_secret_supports_backspace() {
        let typed = |keys: &[u8]| {
            read_typed_line(keys)
                .unwrap()
                .map(|value| value.to_string())
        };
        assert_eq!(typed(b"hunter2\nrest").as_deref(), Some("hunter2"));
        assert_eq!(typed("hü\u{7f}\u{8}x\r".as_bytes()).as_deref(), Some("x"));
        assert_eq!(typed(b"hunter\x03"), None);
        assert_eq!(typed(b"half\x04").as_deref(), Some("half"));
    }

    #[test]
    fn one_trailing_newline_is_stripped() {
        let text = |bytes: &[u8]| decode_secret(bytes).map(|value| value.to_string());
        assert_eq!(text(b"a\nb\r\n").unwrap(), "a\nb");
        assert_eq!(text(b"a\n\n").unwrap(), "a\n");
        assert!(text(b"\xff").is_err());
    }
}

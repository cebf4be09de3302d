//! Reads a secret: from stdin, or typed at a terminal that does not show it. Never an argument,
//! which other users of the machine can see.

use std::io::{self, BufRead, IsTerminal as _, Read as _, Write as _};

use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};
use zeroize::Zeroizing;

use crate::cli::Failure;
use crate::secrets::{VALUE_BYTES_MAX, Value};

/// What Ctrl-C and Ctrl-D are when the terminal does not act on them.
const INTERRUPT: u8 = 3;
const END: u8 = 4;

/// What the two keys are that take a letter back.
const BACK: [u8; 2] = [8, 127];

pub(super) fn value(name: &str) -> Result<Value, Failure> {
    let stdin = io::stdin();
    if stdin.is_terminal() {
        let mut stderr = io::stderr();
        // Whoever closed stderr can type all the same.
        let _ = write!(stderr, "{name} (not shown): ");
        let _ = stderr.flush();
        let typed = {
            let _quiet = Quiet::make()?;
            typed(stdin.lock())
        };
        let _ = writeln!(stderr);
        return typed?.ok_or_else(|| Failure::usage("given up; nothing was changed"));
    }
    let mut bytes = Zeroizing::new(Vec::with_capacity(VALUE_BYTES_MAX + 3));
    let limit = VALUE_BYTES_MAX as u64 + 3;
    stdin.lock().take(limit).read_to_end(&mut bytes)?;
    text(&bytes)
}

/// `echo` and editors end a text with a newline that is no part of the secret.
fn text(bytes: &[u8]) -> Result<Value, Failure> {
    let bytes = bytes.strip_suffix(b"\n").unwrap_or(bytes);
    let bytes = bytes.strip_suffix(b"\r").unwrap_or(bytes);
    let text = std::str::from_utf8(bytes);
    let text = text.map_err(|_| Failure::usage("a secret is a text in UTF-8"))?;
    Ok(Value::new(text.to_owned()))
}

/// Reads keys until the line ends; nothing where it was given up.
fn typed(keys: impl BufRead) -> Result<Option<Value>, Failure> {
    let mut line = Zeroizing::new(Vec::with_capacity(VALUE_BYTES_MAX + 1));
    for key in keys.bytes() {
        match key? {
            INTERRUPT => return Ok(None),
            b'\n' | b'\r' | END => break,
            key if BACK.contains(&key) => {
                // A letter may be several bytes.
                while let Some(0x80..=0xbf) = line.pop() {}
            }
            key if line.len() <= VALUE_BYTES_MAX => line.push(key),
            _ => {}
        }
    }
    text(&line).map(Some)
}

/// A terminal that shows nothing; dropped, it is as it was.
struct Quiet(Termios);

impl Quiet {
    fn make() -> io::Result<Self> {
        let before = tcgetattr(io::stdin())?;
        let mut quiet = before.clone();
        // Keys come as they are: a Ctrl-C that ended us would leave the terminal silent.
        quiet
            .local_modes
            .remove(LocalModes::ECHO | LocalModes::ICANON | LocalModes::ISIG);
        tcsetattr(io::stdin(), OptionalActions::Flush, &quiet)?;
        Ok(Self(before))
    }
}

impl Drop for Quiet {
    fn drop(&mut self) {
        // A terminal that went away needs no mending.
        let _ = tcsetattr(io::stdin(), OptionalActions::Flush, &self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_typed_secret_ends_with_its_line_and_letters_can_be_taken_back() {
        let typed = |keys: &[u8]| typed(keys).unwrap().map(|value| value.to_string());
        assert_eq!(typed(b"hunter2\nrest").as_deref(), Some("hunter2"));
        assert_eq!(typed("hü\u{7f}\u{8}x\r".as_bytes()).as_deref(), Some("x"));
        assert_eq!(typed(b"hunter\x03"), None);
        assert_eq!(typed(b"half\x04").as_deref(), Some("half"));
    }

    #[test]
    fn one_line_end_is_no_part_of_a_secret() {
        let text = |bytes: &[u8]| text(bytes).map(|value| value.to_string());
        assert_eq!(text(b"a\nb\r\n").unwrap(), "a\nb");
        assert_eq!(text(b"a\n\n").unwrap(), "a\n");
        assert!(text(b"\xff").is_err());
    }
}

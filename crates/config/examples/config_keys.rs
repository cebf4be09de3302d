//! Writes the reference of all keys of the config file to stdout: docs/config-keys.md.

use std::io::{Result, Write as _};

fn main() -> Result<()> {
    std::io::stdout().write_all(bowline_config::key_reference().as_bytes())
}

//! `mcpbench stdio`: the backend as a stdio server.

use std::{
    io::{BufRead, BufReader, BufWriter, Stdout, Write},
    sync::{Arc, Mutex, PoisonError},
    thread,
    time::Duration,
};

use anyhow::Result;

use crate::mcp_server::McpServer;
use crate::options::ToolOptions;

const BUFFER_BYTES: usize = 64 * 1024;

type SharedOutput = Arc<Mutex<BufWriter<Stdout>>>;

/// Serves until standard input ends.
pub(crate) fn serve(options: &ToolOptions) -> Result<()> {
    let server = McpServer::from_options(options)?;
    let output = BufWriter::with_capacity(BUFFER_BYTES, std::io::stdout());
    let output: SharedOutput = Arc::new(Mutex::new(output));
    let mut input = BufReader::with_capacity(BUFFER_BYTES, std::io::stdin());
    let mut line = Vec::new();
    loop {
        line.clear();
        if input.read_until(b'\n', &mut line)? == 0 {
            return Ok(());
        }
        let reply = match line.trim_ascii() {
            [] => None,
            message => server.respond(message),
        };
        if let Some(mut reply) = reply {
            reply.body.push(b'\n');
            let pause = Duration::from_millis(reply.sleep_ms);
            if pause.is_zero() {
                write_line(&output, &reply.body, false)?;
            } else {
                let output = Arc::clone(&output);
                thread::spawn(move || {
                    thread::sleep(pause);
                    // The reader thread ends the process when the client is gone.
                    let _ = write_line(&output, &reply.body, true);
                });
            }
        }
        // One write for all requests that one read returned.
        if input.buffer().is_empty() {
            write_line(&output, b"", true)?;
        }
    }
}

fn write_line(output: &SharedOutput, line: &[u8], flushes: bool) -> Result<()> {
    let mut output = output.lock().unwrap_or_else(PoisonError::into_inner);
    output.write_all(line)?;
    if flushes {
        output.flush()?;
    }
    Ok(())
}

//! `status --watch`: redraws the screen on every event; for programs, prints events line by line.

use std::time::Duration;

use super::super::api_client::{ApiClient, ApiEventPoll};
use super::super::failure::{CliExit, CliFailure};
use super::super::output::{CliOutput, OutputFormat};

/// Events within this time after the first are shown together.
const COALESCE_TIME: Duration = Duration::from_millis(100);

/// Maximum events shown together.
const COALESCE_EVENTS_MAX: usize = 1_000;

/// Refresh interval on a terminal.
const REFRESH_INTERVAL: Duration = Duration::from_secs(2);

/// Wait for events when stdout is no terminal.
const EVENT_WAIT: Duration = Duration::from_secs(3_600);

/// Clears the screen; stripped when stdout is no terminal.
const CLEAR_SCREEN: &str = "\u{1b}[2J\u{1b}[H";

pub(super) fn run(client: &ApiClient, out: &mut CliOutput) -> Result<CliExit, CliFailure> {
    let mut stream = client.open_event_stream("/api/v1/events")?;
    let event_wait = if out.is_terminal() {
        REFRESH_INTERVAL
    } else {
        EVENT_WAIT
    };
    loop {
        match stream.next_event(event_wait)? {
            ApiEventPoll::Ended => break,
            ApiEventPoll::Quiet if out.is_terminal() => draw_screen(client, out)?,
            ApiEventPoll::Quiet => {}
            ApiEventPoll::Event(event) if out.format() == OutputFormat::Json => {
                out.write_raw_json(&event.data)?
            }
            ApiEventPoll::Event(_) => {
                let mut has_ended = false;
                for _ in 0..COALESCE_EVENTS_MAX {
                    match stream.next_event(COALESCE_TIME)? {
                        ApiEventPoll::Event(_) => {}
                        ApiEventPoll::Quiet => break,
                        ApiEventPoll::Ended => {
                            has_ended = true;
                            break;
                        }
                    }
                }
                if has_ended {
                    break;
                }
                draw_screen(client, out)?;
            }
        }
    }
    out.write_note("the gateway stopped");
    Ok(CliExit::Ok)
}

fn draw_screen(client: &ApiClient, out: &mut CliOutput) -> Result<(), CliFailure> {
    if out.format() == OutputFormat::Human {
        // Without a terminal the screens follow each other.
        let clear = if out.is_terminal() { CLEAR_SCREEN } else { "" };
        let body = client.get("/api/v1/status", super::QUICK_TIMEOUT)?;
        let screen = super::render_screen(&super::api_types::parse_response(&body)?);
        out.write_line(&format!("{clear}{screen}"))?;
    }
    Ok(())
}

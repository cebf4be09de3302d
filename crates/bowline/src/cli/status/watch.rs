//! The screen again whenever something happens; for programs, what happens, line by line.

use std::time::Duration;

use super::super::client::{Client, Step};
use super::super::failure::{Exit, Failure};
use super::super::out::{Format, Out};

/// After something happened, what happens within this time is shown with it.
const TOGETHER: Duration = Duration::from_millis(100);

/// Events that are shown together at most, however fast they come.
const TOGETHER_MAX: usize = 1_000;

/// On a terminal, numbers are brought up to date this often.
const REFRESH: Duration = Duration::from_secs(2);

/// Where nobody looks at a screen, only events count.
const PATIENCE: Duration = Duration::from_secs(3_600);

/// Clears the screen; taken out where the output is no terminal.
const CLEAR: &str = "\u{1b}[2J\u{1b}[H";

pub(super) fn run(client: &Client, out: &mut Out) -> Result<Exit, Failure> {
    let mut stream = client.follow("/api/v1/events")?;
    let patience = if out.is_terminal() { REFRESH } else { PATIENCE };
    loop {
        match stream.next(patience)? {
            Step::Ended => break,
            Step::Quiet if out.is_terminal() => draw(client, out)?,
            Step::Quiet => {}
            Step::Event(event) if out.format() == Format::Json => out.raw(&event.data)?,
            Step::Event(_) => {
                let mut ended = false;
                for _ in 0..TOGETHER_MAX {
                    match stream.next(TOGETHER)? {
                        Step::Event(_) => {}
                        Step::Quiet => break,
                        Step::Ended => {
                            ended = true;
                            break;
                        }
                    }
                }
                if ended {
                    break;
                }
                draw(client, out)?;
            }
        }
    }
    out.note("the gateway stopped");
    Ok(Exit::Ok)
}

fn draw(client: &Client, out: &mut Out) -> Result<(), Failure> {
    if out.format() == Format::Human {
        // Without a terminal the screens stand one below the other.
        let clear = if out.is_terminal() { CLEAR } else { "" };
        let body = client.get("/api/v1/status", super::QUICK)?;
        let screen = super::screen(&super::api::read(&body)?);
        out.line(&format!("{clear}{screen}"))?;
    }
    Ok(())
}

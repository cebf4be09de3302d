//! A peer that knows the first frames only: it delivers numbered requests under ids that stay the
//! same, and waits for a receipt and a reply of each, over as many connections as it takes.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, bail};
use serde_json::{Value, json};

use super::{
    random::Random,
    tally::{End, Ended},
};
use crate::{
    process,
    socket::{Came, Socket},
};

/// Requests on their way at once.
const WINDOW: usize = 8;

/// One request in so many is delivered twice at once, as a peer would that is unsure.
const TWICE: u64 = 8;

/// A connection that says nothing for so long, no ping either, is given up.
const SILENCE: Duration = Duration::from_secs(25);

/// How long a reply may take after everything healed: longer than every fault.
const REPLY: Duration = Duration::from_secs(200);

/// The pause before the next connection.
const AGAIN: Duration = Duration::from_millis(200);

const HEAR: Duration = Duration::from_millis(500);

/// Longest time a tool takes on purpose.
const TOOL_MS_MAX: u64 = 30;

/// What one peer does.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) address: SocketAddr,
    pub(super) name: String,
    pub(super) token: String,
    pub(super) server: String,
    pub(super) first: u64,
    pub(super) count: u64,
}

/// A request that has no reply yet.
#[derive(Debug)]
struct Sent {
    number: u64,
    ms: u64,
    since: Instant,
    receipt: bool,
    /// Deliveries after the first.
    again: u64,
}

#[derive(Debug)]
struct Open {
    next: u64,
    sent: BTreeMap<String, Sent>,
    random: Random,
}

impl Peer {
    /// Has all its numbers written, and says what became of each.
    pub(super) fn work(&self, say: impl Fn(&Ended)) {
        let mut open = Open {
            next: self.first,
            sent: BTreeMap::new(),
            random: Random::new(self.first + 1),
        };
        while open.next < self.first + self.count || !open.sent.is_empty() {
            // Whatever ended it, what is open is delivered again over the next one.
            if let Err(error) = self.connection(&mut open, &say)
                && process::env("BOWLINE_FLEET_VERBOSE").is_some()
            {
                eprintln!("{}: {error:#}", self.name);
            }
            self.give_up(&mut open, &say);
            thread::sleep(AGAIN);
        }
    }

    fn connection(&self, open: &mut Open, say: &impl Fn(&Ended)) -> Result<()> {
        let mut socket = Socket::join(self.address, &self.name, &self.token)?;
        socket.say(&json!({"kind": "subscribe"}))?;
        for (id, sent) in &mut open.sent {
            if !sent.receipt {
                sent.again += 1;
                socket.say(&self.deliver(id, sent))?;
            }
        }
        loop {
            while open.sent.len() < WINDOW && open.next < self.first + self.count {
                let (id, sent) = open.request(&self.name);
                socket.say(&self.deliver(&id, &sent))?;
                if open.random.below(TWICE) == 0 {
                    socket.say(&self.deliver(&id, &sent))?;
                }
                open.sent.insert(id, sent);
            }
            if open.sent.is_empty() {
                return Ok(());
            }
            match socket.hear(HEAR)? {
                Came::Text(text) => {
                    let frame: Value = serde_json::from_slice(&text)?;
                    self.take(&frame, &mut socket, open, say)?;
                }
                Came::Nothing if socket.silence() > SILENCE => bail!("silence"),
                Came::Nothing => self.give_up(open, say),
                Came::Closed(code) => bail!("closed {code:?}"),
            }
        }
    }

    fn deliver(&self, id: &str, sent: &Sent) -> Value {
        let arguments = json!({"number": sent.number, "ms": sent.ms}).to_string();
        let tool = format!("{}__write_again", self.server);
        json!({"kind": "deliver", "to": "hub", "message": {
            "id": id,
            "from": {"session_id": self.name},
            "kind": "mcp_request",
            "body": {"op": "call", "tool": tool, "arguments": arguments},
            "created_at": "2026-01-01T00:00:00Z",
        }})
    }

    fn take(
        &self,
        frame: &Value,
        socket: &mut Socket,
        open: &mut Open,
        say: &impl Fn(&Ended),
    ) -> Result<()> {
        let text = |at: &str| frame.pointer(at).and_then(Value::as_str);
        match text("/kind") {
            Some("delivered") => {
                let sent = text("/id").and_then(|id| open.sent.get_mut(id));
                if let Some(sent) = sent {
                    sent.receipt = true;
                }
            }
            Some("error") => match text("/id").and_then(|id| open.sent.remove_entry(id)) {
                // Refused, so nothing was stored.
                Some((_, sent)) => {
                    let code = text("/code").unwrap_or("?");
                    say(&sent.ended(End::NotStarted, code));
                }
                None => bail!("{frame}"),
            },
            Some("message") => {
                let (Some(letter), Some(request)) =
                    (text("/message/id"), text("/message/correlation_id"))
                else {
                    bail!("a message without ids: {frame}");
                };
                match open.sent.remove(request) {
                    Some(sent) => say(&sent.judge(frame.pointer("/message/body"))),
                    // Replied to before, and the acknowledgement was lost.
                    None if is_ours(request, &self.name) => {}
                    None => say(&stray(request)),
                }
                socket.say(&json!({"kind": "ack", "id": letter}))?;
            }
            _ => {}
        }
        Ok(())
    }

    /// Ends what has waited too long.
    fn give_up(&self, open: &mut Open, say: &impl Fn(&Ended)) {
        open.sent.retain(|_, sent| {
            let over = sent.since.elapsed() > REPLY;
            if over {
                let end = if sent.receipt { End::Silent } else { End::Gone };
                say(&sent.ended(end, "no reply"));
            }
            !over
        });
    }
}

fn is_ours(request: &str, name: &str) -> bool {
    request
        .strip_prefix(name)
        .is_some_and(|rest| rest.starts_with('.'))
}

/// A reply to a request of somebody else.
fn stray(request: &str) -> Ended {
    Ended {
        number: u64::MAX,
        end: End::Crossed,
        code: format!("a reply to {request}"),
        refused: 0,
        writes: false,
        receipt: false,
        took: 0,
    }
}

impl Open {
    fn request(&mut self, name: &str) -> (String, Sent) {
        let number = self.next;
        self.next += 1;
        let sent = Sent {
            number,
            ms: self.random.below(TOOL_MS_MAX),
            since: process::now(),
            receipt: false,
            again: 0,
        };
        (format!("{name}.{number}"), sent)
    }
}

impl Sent {
    /// What a reply says. Its receipt may have been lost on the way; then none is counted.
    fn judge(&self, body: Option<&Value>) -> Ended {
        let text = |at: &str| body?.pointer(at)?.as_str();
        if body.and_then(|body| body.get("error")).is_some() {
            let end = match text("/failure/execution") {
                Some("not_started") => End::NotStarted,
                Some("unknown") => End::Unknown,
                _ => End::Failed,
            };
            let code = text("/failure/code").or_else(|| text("/error"));
            return self.ended(end, code.unwrap_or("?"));
        }
        let said = text("/result/result").and_then(|said| serde_json::from_str(said).ok());
        let number = said.and_then(|said: Value| said.get("number")?.as_u64());
        let well = body.and_then(|body| body.pointer("/result/success")) == Some(&json!(true));
        match number {
            Some(number) if number == self.number && well => self.ended(End::Answered, ""),
            Some(_) => self.ended(End::Crossed, "another number"),
            None => self.ended(End::Failed, text("/result/result").unwrap_or("?")),
        }
    }

    fn ended(&self, end: End, code: &str) -> Ended {
        Ended {
            number: self.number,
            end,
            code: code.to_owned(),
            refused: self.again,
            writes: true,
            receipt: self.receipt,
            took: u64::try_from(self.since.elapsed().as_millis()).unwrap_or(u64::MAX),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_is_judged_by_its_number_and_by_its_failure() {
        let (_, sent) = Open {
            next: 7,
            sent: BTreeMap::new(),
            random: Random::new(1),
        }
        .request("peer");
        let result = |text: &str| json!({"result": {"success": true, "result": text}});
        let failure = |execution: &str| json!({"error": "no", "failure": {"execution": execution, "code": "expired"}});
        for (body, end) in [
            (result(r#"{"number":7}"#), End::Answered),
            (result(r#"{"number":8}"#), End::Crossed),
            (result("what?"), End::Failed),
            (failure("not_started"), End::NotStarted),
            (failure("unknown"), End::Unknown),
        ] {
            assert_eq!(sent.judge(Some(&body)).end, end, "{body}");
        }
        assert!(is_ours("peer.7", "peer") && !is_ours("peer-2.7", "peer"));
    }
}

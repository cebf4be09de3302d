//! Questions of servers as a result that asks, and the state that comes back with the answers.

use std::sync::Arc;

use bowline_core::sync::lock;
use bowline_wire::era::input::{self, Ask};
use bowline_wire::object;

use super::Told;
use crate::edge::modern::end::End;
use crate::edge::modern::state::{self, State, Ticket};

/// Parks a call and writes the result that asks its caller what servers want to know; `None` when
/// it cannot wait here, or nothing is asked any more.
pub(super) fn park(told: &Told, end: &Arc<End>) -> Option<Vec<u8>> {
    let edge = &told.edge;
    let now = edge.host.clock().now();
    let (handle, round) = {
        let mut parked = lock(&edge.calls.parked);
        match end.handle() {
            Some(handle) => (handle, parked.park_again(handle, now)?),
            None => {
                let own = &told.principal.name;
                parked.park(own, Arc::clone(end), now).ok()?
            }
        }
    };
    end.parked_as(handle);
    let digest = told.digest();
    let ticket = State::Parked(Ticket {
        boot: edge.calls.boot,
        handle,
        round,
    });
    let now_ms = edge.host.clock().unix_ms();
    let sealed = state::seal(
        edge.sessions.sealing(),
        told.bound(&digest),
        now_ms,
        &ticket,
    );
    let written = sealed.and_then(|sealed| write(end, &sealed));
    if written.is_none() {
        lock(&edge.calls.parked).go_on(handle);
    }
    written
}

/// Writes what is open now; `None` where nothing is.
fn write(end: &End, state: &str) -> Option<Vec<u8>> {
    let open = open(end);
    let asks: Vec<_> = open.iter().map(Open::ask).collect();
    (!asks.is_empty()).then(|| input::required(&asks, Some(state)))
}

/// A question that waits for its answer, as this era asks it.
#[derive(Debug)]
pub(in crate::edge::modern) struct Open {
    key: String,
    method: String,
    params: Option<Vec<u8>>,
}

impl Open {
    /// Returns it as it is written.
    pub(in crate::edge::modern) fn ask(&self) -> Ask<'_> {
        Ask {
            key: &self.key,
            method: &self.method,
            params: self.params.as_deref(),
        }
    }
}

/// Returns the questions that are open now.
pub(in crate::edge::modern) fn open(end: &End) -> Vec<Open> {
    let mut open = Vec::new();
    end.each_open(|key, request| {
        let method = object::text(request, "method").unwrap_or_default();
        let params = object::field(request, "params").map(|at| at.of(request));
        let params = params.map(|params| input::question_to_modern(&method, params).into_owned());
        open.push(Open {
            key: key.to_owned(),
            method: method.into_owned(),
            params,
        });
    });
    open
}

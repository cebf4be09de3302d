//! Has a server started by an executor.

use std::sync::Arc;

use bowline_wire::executor::{Frame, SERVER_WINDOW_BYTES, Start};
use tokio::time::{Instant, timeout_at};

use super::{Distant, Running, Stage};
use crate::executor::{Tunnel, faults};
use crate::http::road::trouble;
use crate::link::LinkError;

impl Tunnel {
    /// Has a server started that the executor knows by this name, and waits until it runs. Where
    /// the future is dropped, or fails, nothing is left behind.
    ///
    /// # Errors
    /// The executor does not start it, or is gone: `Elsewhere` and `Unreachable` tell why.
    pub async fn start(&self, server: &str, deadline: Instant) -> Result<Distant, LinkError> {
        let place = self.place(Some(deadline)).await.map_err(trouble)?;
        let session = self.session();
        let number = session.number();
        let voice = self.voice().clone();
        let running = Running::new(number, Arc::clone(session), (voice.clone(), place));
        let running = Arc::new(running);
        let distant = Distant {
            running: Arc::clone(&running),
            are_streams_given: false,
        };
        let added = session.add(self.connection(), number, Arc::clone(&running) as _);
        added.map_err(|ended| trouble(faults::away(&ended.to_string())))?;
        voice.say(&Frame::Start {
            stream: number,
            start: Start {
                server: server.into(),
                credit: SERVER_WINDOW_BYTES,
            },
        });
        let mut standing = running.standing.subscribe();
        let asked = standing.wait_for(|now| now.stage != Stage::Asked);
        let late = |_| LinkError::Unreachable("the executor did not start it in time".into());
        let stage = timeout_at(deadline, asked).await.map_err(late)?;
        match stage.map(|now| now.stage.clone()) {
            Ok(Stage::Over(_, Some(fault))) => Err(trouble(faults::told(&fault))),
            Ok(Stage::Over(_, None)) => Err(trouble(faults::away("the executor was lost"))),
            Ok(Stage::Asked | Stage::Runs) | Err(_) => Ok(distant),
        }
    }
}

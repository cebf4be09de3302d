//! What every server offers, asked of all side by side; one that fails says why in its place.

use std::sync::Arc;
use std::time::Duration;

use bowline_core::call::{Kind, Principal, Scope};
use bowline_core::error::CallError;
use bowline_core::policy::Thing;
use bowline_core::time::Now;
use tokio::task::JoinSet;
use tokio::time::timeout_at;

use super::Host;
use crate::catalog::{Item, Offer};
use crate::supervisor::{State, Supervisor};

/// The longest that anybody waits for servers that are starting, unless told otherwise.
pub const DISCOVER_MAX: Duration = Duration::from_secs(15);

/// The longest wait for a server that is being started anew, where its tools of before are known.
pub const FRESH_LIST_WAIT: Duration = Duration::from_secs(5);

/// One server and what came of asking for its tools.
#[derive(Clone, Debug)]
pub struct Discovered {
    /// The server.
    pub server: Arc<str>,
    /// Its tools that the principal may see, or why there are none.
    pub tools: Result<Vec<Item>, Undiscovered>,
}

/// Why the tools of a server are not to be had.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Undiscovered {
    /// The class of the failure.
    pub class: &'static str,
    /// What happened.
    pub message: Arc<str>,
}

impl Host {
    /// Asks every server for its tools, all at once, and returns what is known after `wait` at
    /// the latest, by name. A server that waits for its first call is started only where nobody
    /// knows what it offers. One that is being started anew is waited for, but not longer than
    /// [`FRESH_LIST_WAIT`]; where that is too short, its tools of before are marked by their age.
    ///
    /// ```
    /// use bowline_host::tools::Toolbox;
    /// use bowline_host::{Host, Principal, Role, Server, SpawnOptions, ToolOutput};
    /// use serde_json::json;
    ///
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
    /// let clock = Toolbox::default().with(("now", "The time."), &json!({}), |_, _| async {
    ///     Ok(ToolOutput::of_text("noon"))
    /// });
    /// let host = Host::builder().build()?;
    /// host.spawn(Server::in_process("clock", clock), SpawnOptions::default()).await?;
    /// let owner = Principal::new("me", Role::Owner);
    /// let found = host.discover(&owner, std::time::Duration::from_secs(1)).await;
    /// let lines: Vec<_> = found.into_iter().flat_map(|one| one.into_entries()).collect();
    /// let line = serde_json::to_value(&lines[0])?;
    /// assert_eq!((&line["server"], &line["tool"]), (&json!("clock"), &json!("now")));
    /// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub async fn discover(&self, principal: &Principal, wait: Duration) -> Vec<Discovered> {
        let deadline = self.clock().now().plus(wait);
        // Dropped with us: who does not wait any more has nobody asked.
        let mut asked = JoinSet::new();
        for name in self.servers() {
            // Of what a principal cannot reach it learns nothing, and starts nothing.
            if !self.path.decider.reaches(principal, &Scope::All, &name) {
                continue;
            }
            let Ok(server) = self.server(&name) else {
                continue;
            };
            let host = self.clone();
            asked.spawn(async move { (host.offered(&server, deadline).await, name) });
        }
        let mut all = Vec::new();
        while let Some(answer) = asked.join_next().await {
            let Ok((offer, server)) = answer else {
                continue;
            };
            let tools = match offer {
                Ok(offer) => match self.permitted(principal, &offer) {
                    // It has tools, and none of them for this principal.
                    tools if tools.is_empty() && !offer.tools.is_empty() => continue,
                    tools => Ok(tools),
                },
                Err(error) => Err(error),
            };
            all.push(Discovered { server, tools });
        }
        all.sort_by(|a, b| a.server.cmp(&b.server));
        all
    }

    async fn offered(
        &self,
        server: &Supervisor,
        deadline: Now,
    ) -> Result<Arc<Offer>, Undiscovered> {
        let name = &server.spec().name;
        self.list_fresh(server, deadline).await;
        if let Some(error) = server.gate() {
            return Err(told(server, &error));
        }
        if let Some(offer) = self.catalog().offer(name) {
            return Ok(Arc::clone(offer));
        }
        let listed = server.listed(deadline).await;
        listed.map_err(|error| told(server, &error))?;
        let offer = self.catalog().offer(name).map(Arc::clone);
        // Otherwise it went away again in the meantime.
        offer.ok_or_else(|| told(server, &stopped(name)))
    }

    /// Waits until a server that is being started anew has told its tools or failed: until then
    /// the catalog has those of before.
    pub(super) async fn list_fresh(&self, server: &Supervisor, deadline: Now) {
        let is_known = self.catalog().offer(&server.spec().name).is_some();
        if !is_known || server.state().borrow().is_settled() {
            return;
        }
        let deadline = deadline.min(self.clock().now().plus(FRESH_LIST_WAIT));
        let mut state = server.state();
        let settled = state.wait_for(State::is_settled);
        // Late is late: what is known from before says so.
        let _ = timeout_at(self.clock().instant(deadline), settled).await;
    }

    /// The same decision as for a call.
    fn permitted(&self, principal: &Principal, offer: &Offer) -> Vec<Item> {
        let may = |item: &&Item| {
            let thing = Thing {
                kind: Kind::Tool,
                server: &offer.server,
                name: &item.route.name,
                arguments: None,
            };
            self.path.decider.allows(principal, &Scope::All, thing)
        };
        offer.tools.items.iter().filter(may).cloned().collect()
    }
}

fn stopped(server: &Arc<str>) -> CallError {
    CallError::Stopped {
        server: Arc::clone(server),
    }
}

/// A refusal because of an earlier failure is told as that failure.
fn told(server: &Supervisor, error: &CallError) -> Undiscovered {
    let state = server.state().borrow().clone();
    let failed = matches!(state, State::Backoff { .. } | State::Ejected { .. });
    match server.last_error().filter(|_| failed) {
        Some(last) => Undiscovered {
            class: last.class,
            message: last.message,
        },
        None => Undiscovered {
            class: error.class().as_str(),
            message: server
                .spec()
                .secrets
                .clean_shared(&error.to_string().into()),
        },
    }
}

//! Servers come and go one by one, while calls to the others go on.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bowline_core::error::{CallError, Class};
use bowline_core::sync::lock;
use tokio::sync::oneshot;

use super::{Applied, Changed, Host};
use crate::callpath::Servers;
use crate::spawn::{SpawnError, SpawnOptions};
use crate::spec::ServerSpec;
use crate::supervisor::{Order, State, Supervisor};

impl Host {
    /// Takes a server into care and returns its name: the slug of the given one, where that is
    /// no server name.
    ///
    /// The guard is asked first. Unless it is lazy, the server is started and has told its tools
    /// when this returns; where that fails, it is not in care. Breaker, restart budget and answers
    /// of one of its name that was there before are gone. One that runs is replaced only where
    /// [`SpawnOptions::replace`] says so; its calls in flight end, and none of them goes over to
    /// the one that takes its place. Dropping the future takes a server that is still starting
    /// out again.
    ///
    /// ```
    /// use bowline_host::tools::Toolbox;
    /// use bowline_host::{Host, Server, SpawnError, SpawnOptions};
    ///
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
    /// let host = Host::builder().build()?;
    /// let own = || Server::in_process("own", Toolbox::default());
    /// assert_eq!(&*host.spawn(own(), SpawnOptions::default()).await?, "own");
    /// let again = host.spawn(own(), SpawnOptions::default()).await;
    /// assert!(matches!(again, Err(SpawnError::InUse(_))));
    /// host.stop("own").await?;
    /// host.spawn(own(), SpawnOptions::default()).await?;
    /// host.remove("own").await?;
    /// assert_eq!(host.stop("own").await.unwrap_err().to_string(), "no server named `own`");
    /// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// See [`SpawnError`]; whatever it is, no server of that name was added.
    pub async fn spawn(
        &self,
        spec: ServerSpec,
        options: SpawnOptions,
    ) -> Result<Arc<str>, SpawnError> {
        let spec = spec.with_slug();
        let server = Arc::clone(&spec.name);
        if server.is_empty() {
            return Err(SpawnError::NoName);
        }
        if let Err(refusal) = self.path.decider.welcomes(&server) {
            let reason = refusal.reason;
            return Err(SpawnError::Denied { server, reason });
        }
        let spec = options.applied(spec).await?;
        let mut entered = Entered {
            server: self.enter(spec, options.replace)?,
            host: self,
            stands: false,
        };
        entered.stands = entered.server.spec().lazy;
        if entered.stands {
            return Ok(server);
        }
        let mut state = entered.server.state();
        // The sender lives as long as the supervisor does.
        let _ = state.wait_for(State::is_settled).await;
        let state = state.borrow().clone();
        let (class, reason) = match state {
            State::Ready => {
                entered.stands = true;
                return Ok(server);
            }
            State::Backoff { class, reason, .. } => (class, reason),
            State::Ejected { reason } => (Class::ConnectFailed, reason),
            State::Idle | State::Stopped | State::Starting | State::Draining => {
                (Class::Unavailable, "it was stopped".into())
            }
        };
        Err(SpawnError::Start {
            server,
            class,
            reason,
        })
    }

    /// Stops a server and waits until it is gone. Calls are refused until it is started, reloaded
    /// or spawned again; its answers and its tools are gone.
    ///
    /// # Errors
    /// There is no server of that name.
    pub async fn stop(&self, name: &str) -> Result<(), CallError> {
        self.server(name)?.order(Order::Stop).await
    }

    /// Starts a server anew, with a clean breaker and restart budget and without its answers. Calls
    /// in flight end first; one that waits to be needed stays so.
    ///
    /// ```
    /// use bowline_host::tools::Toolbox;
    /// use bowline_host::{Host, Server, SpawnOptions, ToolOutput};
    /// use serde_json::json;
    ///
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
    /// let clock = Toolbox::default().with(("now", "The time."), &json!({}), |_, _| async {
    ///     Ok(ToolOutput::of_text("noon"))
    /// });
    /// let host = Host::builder().build()?;
    /// host.spawn(Server::in_process("clock", clock), SpawnOptions::default()).await?;
    /// host.reload("clock").await?;
    /// let unknown = host.reload("calendar").await.unwrap_err();
    /// assert_eq!(unknown.to_string(), "no server named `calendar`");
    /// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// There is no server of that name.
    pub async fn reload(&self, name: &str) -> Result<(), CallError> {
        self.server(name)?.order(Order::Reload).await
    }

    /// Says that a server knows us by other credentials from now on. It goes on; its kept answers
    /// are forgotten and its lists are asked for again, and sessions whose view is another one by
    /// then are told once. One that failed is tried again at once; one that a person stopped stays
    /// stopped.
    pub async fn credentials_changed(&self, name: &str) {
        if let Ok(server) = self.server(name) {
            server.credentials_changed().await;
        }
    }

    /// Takes a server out of care and waits for its end. Calls in flight end first; whoever
    /// resolved a name to it before does not reach another server of that name.
    ///
    /// # Errors
    /// There is no server of that name.
    pub async fn remove(&self, name: &str) -> Result<(), CallError> {
        let server = self.server(name)?;
        if let Some(gone) = self.leave(&server) {
            // Where nobody tells, the host went down with all its servers.
            let _ = gone.await;
        }
        Ok(())
    }

    /// Takes every server out of care and waits for their end; the host goes on.
    pub async fn remove_all(&self) {
        let servers = self.path.servers.load_full();
        let gone: Vec<_> = servers.values().filter_map(|one| self.leave(one)).collect();
        for gone in gone {
            let _ = gone.await;
        }
    }

    fn enter(&self, spec: ServerSpec, replace: bool) -> Result<Supervisor, SpawnError> {
        let name = Arc::clone(&spec.name);
        let mut applied = Applied::default();
        let (server, before) = {
            let _turn = lock(&self.turn);
            if self.path.closing.load(Ordering::Relaxed) {
                return Err(SpawnError::ShuttingDown);
            }
            let old = self.path.servers.load_full();
            let before = old.get(&name).cloned();
            if let Some(before) = &before {
                // The server name itself always means the server that has it.
                if spec.given_name.is_some() {
                    let clash = spec.check_clash(before.spec());
                    clash.map_err(SpawnError::NameClash)?;
                }
                if before.runs() && !replace {
                    return Err(SpawnError::InUse(name));
                }
                before.forsake();
                self.path.catalog.withdraw(&name);
                let keys = before.spec().differences(&spec);
                let server = Arc::clone(&name);
                applied.changed.push(Changed { server, keys });
            } else {
                applied.added.push(Arc::clone(&name));
            }
            let server = self.take_in(spec, before.as_ref());
            let mut new = Servers::clone(&old);
            new.insert(name, server.clone());
            self.path.servers.store(Arc::new(new));
            if before.is_some() {
                // After the swap: a call that is at the old one yet leaves nothing.
                self.path.answers.purge(&server.spec().name);
            }
            (server, before)
        };
        if let Some(before) = before {
            drop(self.retired(before));
        }
        self.standing.poke(&server);
        self.tell(&applied);
        Ok(server)
    }

    /// Takes this very server out of care, unless another has its name by now; what is returned
    /// ends when it is gone.
    fn leave(&self, server: &Supervisor) -> Option<oneshot::Receiver<()>> {
        let name = &server.spec().name;
        {
            let _turn = lock(&self.turn);
            let old = self.path.servers.load_full();
            if !old.get(name).is_some_and(|now| now.is(server)) {
                return None;
            }
            server.forsake();
            let mut new = Servers::clone(&old);
            new.remove(name);
            self.path.servers.store(Arc::new(new));
            self.path.catalog.withdraw(name);
            self.path.catalog.unlisted.remove(name);
            self.path.answers.forget(name);
        }
        self.tell(&Applied {
            removed: vec![Arc::clone(name)],
            ..Applied::default()
        });
        Some(self.retired(server.clone()))
    }

    /// Lets a server go for good, whether anybody waits for it or not.
    pub(super) fn retired(&self, server: Supervisor) -> oneshot::Receiver<()> {
        let (done, gone) = oneshot::channel();
        let path = Arc::clone(&self.path);
        self.around.tasks.spawn("retirement", async move {
            server.retire().await;
            let name = &server.spec().name;
            // It may have told its tools at the very moment at which it was taken out.
            if !path.servers.load().contains_key(name) {
                path.catalog.withdraw(name);
            }
            let _ = done.send(());
        });
        gone
    }
}

/// A server that was taken in; dropped before it stands, it is taken out again.
struct Entered<'a> {
    host: &'a Host,
    server: Supervisor,
    stands: bool,
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        if !self.stands {
            drop(self.host.leave(&self.server));
        }
    }
}

//! Adds and removes single servers while calls to the rest continue.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bowline_core::error::{CallError, FailureClass};
use bowline_core::sync::lock;
use tokio::sync::oneshot;

use super::{ApplyReport, ChangedServer, Host};
use crate::callpath::ServerMap;
use crate::spawn_options::{SpawnError, SpawnOptions};
use crate::spec::ServerSpec;
use crate::supervisor::{ServerAction, ServerState, Supervisor};

impl Host {
    /// Adds a server and returns its name: the slug of the given name if that is not a valid server
    /// name.
    ///
    /// The guard is asked first. Unless lazy, the server is started and has listed its tools on
    /// return; if that fails, it is removed. Breaker, restart budget and cached responses of a
    /// predecessor are dropped. A running server is replaced only with [`SpawnOptions::replace`];
    /// its calls in flight end, and none moves to the replacement. Dropping the future removes a
    /// server that is still starting.
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
    /// host.stop_server("own").await?;
    /// host.spawn(own(), SpawnOptions::default()).await?;
    /// host.remove_server("own").await?;
    /// assert_eq!(host.stop_server("own").await.unwrap_err().to_string(), "no server named `own`");
    /// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// See [`SpawnError`]; in every case no server was added.
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
        if let Err(refusal) = self.call_path.authorizer.check_server(&server) {
            let reason = refusal.reason;
            return Err(SpawnError::Denied { server, reason });
        }
        self.deps.dial.check_transport(&spec)?;
        let spec = options.apply_to(spec).await?;
        let mut guard = SpawnGuard {
            server: self.insert_server(spec, options.replace)?,
            host: self,
            is_ready: false,
        };
        guard.is_ready = guard.server.spec().lazy;
        if guard.is_ready {
            return Ok(server);
        }
        let mut state = guard.server.subscribe_state();
        // The sender lives as long as the supervisor.
        let _ = state.wait_for(ServerState::is_settled).await;
        let state = state.borrow().clone();
        let (class, reason) = match state {
            ServerState::Ready => {
                guard.is_ready = true;
                return Ok(server);
            }
            ServerState::Backoff { class, reason, .. } => (class, reason),
            ServerState::Ejected { reason } => (FailureClass::ConnectFailed, reason),
            ServerState::Idle
            | ServerState::Stopped
            | ServerState::Starting
            | ServerState::Draining => (FailureClass::Unavailable, "it was stopped".into()),
        };
        Err(SpawnError::Start {
            server,
            class,
            reason,
        })
    }

    /// Stops a server and waits for its end. Calls are refused until it is started, reloaded or
    /// spawned again; its cached responses and tools are dropped.
    ///
    /// # Errors
    /// Unknown server.
    pub async fn stop_server(&self, name: &str) -> Result<(), CallError> {
        self.server(name)?.apply_action(ServerAction::Stop).await
    }

    /// Restarts a server with a fresh breaker and restart budget and without cached responses.
    /// Calls in flight finish first; an idle server stays idle.
    ///
    /// ```
    /// use bowline_host::tools::Toolbox;
    /// use bowline_host::{Host, Server, SpawnOptions, ToolOutput};
    /// use serde_json::json;
    ///
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
    /// let clock = Toolbox::default().with("now", "The time.", &json!({}), |_, _| async {
    ///     Ok(ToolOutput::from_text("noon"))
    /// });
    /// let host = Host::builder().build()?;
    /// host.spawn(Server::in_process("clock", clock), SpawnOptions::default()).await?;
    /// host.reload_server("clock").await?;
    /// let unknown = host.reload_server("calendar").await.unwrap_err();
    /// assert_eq!(unknown.to_string(), "no server named `calendar`");
    /// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Unknown server.
    pub async fn reload_server(&self, name: &str) -> Result<(), CallError> {
        self.server(name)?.apply_action(ServerAction::Reload).await
    }

    /// Reports changed credentials of a server. The server continues; its cached responses are
    /// purged and its lists refreshed, and sessions with a changed view are notified once. A failed
    /// server is retried at once; a stopped server stays stopped.
    pub async fn on_credentials_changed(&self, name: &str) {
        if let Ok(server) = self.server(name) {
            server.on_credentials_changed().await;
        }
    }

    /// Removes a server and waits for its end. Calls in flight finish first; a name resolved
    /// earlier never reaches a later server of the same name.
    ///
    /// # Errors
    /// Unknown server.
    pub async fn remove_server(&self, name: &str) -> Result<(), CallError> {
        let server = self.server(name)?;
        if let Some(retired) = self.detach_server(&server) {
            // An error means that the host went down with all servers.
            let _ = retired.await;
        }
        Ok(())
    }

    /// Removes every server and waits for their end; the host continues.
    pub async fn remove_all_servers(&self) {
        let servers = self.call_path.servers.load_full();
        let retired: Vec<_> = servers
            .values()
            .filter_map(|one| self.detach_server(one))
            .collect();
        for retired in retired {
            let _ = retired.await;
        }
    }

    fn insert_server(&self, spec: ServerSpec, replace: bool) -> Result<Supervisor, SpawnError> {
        let name = Arc::clone(&spec.name);
        let mut applied = ApplyReport::default();
        let (server, before) = {
            let _turn = lock(&self.starting);
            if self.call_path.closing.load(Ordering::Relaxed) {
                return Err(SpawnError::ShuttingDown);
            }
            let old = self.call_path.servers.load_full();
            let before = old.get(&name).cloned();
            if let Some(before) = &before {
                // A plain server name always refers to the server holding it.
                if spec.given_name.is_some() {
                    let clash = spec.check_clash(before.spec());
                    clash.map_err(SpawnError::NameClash)?;
                }
                if before.is_running() && !replace {
                    return Err(SpawnError::InUse(name));
                }
                before.detach();
                self.call_path.catalog.withdraw_server(&name);
                let keys = before.spec().changed_keys(&spec);
                let server = Arc::clone(&name);
                applied.changed.push(ChangedServer { server, keys });
            } else {
                applied.added.push(Arc::clone(&name));
            }
            let server = self.start_server(spec, before.as_ref());
            let mut new = ServerMap::clone(&old);
            new.insert(name, server.clone());
            self.call_path.servers.store(Arc::new(new));
            if before.is_some() {
                // After the swap: a call still at the old server caches nothing.
                self.call_path.cache.purge_server(&server.spec().name);
            }
            (server, before)
        };
        if let Some(before) = before {
            drop(self.retire_in_background(before));
        }
        self.subscriptions.wake(&server);
        self.emit_config_event(&applied);
        Ok(server)
    }

    /// Removes this very server, unless a successor holds the name; the receiver fires at its end.
    fn detach_server(&self, server: &Supervisor) -> Option<oneshot::Receiver<()>> {
        let name = &server.spec().name;
        {
            let _turn = lock(&self.starting);
            let old = self.call_path.servers.load_full();
            if !old.get(name).is_some_and(|now| now.is_same(server)) {
                return None;
            }
            server.detach();
            let mut new = ServerMap::clone(&old);
            new.remove(name);
            self.call_path.servers.store(Arc::new(new));
            self.call_path.catalog.withdraw_server(name);
            self.call_path.catalog.unlisted.remove(name);
            self.call_path.cache.forget_server(name);
        }
        self.emit_config_event(&ApplyReport {
            removed: vec![Arc::clone(name)],
            ..ApplyReport::default()
        });
        Some(self.retire_in_background(server.clone()))
    }

    /// Retires a server in the background.
    pub(super) fn retire_in_background(&self, server: Supervisor) -> oneshot::Receiver<()> {
        let (done, retired) = oneshot::channel();
        let path = Arc::clone(&self.call_path);
        self.deps.tasks.spawn("retirement", async move {
            server.retire().await;
            let name = &server.spec().name;
            // The server may have listed its tools just before its removal.
            if !path.servers.load().contains_key(name) {
                path.catalog.withdraw_server(name);
            }
            let _ = done.send(());
        });
        retired
    }
}

/// A server being added; removed on drop unless ready.
struct SpawnGuard<'a> {
    host: &'a Host,
    server: Supervisor,
    is_ready: bool,
}

impl Drop for SpawnGuard<'_> {
    fn drop(&mut self) {
        if !self.is_ready {
            drop(self.host.detach_server(&self.server));
        }
    }
}

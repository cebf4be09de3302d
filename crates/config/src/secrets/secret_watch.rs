//! Detects changed secrets and updates the affected servers.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;
use std::time::Duration;

use bowline_core::sync::lock;
use bowline_host::Host;
use bowline_runtime::Shutdown;

use super::output_slot::FetchReason;
use super::secret_program::SecretFetcher;
use super::{SecretSources, SecretVault};
use crate::ConfigTemplate;
use crate::reload::Reloader;

/// Poll interval.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// The templates of one server with values that may change.
#[derive(Clone, Debug, PartialEq)]
pub struct WatchedTemplates {
    /// The server.
    pub server: Arc<str>,
    /// Templates sent with requests: on a change the server stays up and relists.
    pub request_templates: TemplateSet,
    /// Templates needed to start the server: on a change the config file is applied again.
    pub start_templates: TemplateSet,
}

/// Templates, and a digest of their last values.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TemplateSet {
    templates: Vec<ConfigTemplate>,
    digest: u64,
}

impl TemplateSet {
    /// Keeps the templates whose value can change.
    pub(crate) fn from_templates(texts: impl IntoIterator<Item = ConfigTemplate>) -> Self {
        let texts = texts.into_iter().filter(|text| !text.is_fixed());
        let mut this = Self {
            templates: texts.collect(),
            digest: 0,
        };
        this.poll_changed();
        this
    }

    /// Returns whether the set holds no template.
    pub const fn is_empty(&self) -> bool {
        self.templates.is_empty()
    }

    /// Reads all values and returns whether any changed.
    fn poll_changed(&mut self) -> bool {
        let mut mixer = DefaultHasher::new();
        for text in &self.templates {
            text.expand().hash(&mut mixer);
        }
        let before = std::mem::replace(&mut self.digest, mixer.finish());
        before != self.digest
    }

    fn due_fetchers(&self) -> Vec<SecretFetcher> {
        self.templates
            .iter()
            .flat_map(ConfigTemplate::due_fetchers)
            .collect()
    }
}

/// Result of one poll.
#[derive(Debug, Default)]
struct SecretChanges {
    /// Servers with changed request templates.
    changed_servers: Vec<Arc<str>>,
    /// Whether templates needed at a start changed.
    has_start_change: bool,
    /// Programs due for another run.
    due_fetchers: Vec<SecretFetcher>,
}

impl SecretVault {
    /// Replaces the polled templates.
    pub fn watch_templates(&self, watched: &[WatchedTemplates]) {
        *lock(&self.watched) = watched.to_vec();
        // Wakes a watcher without templates.
        self.notify_changed();
    }

    fn has_watched_templates(&self) -> bool {
        !lock(&self.watched).is_empty()
    }

    /// Polls all templates. Blocking: files may be slow.
    fn poll_templates(&self) -> SecretChanges {
        let mut watched = lock(&self.watched).clone();
        let mut changes = SecretChanges::default();
        for server_templates in &mut watched {
            changes
                .due_fetchers
                .extend(server_templates.request_templates.due_fetchers());
            changes
                .due_fetchers
                .extend(server_templates.start_templates.due_fetchers());
            changes.has_start_change |= server_templates.start_templates.poll_changed();
            if server_templates.request_templates.poll_changed() {
                changes
                    .changed_servers
                    .push(Arc::clone(&server_templates.server));
            }
        }
        // A new configuration may have replaced the templates; its values were read on load.
        let mut now = lock(&self.watched);
        let is_same = now.len() == watched.len()
            && (now.iter().zip(&watched)).all(|(now, then)| now.has_same_templates(then));
        if is_same {
            *now = watched;
        }
        changes
    }

    /// Runs the programs with outdated output.
    fn run_fetchers(&self, due: &[SecretFetcher]) {
        for fetcher in due {
            // The fetch logs its error.
            let _fetched = self.fetch_secret(fetcher, FetchReason::Age);
        }
    }
}

impl WatchedTemplates {
    /// Returns whether the server has no changeable template.
    pub const fn is_empty(&self) -> bool {
        self.request_templates.is_empty() && self.start_templates.is_empty()
    }

    /// Moves all templates to `started`: any change may let a broken server start.
    pub(crate) fn require_all_to_start(&mut self) {
        let per_request = std::mem::take(&mut self.request_templates);
        self.start_templates = TemplateSet::from_templates(
            per_request
                .templates
                .into_iter()
                .chain(self.start_templates.templates.drain(..)),
        );
    }

    fn has_same_templates(&self, other: &Self) -> bool {
        self.server == other.server
            && self.request_templates.templates == other.request_templates.templates
            && self.start_templates.templates == other.start_templates.templates
    }
}

/// Watches the secrets of the configuration in force until shutdown.
pub async fn watch_secrets(
    reloader: Arc<Reloader>,
    host: Host,
    sources: SecretSources,
    shutdown: Shutdown,
) {
    let vault = sources.vault();
    tokio::select! {
        () = poll_secrets(&reloader, &host, vault) => {}
        () = shutdown.wait_closing() => {}
    }
}

async fn poll_secrets(reloader: &Reloader, host: &Host, vault: &Arc<SecretVault>) {
    loop {
        let pause = async {
            if vault.has_watched_templates() {
                tokio::time::sleep(POLL_INTERVAL).await;
            } else {
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            () = vault.changed.notified() => {}
            () = pause => {}
        }
        let poller = Arc::clone(vault);
        let polling = tokio::task::spawn_blocking(move || poller.poll_templates());
        let Ok(changes) = polling.await else {
            continue;
        };
        for server in &changes.changed_servers {
            tracing::info!(%server, "server credentials changed");
            host.on_credentials_changed(server).await;
        }
        if changes.has_start_change {
            tracing::info!("a secret needed to start servers changed");
            // The file exists, and interested parties subscribe to outcomes.
            let _outcome = reloader.reload(host).await;
        }
        if !changes.due_fetchers.is_empty() {
            spawn_fetchers(host, vault, changes.due_fetchers);
        }
    }
}

/// Reruns outdated programs when no watcher runs.
pub async fn refresh_outdated(sources: SecretSources, texts: Vec<ConfigTemplate>) {
    let vault = sources.vault();
    loop {
        tokio::time::sleep(POLL_INTERVAL).await;
        let due: Vec<_> = texts
            .iter()
            .flat_map(ConfigTemplate::due_fetchers)
            .collect();
        if !due.is_empty() {
            let vault = Arc::clone(vault);
            // A failed join means a failed run, which stays due.
            let _ran = tokio::task::spawn_blocking(move || vault.run_fetchers(&due)).await;
        }
    }
}

/// Runs programs in a separate task: a hanging program must not delay the detection of changes.
fn spawn_fetchers(host: &Host, vault: &Arc<SecretVault>, due: Vec<SecretFetcher>) {
    let vault = Arc::clone(vault);
    host.tasks().spawn("secrets", async move {
        // A failed join means a failed run, which stays due.
        let _ran = tokio::task::spawn_blocking(move || vault.run_fetchers(&due)).await;
    });
}

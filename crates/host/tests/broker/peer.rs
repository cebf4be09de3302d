//! A peer in a box: connected or not, with a manifest, and answers by script.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bowline_core::era::Era;
use bowline_core::sync::lock;
use bowline_host::BoxFuture;
use bowline_host::broker::{Errand, ErrandError, Manifest, Remote, Ware};
use bowline_wire::broker::{Answer, Item};
use bytes::Bytes;
use tokio::sync::watch;

type Outcome = Result<Answer, ErrandError>;
type Script = Box<dyn Fn(Errand) -> BoxFuture<'static, Outcome> + Send + Sync>;

pub(crate) struct Peer {
    name: Arc<str>,
    manifest: Mutex<Arc<Manifest>>,
    connected: AtomicBool,
    changes: watch::Sender<u64>,
    script: Mutex<Arc<Script>>,
    pub(crate) asked: watch::Sender<Vec<Errand>>,
    pub(crate) taken_back: Arc<AtomicU64>,
}

impl fmt::Debug for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Peer").finish_non_exhaustive()
    }
}

/// One tool; `repeatable` where it ends in `?`.
pub(crate) fn item(server: &str, tool: &str) -> Item {
    let own = tool.trim_end_matches('?');
    let visible = format!("{server}__{own}");
    let definition =
        format!(r#"{{"name":"{visible}","inputSchema":{{"type":"object"}},"x":1.50}}"#);
    Item {
        name: visible.into(),
        server: Some(server.into()),
        tool: Some(own.into()),
        repeatable: own != tool,
        definition: definition.into(),
    }
}

pub(crate) fn output(text: &str) -> Answer {
    Answer::Output {
        result: Bytes::from(text.to_owned()),
        again: false,
        era: Era::Legacy,
    }
}

/// Moves the paused clock on, with all that is due in between.
pub(crate) async fn pass(time: Duration) {
    let _ = tokio::time::timeout(time, std::future::pending::<()>()).await;
}

/// Says that an errand was dropped before it had an answer.
struct Dropped(Arc<AtomicU64>);

impl Drop for Dropped {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

impl Peer {
    pub(crate) fn new(name: &str, tools: &[(&str, &str)]) -> Arc<Self> {
        let script: Script = Box::new(|_| Box::pin(async { Ok(output(r#"{"content":[]}"#)) }));
        let peer = Arc::new(Self {
            name: name.into(),
            manifest: Mutex::default(),
            connected: AtomicBool::new(true),
            changes: watch::Sender::new(0),
            script: Mutex::new(Arc::new(script)),
            asked: watch::Sender::default(),
            taken_back: Arc::default(),
        });
        peer.offer(tools);
        peer
    }

    pub(crate) fn remote(self: &Arc<Self>) -> Arc<dyn Remote> {
        Arc::clone(self) as Arc<dyn Remote>
    }

    pub(crate) fn offer(&self, tools: &[(&str, &str)]) {
        self.offer_whole(tools, Vec::new());
    }

    /// Offers some servers with all that they have.
    pub(crate) fn offer_whole(&self, tools: &[(&str, &str)], servers: Vec<Ware>) {
        let mut manifest = lock(&self.manifest);
        let revision = manifest.revision + 1;
        let items = tools.iter().map(|(server, tool)| item(server, tool));
        *manifest = Arc::new(Manifest {
            revision,
            items: items.collect(),
            servers,
        });
        drop(manifest);
        self.changes.send_modify(|nth| *nth += 1);
    }

    pub(crate) fn connect(&self, connected: bool) {
        self.connected.store(connected, Ordering::SeqCst);
        self.changes.send_modify(|nth| *nth += 1);
    }

    pub(crate) fn script<F>(&self, script: impl Fn(Errand) -> F + Send + Sync + 'static)
    where
        F: Future<Output = Outcome> + Send + 'static,
    {
        let script: Script = Box::new(move |errand| Box::pin(script(errand)));
        *lock(&self.script) = Arc::new(script);
    }

    pub(crate) async fn asked(&self, count: usize) -> Vec<Errand> {
        let mut asked = self.asked.subscribe();
        asked
            .wait_for(|asked| asked.len() >= count)
            .await
            .unwrap()
            .clone()
    }
}

impl Remote for Peer {
    fn ask(&self, errand: Errand) -> BoxFuture<'_, Outcome> {
        self.asked.send_modify(|asked| asked.push(errand.clone()));
        let script = Arc::clone(&lock(&self.script));
        let dropped = Dropped(Arc::clone(&self.taken_back));
        Box::pin(async move {
            let outcome = script(errand).await;
            std::mem::forget(dropped);
            outcome
        })
    }

    fn manifest(&self) -> Arc<Manifest> {
        Arc::clone(&lock(&self.manifest))
    }

    fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    fn is_connected(&self) -> bool {
        self.connected.load(Ordering::SeqCst)
    }

    fn name(&self) -> Arc<str> {
        Arc::clone(&self.name)
    }
}

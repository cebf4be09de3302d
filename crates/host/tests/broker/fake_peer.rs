//! A fake peer: connected or not, with a manifest and scripted responses.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use bowline_core::BoxFuture;
use bowline_core::era::Era;
use bowline_core::sync::lock;
use bowline_host::broker::frames::{BrokerResponse, ManifestItem};
use bowline_host::broker::{BrokerCall, BrokerCallError, OfferedServer, PeerManifest, RemotePeer};
use bytes::Bytes;
use tokio::sync::watch;

type ScriptOutcome = Result<BrokerResponse, BrokerCallError>;
type PeerScript = Box<dyn Fn(BrokerCall) -> BoxFuture<'static, ScriptOutcome> + Send + Sync>;

pub(crate) struct FakePeer {
    name: Arc<str>,
    manifest: Mutex<Arc<PeerManifest>>,
    connected: AtomicBool,
    changes: watch::Sender<u64>,
    script: Mutex<Arc<PeerScript>>,
    pub(crate) calls: watch::Sender<Vec<BrokerCall>>,
    pub(crate) cancelled: Arc<AtomicU64>,
}

impl fmt::Debug for FakePeer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FakePeer").finish_non_exhaustive()
    }
}

/// One tool; repeatable if the name ends in `?`.
pub(crate) fn item(server: &str, tool: &str) -> ManifestItem {
    let own = tool.trim_end_matches('?');
    let visible = format!("{server}__{own}");
    let definition =
        format!(r#"{{"name":"{visible}","inputSchema":{{"type":"object"}},"x":1.50}}"#);
    ManifestItem {
        name: visible.into(),
        server: Some(server.into()),
        tool: Some(own.into()),
        is_repeatable: own != tool,
        definition: definition.into(),
    }
}

pub(crate) fn output(text: &str) -> BrokerResponse {
    BrokerResponse::Output {
        result: Bytes::from(text.to_owned()),
        from_journal: false,
        era: Era::Legacy,
    }
}

/// Counts calls dropped before the response.
struct DropCounter(Arc<AtomicU64>);

impl Drop for DropCounter {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

impl FakePeer {
    pub(crate) fn new(name: &str, tools: &[(&str, &str)]) -> Arc<Self> {
        let script: PeerScript = Box::new(|_| Box::pin(async { Ok(output(r#"{"content":[]}"#)) }));
        let peer = Arc::new(Self {
            name: name.into(),
            manifest: Mutex::default(),
            connected: AtomicBool::new(true),
            changes: watch::Sender::new(0),
            script: Mutex::new(Arc::new(script)),
            calls: watch::Sender::default(),
            cancelled: Arc::default(),
        });
        peer.offer(tools);
        peer
    }

    pub(crate) fn remote(self: &Arc<Self>) -> Arc<dyn RemotePeer> {
        Arc::clone(self) as Arc<dyn RemotePeer>
    }

    pub(crate) fn offer(&self, tools: &[(&str, &str)]) {
        self.offer_server(tools, Vec::new());
    }

    /// Offers complete servers.
    pub(crate) fn offer_server(&self, tools: &[(&str, &str)], servers: Vec<OfferedServer>) {
        let mut manifest = lock(&self.manifest);
        let revision = manifest.revision + 1;
        let items = tools.iter().map(|(server, tool)| item(server, tool));
        *manifest = Arc::new(PeerManifest {
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

    pub(crate) fn script<F>(&self, script: impl Fn(BrokerCall) -> F + Send + Sync + 'static)
    where
        F: Future<Output = ScriptOutcome> + Send + 'static,
    {
        let script: PeerScript = Box::new(move |errand| Box::pin(script(errand)));
        *lock(&self.script) = Arc::new(script);
    }

    pub(crate) async fn wait_calls(&self, count: usize) -> Vec<BrokerCall> {
        let mut asked = self.calls.subscribe();
        asked
            .wait_for(|asked| asked.len() >= count)
            .await
            .unwrap()
            .clone()
    }
}

impl RemotePeer for FakePeer {
    fn call(&self, errand: BrokerCall) -> BoxFuture<'_, ScriptOutcome> {
        self.calls.send_modify(|asked| asked.push(errand.clone()));
        let script = Arc::clone(&lock(&self.script));
        let dropped = DropCounter(Arc::clone(&self.cancelled));
        Box::pin(async move {
            let outcome = script(errand).await;
            std::mem::forget(dropped);
            outcome
        })
    }

    fn manifest(&self) -> Arc<PeerManifest> {
        Arc::clone(&lock(&self.manifest))
    }

    fn subscribe_changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    fn is_connected(&self) -> bool {
        self.connected.load(Ordering::SeqCst)
    }

    fn name(&self) -> Arc<str> {
        Arc::clone(&self.name)
    }
}

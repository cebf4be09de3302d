//! Refused credentials: refreshed once for all requests, then each request is repeated.

use std::sync::atomic::{AtomicUsize, Ordering};

use bowline_testkit::wait_bounded;
use tokio::sync::watch;

use super::*;

/// A credential that changes on demand or on refresh.
#[derive(Default)]
struct RefreshableSecret {
    /// Number of refreshes.
    refreshes: AtomicUsize,
    /// Current value.
    now: Mutex<String>,
    /// Value after a refresh, if any.
    next: Mutex<Option<String>>,
    /// While set, a refresh does not end.
    held: watch::Sender<bool>,
}

impl RefreshableSecret {
    fn new(now: &str, next: Option<&str>) -> Arc<Self> {
        Arc::new(Self {
            now: Mutex::new(now.to_owned()),
            next: Mutex::new(next.map(str::to_owned)),
            ..Self::default()
        })
    }

    fn set(&self, value: &str) {
        value.clone_into(&mut self.now.lock().unwrap());
    }
}

impl UpstreamCredentials for RefreshableSecret {
    fn headers(&self) -> Result<Vec<(HeaderName, HeaderValue)>, CredentialError> {
        let value = HeaderValue::from_str(&self.now.lock().unwrap()).unwrap();
        Ok(vec![(HeaderName::from_static("authorization"), value)])
    }

    fn refresh(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {
            self.refreshes.fetch_add(1, Ordering::Relaxed);
            let mut held = self.held.subscribe();
            held.wait_for(|held| !held).await.unwrap();
            if let Some(next) = self.next.lock().unwrap().take() {
                self.set(&next);
            }
        })
    }
}

async fn credential_scene(credentials: &Arc<RefreshableSecret>) -> HttpScene {
    let credentials: Arc<dyn UpstreamCredentials> = credentials.clone();
    HttpScene::with_spec(|spec| spec.credentials = credentials).await
}

#[tokio::test]
async fn concurrent_refusals_refresh_credentials_once() {
    for status in [401, 403] {
        let changing = RefreshableSecret::new("old", Some("new"));
        changing.held.send_replace(true);
        let mut scene = credential_scene(&changing).await;
        let calls: Vec<_> = (0..10).map(|_| scene.start_call()).collect();
        let mut seen = Vec::new();
        for _ in 0..10 {
            seen.push(scene.server.next_post().await);
        }
        let mut ids: Vec<_> = seen.iter().map(scripted_server::SeenRequest::id).collect();
        for seen in seen {
            assert_eq!(seen.header("authorization"), Some("old"));
            seen.respond_status(status).await;
        }
        // All refusals are sent before the refresh ends.
        changing.held.send_replace(false);
        let mut again = Vec::new();
        for _ in 0..10 {
            let seen = scene.server.next_post().await;
            assert_eq!(seen.header("authorization"), Some("new"));
            again.push(seen.id());
            seen.respond_result("1").await;
        }
        for call in calls {
            assert_eq!(response_text(call.await.unwrap()), result_text("1"));
        }
        ids.sort();
        again.sort();
        assert_eq!(ids, again, "each request once more");
        assert_eq!(changing.refreshes.load(Ordering::Relaxed), 1);
        let event = wait_bounded(scene.events.recv()).await.unwrap();
        assert_eq!(event, LinkEvent::ToolsChanged, "others may be shown to us");
    }
}

#[tokio::test]
async fn second_refusal_is_reported() {
    let changing = RefreshableSecret::new("old", Some("new"));
    let mut scene = credential_scene(&changing).await;
    let call = scene.start_call();
    scene.server.next_post().await.respond_status(401).await;
    let again = scene.server.next_post().await;
    assert_eq!(again.header("authorization"), Some("new"));
    again.respond_status(401).await;
    let error = call.await.unwrap().unwrap_err();
    assert!(
        matches!(error, LinkError::Unauthorized { status: 401, .. }),
        "{error:?}"
    );
    assert!(scene.server.has_no_post());
    assert_eq!(changing.refreshes.load(Ordering::Relaxed), 1);
    assert!(scene.link.is_open());
}

#[tokio::test]
async fn unchanged_credentials_are_not_retried() {
    let changing = RefreshableSecret::new("old", None);
    let mut scene = credential_scene(&changing).await;
    let call = scene.start_call();
    scene.server.next_post().await.respond_status(401).await;
    let error = call.await.unwrap().unwrap_err();
    assert!(
        matches!(error, LinkError::Unauthorized { status: 401, .. }),
        "{error:?}"
    );
    assert!(scene.server.has_no_post());
    assert_eq!(changing.refreshes.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn concurrently_changed_credentials_skip_refresh() {
    let changing = RefreshableSecret::new("old", Some("never"));
    let mut scene = credential_scene(&changing).await;
    let call = scene.start_call();
    let seen = scene.server.next_post().await;
    changing.set("rotated");
    seen.respond_status(401).await;
    let again = scene.server.next_post().await;
    assert_eq!(again.header("authorization"), Some("rotated"));
    again.respond_result("1").await;
    assert_eq!(response_text(call.await.unwrap()), result_text("1"));
    assert_eq!(changing.refreshes.load(Ordering::Relaxed), 0);
}

#[tokio::test]
async fn refused_handshake_is_retried_once() {
    let changing = RefreshableSecret::new("old", Some("new"));
    let mut server = ScriptedServer::start().await;
    let mut spec = http_spec(&server);
    spec.credentials = changing.clone();
    let connecting = spawn_task(connect(spec));
    let first = server.next_post().await;
    assert_eq!(first.header("authorization"), Some("old"));
    first.respond_status(401).await;
    server.complete_handshake("one").await;
    connecting.await.unwrap().unwrap();
    assert_eq!(changing.refreshes.load(Ordering::Relaxed), 1);
}

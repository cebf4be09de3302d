//! Credentials that a server refuses: got anew once for all, and what was refused is sent again.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;

/// A credential that changes when it is told to, or when it is got anew.
#[derive(Default)]
struct Changing {
    /// Counts what it was got anew for.
    refreshes: AtomicUsize,
    /// What it is now.
    now: Mutex<String>,
    /// What it becomes when it is got anew, if anything.
    next: Mutex<Option<String>>,
}

impl Changing {
    fn starting(now: &str, next: Option<&str>) -> Arc<Self> {
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

impl Credentials for Changing {
    fn headers(&self) -> Result<Vec<(HeaderName, HeaderValue)>, CredentialError> {
        let value = HeaderValue::from_str(&self.now.lock().unwrap()).unwrap();
        Ok(vec![(HeaderName::from_static("authorization"), value)])
    }

    fn refresh(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {
            self.refreshes.fetch_add(1, Ordering::Relaxed);
            // Whoever else is refused comes before this ends.
            tokio::task::yield_now().await;
            if let Some(next) = self.next.lock().unwrap().take() {
                self.set(&next);
            }
        })
    }
}

async fn scene(credentials: &Arc<Changing>) -> Scene {
    let credentials: Arc<dyn Credentials> = credentials.clone();
    Scene::with(|spec| spec.credentials = credentials).await
}

#[tokio::test]
async fn ten_refused_calls_get_credentials_anew_once_and_each_is_sent_once_more() {
    for status in [401, 403] {
        let changing = Changing::starting("old", Some("new"));
        let mut scene = scene(&changing).await;
        let calls: Vec<_> = (0..10).map(|_| scene.call()).collect();
        let mut seen = Vec::new();
        for _ in 0..10 {
            seen.push(scene.server.post().await);
        }
        let mut ids: Vec<_> = seen.iter().map(server::Seen::id).collect();
        for seen in seen {
            assert_eq!(seen.header("authorization"), Some("old"));
            seen.status(status).await;
        }
        let mut again = Vec::new();
        for _ in 0..10 {
            let seen = scene.server.post().await;
            assert_eq!(seen.header("authorization"), Some("new"));
            again.push(seen.id());
            seen.result("1").await;
        }
        for call in calls {
            assert_eq!(text(call.await.unwrap()), answered("1"));
        }
        ids.sort();
        again.sort();
        assert_eq!(ids, again, "each request once more");
        assert_eq!(changing.refreshes.load(Ordering::Relaxed), 1);
        let event = soon(scene.events.recv()).await.unwrap();
        assert_eq!(event, LinkEvent::ToolsChanged, "others may be shown to us");
    }
}

#[tokio::test]
async fn what_is_refused_again_is_told_and_not_sent_a_third_time() {
    let changing = Changing::starting("old", Some("new"));
    let mut scene = scene(&changing).await;
    let call = scene.call();
    scene.server.post().await.status(401).await;
    let again = scene.server.post().await;
    assert_eq!(again.header("authorization"), Some("new"));
    again.status(401).await;
    let error = call.await.unwrap().unwrap_err();
    assert!(
        matches!(error, LinkError::Unauthorized { status: 401, .. }),
        "{error:?}"
    );
    assert!(scene.server.is_quiet());
    assert_eq!(changing.refreshes.load(Ordering::Relaxed), 1);
    assert!(scene.link.is_open());
}

#[tokio::test]
async fn where_nothing_else_is_had_the_request_is_not_sent_again() {
    let changing = Changing::starting("old", None);
    let mut scene = scene(&changing).await;
    let call = scene.call();
    scene.server.post().await.status(401).await;
    let error = call.await.unwrap().unwrap_err();
    assert!(
        matches!(error, LinkError::Unauthorized { status: 401, .. }),
        "{error:?}"
    );
    assert!(scene.server.is_quiet());
    assert_eq!(changing.refreshes.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn credentials_that_changed_meanwhile_are_not_got_anew() {
    let changing = Changing::starting("old", Some("never"));
    let mut scene = scene(&changing).await;
    let call = scene.call();
    let seen = scene.server.post().await;
    changing.set("rotated");
    seen.status(401).await;
    let again = scene.server.post().await;
    assert_eq!(again.header("authorization"), Some("rotated"));
    again.result("1").await;
    assert_eq!(text(call.await.unwrap()), answered("1"));
    assert_eq!(changing.refreshes.load(Ordering::Relaxed), 0);
}

#[tokio::test]
async fn a_handshake_that_is_refused_is_sent_once_more_too() {
    let changing = Changing::starting("old", Some("new"));
    let mut server = Server::start().await;
    let mut spec = spec(&server);
    spec.credentials = changing.clone();
    let connecting = spawn(connect(spec));
    let first = server.post().await;
    assert_eq!(first.header("authorization"), Some("old"));
    first.status(401).await;
    server.shakes("one").await;
    connecting.await.unwrap().unwrap();
    assert_eq!(changing.refreshes.load(Ordering::Relaxed), 1);
}

//! Executors that the gateway dials.

use std::sync::Arc;
use std::time::Duration;

use bowline_host::executor::{Credential, DialSpec, ExecutorsOptions, Protocol, Via};
use bowline_link::http::endpoint::Endpoint;
use bowline_link::websocket::{Ended, accept};
use http::header::AUTHORIZATION;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use super::rig::{Gateway, Script, asking, code, get, hello, quick, socket, soon, wire, within};

/// Where a scripted executor listens.
struct Listening {
    listener: TcpListener,
}

impl Listening {
    async fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        Self { listener }
    }

    fn spec(&self, token: &str) -> DialSpec {
        let url = format!("http://{}/executor", self.listener.local_addr().unwrap());
        DialSpec {
            endpoint: Endpoint::parse(&url).unwrap(),
            credential: Some(Credential::fixed(token)),
            protocol: Protocol::Bowline,
            client_name: "bowline".into(),
        }
    }

    /// Takes the next gateway in; returns the token that it has.
    async fn taken(&self, gateway: &Gateway) -> (Script, String) {
        let (script, token, _) = self.taken_over(gateway).await;
        (script, token)
    }

    /// The same, with the wire to cut.
    async fn taken_over(&self, gateway: &Gateway) -> (Script, String, JoinHandle<()>) {
        let (stream, _) = within(self.listener.accept()).await.unwrap();
        let (stream, line) = wire(stream);
        let caller = accept(stream, soon()).await.unwrap();
        let token = caller.parts.headers[AUTHORIZATION].to_str().unwrap();
        let token = token.to_owned();
        let io = caller.upgrade(socket(), &gateway.tasks).await.unwrap();
        (Script::new(io), token, line)
    }
}

#[tokio::test]
async fn an_executor_that_listens_is_dialled_with_its_credential() {
    let gateway = Gateway::new(quick()).await;
    let office = Listening::new().await;
    gateway.executors.dial("office", office.spec("secret"));
    let (mut script, token) = office.taken(&gateway).await;
    assert_eq!(token, "Bearer secret");
    // What it calls itself does not count: the config has named it. Who asks before it is
    // connected for the first time waits for that.
    let asked = asking(&gateway.client("office"));
    script.open("something-else", "first", false).await;
    let (stream, _) = script.request().await;
    script.answer(stream, "dialled").await;
    assert_eq!(asked.await.unwrap().unwrap(), "dialled");
    let status = gateway.status("office");
    assert_eq!((status.connected, status.via), (true, Some(Via::Dialled)));
    assert_eq!(gateway.executors.list().len(), 1);
}

#[tokio::test]
async fn a_lost_executor_is_dialled_again_with_the_credential_of_then() {
    let gateway = Gateway::new(quick()).await;
    let office = Listening::new().await;
    gateway.executors.dial("office", office.spec("one"));
    let (mut script, _, line) = office.taken_over(&gateway).await;
    let before = script.open("office", "first", false).await;
    within(gateway.executors.ready("office", soon()))
        .await
        .unwrap();
    // The same place with another credential stays connected.
    gateway.executors.dial("office", office.spec("two"));
    assert!(gateway.status("office").connected);
    line.abort();
    let (mut script, token) = office.taken(&gateway).await;
    assert_eq!(token, "Bearer two");
    let after = script.open("office", "first", true).await;
    assert_eq!(before.session, after.session);
    let asked = asking(&gateway.client("office"));
    let (stream, _) = script.request().await;
    script.answer(stream, "again").await;
    assert_eq!(asked.await.unwrap().unwrap(), "again");
}

#[tokio::test]
async fn an_executor_that_cannot_be_dialled_is_away_with_the_reason() {
    let gateway = Gateway::new(quick()).await;
    let office = Listening::new().await;
    let spec = office.spec("secret");
    drop(office);
    gateway.executors.dial("office", spec);
    let error = get(&*gateway.client("office"), Some(soon()))
        .await
        .unwrap_err();
    assert_eq!(code(&error), "executor_away");
    assert!(error.to_string().contains("cannot be dialled"), "{error}");
}

#[tokio::test]
async fn one_that_is_not_wanted_any_more_is_hung_up() {
    let gateway = Gateway::new(quick()).await;
    let office = Listening::new().await;
    gateway.executors.dial("office", office.spec("secret"));
    let (mut script, _) = office.taken(&gateway).await;
    script.open("office", "first", false).await;
    within(gateway.executors.ready("office", soon()))
        .await
        .unwrap();
    assert_eq!(gateway.executors.dialled(), ["office".into()]);
    gateway.executors.hang_up("office");
    let ended = script.end().await;
    assert!(
        matches!(ended, Ended::Closed { code: 1000, .. }),
        "{ended:?}"
    );
    assert!(gateway.executors.dialled().is_empty());
    let error = get(&*gateway.client("office"), None).await.unwrap_err();
    assert_eq!(code(&error), "executor_away");
}

#[tokio::test]
async fn one_that_moves_is_dialled_where_it_is() {
    let gateway = Gateway::new(quick()).await;
    let (here, there) = (Listening::new().await, Listening::new().await);
    gateway.executors.dial("office", here.spec("secret"));
    let (mut script, _) = here.taken(&gateway).await;
    script.open("office", "first", false).await;
    within(gateway.executors.ready("office", soon()))
        .await
        .unwrap();
    gateway.executors.dial("office", there.spec("secret"));
    let (mut moved, _) = there.taken(&gateway).await;
    moved.open("office", "second", false).await;
    let ended = script.end().await;
    assert!(matches!(ended, Ended::Closed { .. }), "{ended:?}");
    let asked = asking(&gateway.client("office"));
    let (stream, _) = moved.request().await;
    moved.answer(stream, "there").await;
    assert_eq!(asked.await.unwrap().unwrap(), "there");
}

#[tokio::test]
async fn one_that_another_gateway_has_is_not_dialled_again_by_itself() {
    let gateway = Gateway::new(quick()).await;
    let office = Listening::new().await;
    gateway.executors.dial("office", office.spec("secret"));
    let (mut script, _) = office.taken(&gateway).await;
    script.open("office", "first", false).await;
    within(gateway.executors.ready("office", soon()))
        .await
        .unwrap();
    script.out.close(4001, "another gateway has it");
    gateway.lost("office").await;
    let again = tokio::time::timeout(Duration::from_millis(200), office.listener.accept());
    assert!(again.await.is_err(), "dialled again");
    // A person may say so.
    gateway.executors.dial("office", office.spec("secret"));
    office.taken(&gateway).await;
}

#[tokio::test]
async fn nobody_joins_under_a_name_that_is_dialled() {
    let gateway = Gateway::new(ExecutorsOptions::default()).await;
    let office = Listening::new().await;
    gateway.executors.dial("office", office.spec("secret"));
    let mut script = Script::dial(&gateway.url, &gateway.tasks).await;
    script.say(hello("office", "first")).await;
    let ended = script.end().await;
    assert!(
        matches!(ended, Ended::Closed { code: 4003, .. }),
        "{ended:?}"
    );
    drop(Arc::new(office.listener));
}

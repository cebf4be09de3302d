//! Executors dialled by the gateway.

use std::sync::Arc;
use std::time::Duration;

use bowline_executor::{
    CredentialSource, DialDirection, DialSpec, ExecutorProtocol, ExecutorRegistryOptions,
};
use bowline_link::http::endpoint::HttpEndpoint;
use bowline_link::websocket::{DisconnectReason, accept_upgrade};
use bowline_testkit::registry_gateway::{
    RegistryGateway, ScriptedExecutor, asking, code, get, hello, quick, socket_limits, wire,
};
use bowline_testkit::{test_deadline, wait_bounded};
use http::header::AUTHORIZATION;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

/// Listener of a scripted executor.
struct ScriptedListener {
    listener: TcpListener,
}

impl ScriptedListener {
    async fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        Self { listener }
    }

    fn spec(&self, token: &str) -> DialSpec {
        let url = format!("http://{}/executor", self.listener.local_addr().unwrap());
        DialSpec {
            endpoint: HttpEndpoint::parse(&url).unwrap(),
            credential: Some(CredentialSource::from_token(token)),
            protocol: ExecutorProtocol::Bowline,
            client_name: "bowline".into(),
        }
    }

    /// Accepts the next gateway; returns the token of the gateway.
    async fn accept_executor(&self, gateway: &RegistryGateway) -> (ScriptedExecutor, String) {
        let (script, token, _) = self.accept_over(gateway).await;
        (script, token)
    }

    /// Like `accept_executor`, with the wire to cut.
    async fn accept_over(
        &self,
        gateway: &RegistryGateway,
    ) -> (ScriptedExecutor, String, JoinHandle<()>) {
        let (stream, _) = wait_bounded(self.listener.accept()).await.unwrap();
        let (stream, line) = wire(stream);
        let caller = accept_upgrade(stream, test_deadline()).await.unwrap();
        let token = caller.parts.headers[AUTHORIZATION].to_str().unwrap();
        let token = token.to_owned();
        let socket = caller
            .upgrade(socket_limits(), &gateway.tasks)
            .await
            .unwrap();
        (ScriptedExecutor::new(socket), token, line)
    }
}

#[tokio::test]
async fn listening_executor_is_dialled_with_credential() {
    let gateway = RegistryGateway::new(quick()).await;
    let office = ScriptedListener::new().await;
    gateway.executors.dial("office", office.spec("secret"));
    let (mut script, token) = office.accept_executor(&gateway).await;
    assert_eq!(token, "Bearer secret");
    // The configured name counts, not the name in `hello`. A caller before the first connect waits
    // for the connect.
    let asked = asking(&gateway.client("office"));
    script.open("something-else", "first", false).await;
    let (stream, _) = script.request().await;
    script.answer(stream, "dialled").await;
    assert_eq!(asked.await.unwrap().unwrap(), "dialled");
    let status = gateway.status("office");
    assert_eq!(
        (status.connected, status.direction),
        (true, Some(DialDirection::Dialled))
    );
    assert_eq!(gateway.executors.list_statuses().len(), 1);
}

#[tokio::test]
async fn redial_uses_the_current_credential() {
    let gateway = RegistryGateway::new(quick()).await;
    let office = ScriptedListener::new().await;
    gateway.executors.dial("office", office.spec("one"));
    let (mut script, _, line) = office.accept_over(&gateway).await;
    let before = script.open("office", "first", false).await;
    wait_bounded(gateway.executors.wait_ready("office", test_deadline()))
        .await
        .unwrap();
    // The same endpoint with another credential keeps the connection.
    gateway.executors.dial("office", office.spec("two"));
    assert!(gateway.status("office").connected);
    line.abort();
    let (mut script, token) = office.accept_executor(&gateway).await;
    assert_eq!(token, "Bearer two");
    let after = script.open("office", "first", true).await;
    assert_eq!(before.session, after.session);
    let asked = asking(&gateway.client("office"));
    let (stream, _) = script.request().await;
    script.answer(stream, "again").await;
    assert_eq!(asked.await.unwrap().unwrap(), "again");
}

#[tokio::test]
async fn failed_dial_is_reported_as_away() {
    let gateway = RegistryGateway::new(quick()).await;
    let office = ScriptedListener::new().await;
    let spec = office.spec("secret");
    drop(office);
    gateway.executors.dial("office", spec);
    let error = get(&*gateway.client("office"), Some(test_deadline()))
        .await
        .unwrap_err();
    assert_eq!(code(&error), "executor_away");
    assert!(error.to_string().contains("cannot be dialled"), "{error}");
}

#[tokio::test]
async fn unwanted_executor_is_hung_up() {
    let gateway = RegistryGateway::new(quick()).await;
    let office = ScriptedListener::new().await;
    gateway.executors.dial("office", office.spec("secret"));
    let (mut script, _) = office.accept_executor(&gateway).await;
    script.open("office", "first", false).await;
    wait_bounded(gateway.executors.wait_ready("office", test_deadline()))
        .await
        .unwrap();
    assert_eq!(gateway.executors.dialled_names(), ["office".into()]);
    gateway.executors.hang_up("office");
    let ended = script.end().await;
    assert!(
        matches!(ended, DisconnectReason::Closed { code: 1000, .. }),
        "{ended:?}"
    );
    assert!(gateway.executors.dialled_names().is_empty());
    let error = get(&*gateway.client("office"), None).await.unwrap_err();
    assert_eq!(code(&error), "executor_away");
}

#[tokio::test]
async fn moved_executor_is_dialled_at_new_endpoint() {
    let gateway = RegistryGateway::new(quick()).await;
    let (here, there) = (ScriptedListener::new().await, ScriptedListener::new().await);
    gateway.executors.dial("office", here.spec("secret"));
    let (mut script, _) = here.accept_executor(&gateway).await;
    script.open("office", "first", false).await;
    wait_bounded(gateway.executors.wait_ready("office", test_deadline()))
        .await
        .unwrap();
    gateway.executors.dial("office", there.spec("secret"));
    let (mut moved, _) = there.accept_executor(&gateway).await;
    moved.open("office", "second", false).await;
    let ended = script.end().await;
    assert!(
        matches!(ended, DisconnectReason::Closed { .. }),
        "{ended:?}"
    );
    let asked = asking(&gateway.client("office"));
    let (stream, _) = moved.request().await;
    moved.answer(stream, "there").await;
    assert_eq!(asked.await.unwrap().unwrap(), "there");
}

#[tokio::test]
async fn fenced_dial_stops_until_new_spec() {
    let gateway = RegistryGateway::new(quick()).await;
    let office = ScriptedListener::new().await;
    gateway.executors.dial("office", office.spec("secret"));
    let (mut script, _) = office.accept_executor(&gateway).await;
    script.open("office", "first", false).await;
    wait_bounded(gateway.executors.wait_ready("office", test_deadline()))
        .await
        .unwrap();
    script.out.close(4001, "another gateway has it");
    gateway.wait_lost("office").await;
    let again = tokio::time::timeout(Duration::from_millis(200), office.listener.accept());
    assert!(again.await.is_err(), "dialled again");
    // A person may order another dial.
    gateway.executors.dial("office", office.spec("secret"));
    office.accept_executor(&gateway).await;
}

#[tokio::test]
async fn dialled_name_refuses_joining_executor() {
    let gateway = RegistryGateway::new(ExecutorRegistryOptions::default()).await;
    let office = ScriptedListener::new().await;
    gateway.executors.dial("office", office.spec("secret"));
    let mut script = ScriptedExecutor::dial(&gateway.url, &gateway.tasks).await;
    script.send_frame(hello("office", "first")).await;
    let ended = script.end().await;
    assert!(
        matches!(ended, DisconnectReason::Closed { code: 4003, .. }),
        "{ended:?}"
    );
    drop(Arc::new(office.listener));
}

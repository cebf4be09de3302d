//! Bowline's own client against Bowline's own adapter.

use bowline_core::error::FailureClass;
use bowline_executor::connection::{
    ExecServerConnection, ExecutorConnection as _, ExecutorRequest,
};
use bowline_link::http::http_client::{
    HttpError, HttpRequest as Request, HttpResponse, SendOptions,
};
use bowline_testkit::{wait_closed, write_bytes};
use http::Method;

use super::*;

async fn connected(served: &AdapterServer) -> ExecServerConnection {
    let client = served.dial(None).await.unwrap();
    ExecServerConnection::open(client.socket, "bowline", None, &TaskTracker::default())
        .await
        .unwrap()
}

async fn carry(client: &ExecServerConnection, url: &str) -> Result<HttpResponse, HttpError> {
    let to = HttpEndpoint::parse(url).unwrap();
    let errand = ExecutorRequest {
        server: "tracker",
        request: Request::new(Method::GET, &to),
        secret_headers: &[],
    };
    let wait = SendOptions {
        connect_by: None,
        first_byte_by: Some(test_deadline()),
        on_send: &|| (),
    };
    client.send_request(errand, wait).await
}

#[tokio::test]
async fn own_client_works_with_own_adapter() {
    let (upstream, served) = served().await;
    let client = connected(&served).await;
    let answering = async {
        let (mut stream, _) = upstream.accept_request().await;
        write_bytes(&mut stream, format!("{CHUNKED}3\r\none\r\n")).await;
        stream
    };
    let (response, mut stream) = tokio::join!(carry(&client, &upstream.url), answering);
    let mut body = response.unwrap().body;
    assert_eq!(
        wait_bounded(body.next_chunk()).await.unwrap().unwrap(),
        &b"one"[..]
    );
    write_bytes(&mut stream, "3\r\ntwo\r\n0\r\n\r\n").await;
    assert_eq!(
        wait_bounded(body.read_whole(100)).await.unwrap(),
        &b"two"[..]
    );
}

#[tokio::test]
async fn adapter_errors_keep_execution() {
    let (upstream, served) = served().await;
    let forbidden = RawUpstream::start().await;
    let client = connected(&served).await;
    let Err(HttpError::RemoteFailure(failure)) = carry(&client, &forbidden.url).await else {
        panic!("it was let go");
    };
    assert_eq!(
        (failure.class, &*failure.code),
        (FailureClass::Denied, "egress_denied")
    );
    let gone = upstream.url.clone();
    drop(upstream);
    let unreachable = carry(&client, &gone).await.err();
    assert!(
        matches!(unreachable, Some(HttpError::Unreachable(_))),
        "{unreachable:?}"
    );
}

#[tokio::test]
async fn mid_body_cut_is_reported() {
    let (upstream, served) = served().await;
    let client = connected(&served).await;
    let answering = async {
        let (mut stream, _) = upstream.accept_request().await;
        write_bytes(&mut stream, format!("{CHUNKED}3\r\none\r\n")).await;
        stream
    };
    let (response, mut stream) = tokio::join!(carry(&client, &upstream.url), answering);
    let mut body = response.unwrap().body;
    assert_eq!(
        wait_bounded(body.next_chunk()).await.unwrap().unwrap(),
        &b"one"[..]
    );
    served.stop().await;
    let error = wait_bounded(body.next_chunk()).await.unwrap().unwrap_err();
    assert!(matches!(error, HttpError::Disconnected(_)), "{error:?}");
    wait_closed(&mut stream).await;
}

//! Both sides are ours.

use bowline_core::error::Class;
use bowline_link::executor::{Carrier as _, Errand, ExecServer};
use bowline_link::http::client::{HttpError, Outgoing as Request, Response, Wait};
use http::Method;

use super::*;

async fn connected(served: &Served) -> ExecServer {
    let client = served.dial(None).await.unwrap();
    let io = (client.outgoing, client.incoming);
    ExecServer::open(io, "bowline", None, &Tasks::default())
        .await
        .unwrap()
}

async fn carry(client: &ExecServer, url: &str) -> Result<Response, HttpError> {
    let to = Endpoint::parse(url).unwrap();
    let errand = Errand {
        server: "tracker",
        request: Request::new(Method::GET, &to),
        fills: &[],
    };
    let wait = Wait {
        connect: None,
        first_byte: Some(until()),
        leaving: &|| (),
    };
    client.carry(errand, wait).await
}

#[tokio::test]
async fn our_client_and_our_exec_server_understand_each_other() {
    let (upstream, served) = served().await;
    let client = connected(&served).await;
    let answering = async {
        let (mut stream, _) = upstream.taken().await;
        write(&mut stream, format!("{CHUNKED}3\r\none\r\n")).await;
        stream
    };
    let (response, mut stream) = tokio::join!(carry(&client, &upstream.url), answering);
    let mut body = response.unwrap().body;
    assert_eq!(soon(body.chunk()).await.unwrap().unwrap(), &b"one"[..]);
    write(&mut stream, "3\r\ntwo\r\n0\r\n\r\n").await;
    assert_eq!(soon(body.whole(100)).await.unwrap(), &b"two"[..]);
}

#[tokio::test]
async fn errors_are_as_certain_through_our_exec_server_as_without_it() {
    let (upstream, served) = served().await;
    let forbidden = Upstream::new().await;
    let client = connected(&served).await;
    let Err(HttpError::Elsewhere(failure)) = carry(&client, &forbidden.url).await else {
        panic!("it was let go");
    };
    assert_eq!(
        (failure.class, &*failure.code),
        (Class::Denied, "egress_denied")
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
async fn a_cut_in_mid_body_is_told_as_one() {
    let (upstream, served) = served().await;
    let client = connected(&served).await;
    let answering = async {
        let (mut stream, _) = upstream.taken().await;
        write(&mut stream, format!("{CHUNKED}3\r\none\r\n")).await;
        stream
    };
    let (response, mut stream) = tokio::join!(carry(&client, &upstream.url), answering);
    let mut body = response.unwrap().body;
    assert_eq!(soon(body.chunk()).await.unwrap().unwrap(), &b"one"[..]);
    served.stop().await;
    let error = soon(body.chunk()).await.unwrap().unwrap_err();
    assert!(matches!(error, HttpError::Disconnected(_)), "{error:?}");
    closed(&mut stream).await;
}

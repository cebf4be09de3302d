//! A proxy that adds the token and changes nothing else.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;

use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Empty};
use hyper::body::{Bytes, Incoming};
use hyper::header::{AUTHORIZATION, HOST, HeaderName, HeaderValue, ORIGIN};
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode, client, server};
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;

type ProxyResponse = Response<BoxBody<Bytes, hyper::Error>>;

/// A proxy that serves until dropped.
pub(in crate::peers) struct TokenProxy {
    pub(in crate::peers) address: SocketAddr,
    stop: Arc<Notify>,
    serving: Option<JoinHandle<()>>,
}

/// The upstream gateway and the added credential.
struct ProxyTarget {
    /// The proxy's own address.
    proxy_address: String,
    gateway: SocketAddr,
    authorization: HeaderValue,
}

impl TokenProxy {
    pub(in crate::peers) fn start(gateway: SocketAddr, token: &str) -> Self {
        let authorization = HeaderValue::try_from(format!("Bearer {token}")).unwrap();
        let stop = Arc::new(Notify::new());
        let stopped = Arc::clone(&stop);
        let (sender, receiver) = mpsc::channel();
        let serving = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(async {
                let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
                let own = listener.local_addr().unwrap();
                sender.send(own).unwrap();
                let target = Arc::new(ProxyTarget {
                    proxy_address: own.to_string(),
                    gateway,
                    authorization,
                });
                tokio::select! {
                    () = accept_connections(listener, target) => {}
                    () = stopped.notified() => {}
                }
            });
        });
        Self {
            address: receiver.recv().unwrap(),
            stop,
            serving: Some(serving),
        }
    }
}

impl Drop for TokenProxy {
    fn drop(&mut self) {
        self.stop.notify_one();
        let _ = self.serving.take().unwrap().join();
    }
}

async fn accept_connections(listener: TcpListener, target: Arc<ProxyTarget>) {
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        let target = Arc::clone(&target);
        tokio::spawn(async move {
            let service = service_fn(|request| {
                let target = Arc::clone(&target);
                async move { Ok::<_, Infallible>(forward_request(&target, request).await) }
            });
            let builder = server::conn::http1::Builder::new();
            let _ = builder
                .serve_connection(TokioIo::new(stream), service)
                .await;
        });
    }
}

async fn forward_request(target: &ProxyTarget, mut request: Request<Incoming>) -> ProxyResponse {
    let headers = request.headers_mut();
    headers.insert(AUTHORIZATION, target.authorization.clone());
    // The proxy's own name becomes the gateway's; any other name is left for the gateway to check.
    for (name, scheme) in [(HOST, ""), (ORIGIN, "http://")] {
        rewrite_header(headers, &name, scheme, target);
    }
    match send_request(target, request).await {
        Ok(response) => response.map(BodyExt::boxed),
        Err(_) => {
            let body = Empty::new().map_err(|never| match never {}).boxed();
            let mut response = Response::new(body);
            *response.status_mut() = StatusCode::BAD_GATEWAY;
            response
        }
    }
}

fn rewrite_header(
    headers: &mut hyper::HeaderMap,
    name: &HeaderName,
    scheme: &str,
    target: &ProxyTarget,
) {
    let own = format!("{scheme}{}", target.proxy_address);
    if headers.get(name).is_some_and(|value| value == own.as_str()) {
        let renamed = format!("{scheme}{}", target.gateway);
        headers.insert(name, HeaderValue::try_from(renamed).unwrap());
    }
}

/// Sends a request on a new connection that lasts as long as the response.
async fn send_request(
    target: &ProxyTarget,
    request: Request<Incoming>,
) -> Result<Response<Incoming>, Box<dyn std::error::Error + Send + Sync>> {
    let stream = TcpStream::connect(target.gateway).await?;
    let (mut sender, connection) = client::conn::http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(async move {
        let _ = connection.await;
    });
    Ok(sender.send_request(request).await?)
}

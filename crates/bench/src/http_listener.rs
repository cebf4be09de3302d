//! The accept loop of the backend and of both floors: one task for each connection.

use std::convert::Infallible;

use anyhow::{Context, Result};
use bytes::Bytes;
use http_body_util::Full;
use hyper::server::conn::http1::Builder;
use hyper::{Request, Response, body::Incoming, service::service_fn};
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;

pub(crate) async fn bind_listener(listen: &str) -> Result<TcpListener> {
    let listener = TcpListener::bind(listen).await;
    listener.with_context(|| format!("listen on {listen}"))
}

/// Serves every connection with `respond`, until the process ends.
pub(crate) async fn serve_connections<F>(
    listener: TcpListener,
    server: Builder,
    respond: impl Fn(Request<Incoming>) -> F + Clone + Send + 'static,
) -> Result<()>
where
    F: Future<Output = Response<Full<Bytes>>> + Send + 'static,
{
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            continue;
        };
        let _ = stream.set_nodelay(true);
        let (server, respond) = (server.clone(), respond.clone());
        tokio::spawn(async move {
            let service = service_fn(move |request| {
                let response = respond(request);
                async move { Ok::<_, Infallible>(response.await) }
            });
            // A broken connection concerns its client alone.
            let _ = server.serve_connection(TokioIo::new(stream), service).await;
        });
    }
}

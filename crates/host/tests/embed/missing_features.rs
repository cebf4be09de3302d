//! Servers whose transport the program was built without.

use std::sync::Arc;

use bowline_host::dial::{EraCache, MissingFeature, RealDial};
use bowline_host::{BuildError, Host, Server, SpawnError, SpawnOptions, TaskTracker};
use bowline_link::{ClientInfo, StdioLimits};
use serde_json::json;

/// The connector of a program without the features `http` and `executor`.
fn stdio_dial() -> Arc<RealDial> {
    Arc::new(RealDial {
        tasks: TaskTracker::default(),
        client: ClientInfo {
            name: "light".into(),
            version: "1".into(),
        },
        http: None,
        executors: None,
        stdio_limits: StdioLimits::default(),
        eras: EraCache::default(),
        launcher: None,
        instance: None,
    })
}

fn http_server() -> Server {
    Server::from_json(&json!({"name": "Far_Away", "url": "http://127.0.0.1:9/mcp"})).unwrap()
}

#[tokio::test]
async fn http_server_without_http_is_refused() {
    let missing = MissingFeature {
        server: "Far_Away".into(),
        feature: "http",
    };
    let built = Host::builder()
        .dial(stdio_dial())
        .server(http_server())
        .build();
    let Err(BuildError::MissingFeature(refusal)) = built else {
        panic!("{built:?}");
    };
    assert_eq!(refusal, missing);

    let host = Host::builder().dial(stdio_dial()).build().unwrap();
    let spawned = host.spawn(http_server(), SpawnOptions::default()).await;
    let Err(SpawnError::MissingFeature(refusal)) = spawned else {
        panic!("{spawned:?}");
    };
    assert_eq!(refusal, missing);

    let applied = host.apply_config(vec![http_server()]);
    assert_eq!(
        (applied.unsupported, applied.added),
        (vec![missing], vec![])
    );
    assert!(host.servers().is_empty());
}

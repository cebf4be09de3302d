//! HTTP client with an egress policy: denied destinations are never dialled, in any spelling.

use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, SocketAddr};

use ::http::Method;
use bowline_core::egress::EgressAllowlist;
use bowline_core::error::{ExecutionStatus, FailureClass};
use bowline_link::http::http_client::{HttpError, HttpRequest, SendOptions};
use bowline_link::http::http1::{DnsLookup, EgressPolicy};
use bowline_testkit::wait_bounded;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::*;

const WAIT: SendOptions<'static> = SendOptions {
    connect_by: None,
    first_byte_by: None,
    on_send: &|| {},
};

/// Rules for public addresses, and for every name in the tests.
const BROAD: [&str; 4] = ["0.0.0.0/0:*", "[::/0]:*", "*.example:*", "inside.example:*"];

/// Spellings of a loopback address that a resolver or socket understands.
const ODD: [&str; 12] = [
    "2130706433",
    "0x7f.1",
    "0x7f000001",
    "0X7F.0.0.1",
    "127.1",
    "127.0.1",
    "0177.0.0.1",
    "017700000001",
    "127.0.0.0x1",
    "0",
    "0x0",
    "%6c%6fcalhost",
];

/// Spellings that are parsed as loopback addresses.
const PLAIN: [&str; 14] = [
    "127.0.0.1",
    "127.0.0.1.",
    "127.8.8.8",
    "localhost",
    "localhost.",
    "LocalHost",
    "0.0.0.0",
    "[::1]",
    "[::]",
    "[0:0:0:0:0:0:0:1]",
    "[::ffff:7f00:1]",
    "[::ffff:127.0.0.1]",
    "[0:0:0:0:0:FFFF:7F00:0001]",
    "[::127.0.0.1]",
];

/// A server that must not be reached, at every address of this machine.
struct ForbiddenServer {
    listener: TcpListener,
    port: u16,
}

impl ForbiddenServer {
    async fn new() -> Self {
        let listener = TcpListener::bind("[::]:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        Self { listener, port }
    }

    /// Asserts no earlier connection: the first in the queue is our own probe.
    async fn assert_untouched(&self) {
        let own = TcpStream::connect(("127.0.0.1", self.port)).await.unwrap();
        let (_, first) = wait_bounded(self.listener.accept()).await.unwrap();
        assert_eq!(first.port(), own.local_addr().unwrap().port());
    }
}

/// Returns scripted lookup results in turn; the last result repeats.
#[derive(Debug)]
struct ScriptedLookup {
    answers: Mutex<VecDeque<Vec<IpAddr>>>,
    asked: Mutex<Vec<String>>,
}

impl ScriptedLookup {
    fn new(answers: &[&[&str]]) -> Arc<Self> {
        let parsed = |answer: &&[&str]| answer.iter().map(|ip| ip.parse().unwrap()).collect();
        Arc::new(Self {
            answers: Mutex::new(answers.iter().map(parsed).collect()),
            asked: Mutex::default(),
        })
    }

    /// Resolves every name to this address from now on.
    fn redirect_all_names(&self, to: &str) {
        let answer = vec![to.parse().unwrap()];
        *self.answers.lock().unwrap() = VecDeque::from([answer]);
    }

    fn lookup_count(&self) -> usize {
        self.asked.lock().unwrap().len()
    }
}

impl DnsLookup for ScriptedLookup {
    fn lookup_addresses<'a>(&'a self, name: &'a str) -> BoxFuture<'a, io::Result<Vec<IpAddr>>> {
        self.asked.lock().unwrap().push(name.to_owned());
        let mut answers = self.answers.lock().unwrap();
        let answer = match answers.len() {
            0 => Err(io::ErrorKind::NotFound.into()),
            1 => Ok(answers[0].clone()),
            _ => Ok(answers.pop_front().unwrap()),
        };
        Box::pin(async move { answer })
    }
}

fn egress_policy(rules: &[&str]) -> EgressPolicy {
    EgressPolicy::new(Arc::new(
        EgressAllowlist::parse(rules.iter().copied()).unwrap(),
    ))
}

fn scripted_policy(rules: &[&str], script: &Arc<ScriptedLookup>) -> EgressPolicy {
    let egress = Arc::new(EgressAllowlist::parse(rules.iter().copied()).unwrap());
    EgressPolicy::with_lookup(egress, script.clone())
}

fn egress_client(gate: EgressPolicy) -> Http1Client {
    Http1Client::with_egress(HttpClientLimits::default(), gate).unwrap()
}

/// Requests an address; returns the status or the error.
async fn get_status(client: &Http1Client, url: &str) -> Result<u16, HttpError> {
    let to = HttpEndpoint::parse(url).unwrap();
    let request = HttpRequest::new(Method::GET, &to);
    let answer = wait_bounded(client.send(request, WAIT)).await?;
    Ok(answer.status.as_u16())
}

/// Listens at an allowed address, and at the same port of a forbidden address.
async fn allowed_and_forbidden() -> (TcpListener, ForbiddenServer) {
    loop {
        let allowed = TcpListener::bind("127.0.0.2:0").await.unwrap();
        let port = allowed.local_addr().unwrap().port();
        // The port may be taken here.
        if let Ok(listener) = TcpListener::bind(("127.0.0.1", port)).await {
            return (allowed, ForbiddenServer { listener, port });
        }
    }
}

/// Answers every connection once.
async fn start_greeter(address: &str) -> SocketAddr {
    serve_greetings(TcpListener::bind(address).await.unwrap())
}

fn serve_greetings(listener: TcpListener) -> SocketAddr {
    let address = listener.local_addr().unwrap();
    spawn_task(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut head = [0; 1024];
            let _ = stream.read(&mut head).await;
            let answer = "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n";
            let _ = stream.write_all(answer.as_bytes()).await;
        }
    });
    address
}

fn assert_denied(asked: Result<u16, HttpError>) -> String {
    let error = asked.unwrap_err();
    assert!(matches!(error, HttpError::Denied(_)), "{error:?}");
    assert_eq!(error.execution(), ExecutionStatus::NotStarted);
    error.to_string()
}

#[tokio::test]
async fn sec_20_loopback_spellings_are_denied() {
    let forbidden = ForbiddenServer::new().await;
    let port = forbidden.port;
    let client = egress_client(egress_policy(&BROAD));
    for scheme in ["http", "https"] {
        for host in ODD.iter().chain(&PLAIN) {
            let url = format!("{scheme}://{host}:{port}/latest/meta-data");
            // An unparsable address is never dialled.
            if HttpEndpoint::parse(&url).is_ok() {
                let told = assert_denied(get_status(&client, &url).await);
                assert_eq!(told, "the destination is not allowed", "{url}");
            }
        }
    }
    forbidden.assert_untouched().await;
}

#[tokio::test]
async fn sec_20_loopback_spellings_connect_without_policy() {
    let address = start_greeter("[::]:0").await;
    let open = Http1Client::new(HttpClientLimits::default()).unwrap();
    for host in [
        "2130706433",
        "0x7f.1",
        "127.1",
        "127.0.0.1",
        "localhost",
        "[::ffff:7f00:1]",
    ] {
        let url = format!("http://{host}:{}/", address.port());
        assert_eq!(get_status(&open, &url).await, Ok(200), "{host}");
    }
}

#[tokio::test]
async fn sec_20_name_with_special_address_is_denied() {
    let forbidden = ForbiddenServer::new().await;
    for special in [
        "127.0.0.1",
        "127.9.9.9",
        "0.0.0.0",
        "10.0.0.1",
        "172.16.0.1",
        "172.31.255.255",
        "192.168.0.1",
        "100.64.0.1",
        "169.254.169.254",
        "169.254.1.1",
        "192.0.0.1",
        "198.18.0.1",
        "224.0.0.1",
        "240.0.0.1",
        "255.255.255.255",
        "168.63.129.16",
        "::1",
        "::",
        "fc00::1",
        "fd00:ec2::254",
        "fe80::1",
        "fec0::1",
        "ff02::1",
        "::ffff:127.0.0.1",
        "::ffff:a00:1",
        "64:ff9b::7f00:1",
        "64:ff9b:1::1",
        "2002:7f00:1::1",
        "2001::1",
        "2001:db8::1",
    ] {
        let script = ScriptedLookup::new(&[&[special]]);
        let client = egress_client(scripted_policy(&BROAD, &script));
        for name in ["inside.example", "any.inside.example"] {
            let url = format!("http://{name}:{}/", forbidden.port);
            let told = assert_denied(get_status(&client, &url).await);
            assert_eq!(told, "the destination is not allowed", "{special}");
        }
        assert_eq!(script.lookup_count(), 2);
    }
    forbidden.assert_untouched().await;
}

#[tokio::test]
async fn sec_20_rebound_name_is_denied() {
    let (allowed, forbidden) = allowed_and_forbidden().await;
    let port = serve_greetings(allowed).port();
    let script = ScriptedLookup::new(&[&["127.0.0.2"], &["127.0.0.1"]]);
    let rules = [
        format!("127.0.0.2:{port}"),
        format!("inside.example:{port}"),
    ];
    let rules: Vec<&str> = rules.iter().map(String::as_str).collect();
    let client = egress_client(scripted_policy(&rules, &script));
    let url = format!("http://inside.example:{port}/");
    assert_eq!(get_status(&client, &url).await, Ok(200));
    // A single lookup serves check and dial.
    assert_eq!(script.lookup_count(), 1);
    assert_denied(get_status(&client, &url).await);
    assert_eq!(script.lookup_count(), 2);
    forbidden.assert_untouched().await;
}

#[tokio::test]
async fn sec_20_only_allowed_addresses_are_dialed() {
    let (allowed, forbidden) = allowed_and_forbidden().await;
    let port = serve_greetings(allowed).port();
    let script = ScriptedLookup::new(&[&["127.0.0.1", "127.0.0.3", "127.0.0.2"]]);
    // The second address has no listener, so the third is tried.
    let rules = [format!("127.0.0.2/31:{port}")];
    let client = egress_client(scripted_policy(&[&rules[0]], &script));
    let url = format!("http://many.example:{port}/");
    assert_eq!(get_status(&client, &url).await, Ok(200));
    forbidden.assert_untouched().await;
}

#[tokio::test]
async fn sec_20_denial_does_not_reveal_listeners() {
    let open = ForbiddenServer::new().await;
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let closed_port = closed.local_addr().unwrap().port();
    drop(closed);
    let nobody = ScriptedLookup::new(&[]);
    let nothing = ScriptedLookup::new(&[&[]]);
    let there = ScriptedLookup::new(&[&["10.0.0.1"]]);
    // A range rule for this port requires a lookup; its result stays hidden.
    let rules = ["192.168.7.7:*", "*.other.example:*"];
    let mut told = Vec::new();
    for script in [nobody, nothing, there] {
        let client = egress_client(scripted_policy(&rules, &script));
        for port in [open.port, closed_port, 1] {
            for host in ["secret.example", "127.0.0.1", "10.0.0.1", "0x7f.1", "[::1]"] {
                told.push(assert_denied(
                    get_status(&client, &format!("http://{host}:{port}/")).await,
                ));
            }
        }
    }
    told.dedup();
    assert_eq!(told, ["the destination is not allowed"]);
    open.assert_untouched().await;
}

#[tokio::test]
async fn never_allowed_name_is_not_resolved() {
    let script = ScriptedLookup::new(&[&["93.184.215.14"]]);
    let client = egress_client(scripted_policy(
        &["tracker.example:443", "10.0.0.0/8:5432"],
        &script,
    ));
    for url in [
        "http://tracker.example/",
        "https://leak.attacker.example/",
        "http://db:80/",
    ] {
        assert_denied(get_status(&client, url).await);
    }
    assert_eq!(script.lookup_count(), 0);
}

#[tokio::test]
async fn allowed_host_is_reached_in_every_spelling() {
    let address = start_greeter("127.0.0.1:0").await;
    let port = address.port();
    let rule = format!("127.0.0.1:{port}");
    let script = ScriptedLookup::new(&[&["::ffff:127.0.0.1"]]);
    for rule in [
        rule,
        format!("localhost:{port}"),
        "127.0.0.0/8:*".to_owned(),
    ] {
        let client = egress_client(scripted_policy(&[&rule], &script));
        for host in [
            "127.0.0.1",
            "127.0.0.1.",
            "localhost",
            "localhost.",
            "[::ffff:7f00:1]",
            "a.example",
        ] {
            let url = format!("http://{host}:{port}/");
            assert_eq!(get_status(&client, &url).await, Ok(200), "{host} by {rule}");
        }
        for host in ODD {
            if HttpEndpoint::parse(&format!("http://{host}:{port}/")).is_ok() {
                assert_denied(get_status(&client, &format!("http://{host}:{port}/")).await);
            }
        }
    }
}

#[tokio::test]
async fn missing_allowed_name_is_unreachable() {
    let client = egress_client(scripted_policy(
        &["tracker.example:*"],
        &ScriptedLookup::new(&[]),
    ));
    let error = get_status(&client, "http://tracker.example:81/")
        .await
        .unwrap_err();
    assert!(matches!(error, HttpError::Unreachable(_)), "{error:?}");
    let client = egress_client(scripted_policy(
        &["tracker.example:*"],
        &ScriptedLookup::new(&[&[]]),
    ));
    let error = get_status(&client, "http://tracker.example:81/")
        .await
        .unwrap_err();
    assert!(matches!(error, HttpError::Unreachable(_)), "{error:?}");
}

#[tokio::test]
async fn denial_names_its_remedy() {
    let script = ScriptedLookup::new(&[&["10.1.2.3"]]);
    for (rule, url, want) in [
        (
            "a.example:1",
            "https://tracker.example/",
            Some("tracker.example:443"),
        ),
        (
            "tracker.example:*",
            "http://tracker.example:81/",
            Some("10.1.2.3:81"),
        ),
        (
            "a.example:1",
            "http://[::ffff:7f00:1]:82/",
            Some("127.0.0.1:82"),
        ),
        ("a.example:1", "http://localhost./", Some("localhost:80")),
        ("a.example:1", "http://0x7f.1/", None),
    ] {
        let client = egress_client(scripted_policy(&[rule], &script));
        let Err(HttpError::Denied(denied)) = get_status(&client, url).await else {
            panic!("{url}");
        };
        let remedy = denied.remedy_rule().map(|rule| rule.to_string());
        assert_eq!(remedy.as_deref(), want, "{url}");
    }
}

#[tokio::test]
async fn sec_20_each_redirect_hop_is_checked() {
    let (allowed, forbidden) = allowed_and_forbidden().await;
    let port = forbidden.port;
    let mut server = ScriptedServer::start_on(allowed);
    let script = ScriptedLookup::new(&[&["127.0.0.2"]]);
    let rules = [
        format!("127.0.0.2:{port}"),
        format!("tracker.example:{port}"),
    ];
    let client = egress_client(scripted_policy(&[&rules[0], &rules[1]], &script));
    let mut spec = http_spec(&server);
    spec.url = HttpEndpoint::parse(&format!("http://tracker.example:{port}/mcp")).unwrap();
    let info = ClientInfo {
        name: "probe".into(),
        version: "9".into(),
    };
    let by = test_deadline();
    let connecting = spawn_task(async move {
        http::connect(&spec, Arc::new(client), info, by, &DetachedSpawner).await
    });
    // No pooled connections, so each request dials.
    let close = "Connection: close\r\nContent-Type: application/json\r\n";
    let seen = server.next_post().await;
    let hello = scripted_server::initialize_result(&seen.id());
    seen.respond(200, close, &hello).await;
    server.next_post().await.respond(202, close, "").await;
    server.next_get().await.respond(405, close, "").await;
    let (link, _events) = connecting.await.unwrap().unwrap();
    let call = spawn_task(async move { link.request(test_request("tools/call")).await });
    let seen = server.next_post().await;
    // The name of the hop resolves to a different address now.
    script.redirect_all_names("127.0.0.1");
    seen.respond(307, &format!("Location: /hop\r\n{close}"), "")
        .await;
    let LinkError::RemoteFailure(failure) = call.await.unwrap().unwrap_err() else {
        panic!("it was not denied");
    };
    assert_eq!(
        (failure.class, &*failure.code),
        (FailureClass::Denied, "egress_denied")
    );
    assert_eq!(&*failure.reason, "the destination is not allowed");
    forbidden.assert_untouched().await;
}

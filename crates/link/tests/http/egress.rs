//! A client behind an allow-list: what is not allowed is not dialled, whatever it is called.

use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, SocketAddr};

use ::http::Method;
use bowline_core::egress::Egress;
use bowline_core::error::{Class, Execution};
use bowline_link::http::client::{HttpError, Outgoing, Wait};
use bowline_link::http::hyper_client::{Gate, Lookup};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::*;

const WAIT: Wait<'static> = Wait {
    connect: None,
    first_byte: None,
    leaving: &|| {},
};

/// Rules that mean the public, and every name that the tests ask for.
const BROAD: [&str; 4] = ["0.0.0.0/0:*", "[::/0]:*", "*.example:*", "inside.example:*"];

/// Ways to write an address of this machine that a resolver or a socket understands.
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

/// Ways to write it that are read as what they are.
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

/// Somebody who must not be reached, at every address of this machine.
struct Forbidden {
    listener: TcpListener,
    port: u16,
}

impl Forbidden {
    async fn new() -> Self {
        let listener = TcpListener::bind("[::]:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        Self { listener, port }
    }

    /// Nobody but the one who asks has connected: the first in the queue is its own connection.
    async fn is_untouched(&self) {
        let own = TcpStream::connect(("127.0.0.1", self.port)).await.unwrap();
        let (_, first) = soon(self.listener.accept()).await.unwrap();
        assert_eq!(first.port(), own.local_addr().unwrap().port());
    }
}

/// Answers lookups in turn; the last answer stays.
#[derive(Debug)]
struct Script {
    answers: Mutex<VecDeque<Vec<IpAddr>>>,
    asked: Mutex<Vec<String>>,
}

impl Script {
    fn new(answers: &[&[&str]]) -> Arc<Self> {
        let parsed = |answer: &&[&str]| answer.iter().map(|ip| ip.parse().unwrap()).collect();
        Arc::new(Self {
            answers: Mutex::new(answers.iter().map(parsed).collect()),
            asked: Mutex::default(),
        })
    }

    /// From now on every name leads here.
    fn turn(&self, to: &str) {
        let answer = vec![to.parse().unwrap()];
        *self.answers.lock().unwrap() = VecDeque::from([answer]);
    }

    fn asked(&self) -> usize {
        self.asked.lock().unwrap().len()
    }
}

impl Lookup for Script {
    fn lookup<'a>(&'a self, name: &'a str) -> BoxFuture<'a, io::Result<Vec<IpAddr>>> {
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

fn gate(rules: &[&str]) -> Gate {
    Gate::new(Arc::new(Egress::parse(rules.iter().copied()).unwrap()))
}

fn scripted(rules: &[&str], script: &Arc<Script>) -> Gate {
    let egress = Arc::new(Egress::parse(rules.iter().copied()).unwrap());
    Gate::with_lookup(egress, script.clone())
}

fn gated(gate: Gate) -> HyperClient {
    HyperClient::gated(ClientLimits::default(), gate).unwrap()
}

/// Asks for an address; returns why there is no answer, or its status.
async fn ask(client: &HyperClient, url: &str) -> Result<u16, HttpError> {
    let to = Endpoint::parse(url).unwrap();
    let request = Outgoing::new(Method::GET, &to);
    let answer = soon(client.send(request, WAIT)).await?;
    Ok(answer.status.as_u16())
}

/// Listens where it may be asked, and at the same port where it may not.
async fn neighbours() -> (TcpListener, Forbidden) {
    loop {
        let allowed = TcpListener::bind("127.0.0.2:0").await.unwrap();
        let port = allowed.local_addr().unwrap().port();
        // Somebody else may have that port here.
        if let Ok(listener) = TcpListener::bind(("127.0.0.1", port)).await {
            return (allowed, Forbidden { listener, port });
        }
    }
}

/// Answers every connection to here once.
async fn greeter(address: &str) -> SocketAddr {
    greets(TcpListener::bind(address).await.unwrap())
}

fn greets(listener: TcpListener) -> SocketAddr {
    let address = listener.local_addr().unwrap();
    spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut head = [0; 1024];
            let _ = stream.read(&mut head).await;
            let answer = "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n";
            let _ = stream.write_all(answer.as_bytes()).await;
        }
    });
    address
}

fn is_denied(asked: Result<u16, HttpError>) -> String {
    let error = asked.unwrap_err();
    assert!(matches!(error, HttpError::Denied(_)), "{error:?}");
    assert_eq!(error.execution(), Execution::NotStarted);
    error.to_string()
}

#[tokio::test]
async fn sec_20_no_way_to_write_this_machine_gets_past_rules_that_do_not_mean_it() {
    let forbidden = Forbidden::new().await;
    let port = forbidden.port;
    let client = gated(gate(&BROAD));
    for scheme in ["http", "https"] {
        for host in ODD.iter().chain(&PLAIN) {
            let url = format!("{scheme}://{host}:{port}/latest/meta-data");
            // What cannot even be written as an address goes nowhere at all.
            if Endpoint::parse(&url).is_ok() {
                let told = is_denied(ask(&client, &url).await);
                assert_eq!(told, "the destination is not allowed", "{url}");
            }
        }
    }
    forbidden.is_untouched().await;
}

#[tokio::test]
async fn sec_20_the_same_ways_do_lead_to_this_machine_where_nobody_stands_in_between() {
    let address = greeter("[::]:0").await;
    let open = HyperClient::new(ClientLimits::default()).unwrap();
    for host in [
        "2130706433",
        "0x7f.1",
        "127.1",
        "127.0.0.1",
        "localhost",
        "[::ffff:7f00:1]",
    ] {
        let url = format!("http://{host}:{}/", address.port());
        assert_eq!(ask(&open, &url).await, Ok(200), "{host}");
    }
}

#[tokio::test]
async fn sec_20_a_name_that_leads_to_a_special_address_is_not_dialled() {
    let forbidden = Forbidden::new().await;
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
        let script = Script::new(&[&[special]]);
        let client = gated(scripted(&BROAD, &script));
        for name in ["inside.example", "any.inside.example"] {
            let url = format!("http://{name}:{}/", forbidden.port);
            let told = is_denied(ask(&client, &url).await);
            assert_eq!(told, "the destination is not allowed", "{special}");
        }
        assert_eq!(script.asked(), 2);
    }
    forbidden.is_untouched().await;
}

#[tokio::test]
async fn sec_20_a_name_that_led_where_it_may_and_now_leads_elsewhere_is_denied() {
    let (allowed, forbidden) = neighbours().await;
    let port = greets(allowed).port();
    let script = Script::new(&[&["127.0.0.2"], &["127.0.0.1"]]);
    let rules = [
        format!("127.0.0.2:{port}"),
        format!("inside.example:{port}"),
    ];
    let rules: Vec<&str> = rules.iter().map(String::as_str).collect();
    let client = gated(scripted(&rules, &script));
    let url = format!("http://inside.example:{port}/");
    assert_eq!(ask(&client, &url).await, Ok(200));
    // One lookup serves check and dial: what is checked is what is dialled.
    assert_eq!(script.asked(), 1);
    is_denied(ask(&client, &url).await);
    assert_eq!(script.asked(), 2);
    forbidden.is_untouched().await;
}

#[tokio::test]
async fn sec_20_of_several_addresses_only_those_that_may_be_are_dialled() {
    let (allowed, forbidden) = neighbours().await;
    let port = greets(allowed).port();
    let script = Script::new(&[&["127.0.0.1", "127.0.0.3", "127.0.0.2"]]);
    // Nobody listens at the second, and the third is tried then.
    let rules = [format!("127.0.0.2/31:{port}")];
    let client = gated(scripted(&[&rules[0]], &script));
    let url = format!("http://many.example:{port}/");
    assert_eq!(ask(&client, &url).await, Ok(200));
    forbidden.is_untouched().await;
}

#[tokio::test]
async fn sec_20_what_may_not_be_asked_tells_nothing_of_who_is_there() {
    let open = Forbidden::new().await;
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let closed_port = closed.local_addr().unwrap().port();
    drop(closed);
    let nobody = Script::new(&[]);
    let nothing = Script::new(&[&[]]);
    let there = Script::new(&[&["10.0.0.1"]]);
    // A range of this port makes a lookup necessary; its result is not told.
    let rules = ["192.168.7.7:*", "*.other.example:*"];
    let mut told = Vec::new();
    for script in [nobody, nothing, there] {
        let client = gated(scripted(&rules, &script));
        for port in [open.port, closed_port, 1] {
            for host in ["secret.example", "127.0.0.1", "10.0.0.1", "0x7f.1", "[::1]"] {
                told.push(is_denied(
                    ask(&client, &format!("http://{host}:{port}/")).await,
                ));
            }
        }
    }
    told.dedup();
    assert_eq!(told, ["the destination is not allowed"]);
    open.is_untouched().await;
}

#[tokio::test]
async fn a_name_that_no_rule_could_allow_is_not_even_looked_up() {
    let script = Script::new(&[&["93.184.215.14"]]);
    let client = gated(scripted(
        &["tracker.example:443", "10.0.0.0/8:5432"],
        &script,
    ));
    for url in [
        "http://tracker.example/",
        "https://leak.attacker.example/",
        "http://db:80/",
    ] {
        is_denied(ask(&client, url).await);
    }
    assert_eq!(script.asked(), 0);
}

#[tokio::test]
async fn what_is_named_is_reached_by_every_plain_way_to_write_it() {
    let address = greeter("127.0.0.1:0").await;
    let port = address.port();
    let rule = format!("127.0.0.1:{port}");
    let script = Script::new(&[&["::ffff:127.0.0.1"]]);
    for rule in [
        rule,
        format!("localhost:{port}"),
        "127.0.0.0/8:*".to_owned(),
    ] {
        let client = gated(scripted(&[&rule], &script));
        for host in [
            "127.0.0.1",
            "127.0.0.1.",
            "localhost",
            "localhost.",
            "[::ffff:7f00:1]",
            "a.example",
        ] {
            let url = format!("http://{host}:{port}/");
            assert_eq!(ask(&client, &url).await, Ok(200), "{host} by {rule}");
        }
        for host in ODD {
            if Endpoint::parse(&format!("http://{host}:{port}/")).is_ok() {
                is_denied(ask(&client, &format!("http://{host}:{port}/")).await);
            }
        }
    }
}

#[tokio::test]
async fn a_name_that_may_be_asked_and_is_not_there_is_unreachable_and_not_denied() {
    let client = gated(scripted(&["tracker.example:*"], &Script::new(&[])));
    let error = ask(&client, "http://tracker.example:81/")
        .await
        .unwrap_err();
    assert!(matches!(error, HttpError::Unreachable(_)), "{error:?}");
    let client = gated(scripted(&["tracker.example:*"], &Script::new(&[&[]])));
    let error = ask(&client, "http://tracker.example:81/")
        .await
        .unwrap_err();
    assert!(matches!(error, HttpError::Unreachable(_)), "{error:?}");
}

#[tokio::test]
async fn a_denial_tells_its_remedy_to_who_keeps_the_rules() {
    let script = Script::new(&[&["10.1.2.3"]]);
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
        let client = gated(scripted(&[rule], &script));
        let Err(HttpError::Denied(denied)) = ask(&client, url).await else {
            panic!("{url}");
        };
        let remedy = denied.remedy().map(|rule| rule.to_string());
        assert_eq!(remedy.as_deref(), want, "{url}");
    }
}

#[tokio::test]
async fn sec_20_each_hop_of_a_redirect_is_checked_again() {
    let (allowed, forbidden) = neighbours().await;
    let port = forbidden.port;
    let mut server = Server::start_on(allowed);
    let script = Script::new(&[&["127.0.0.2"]]);
    let rules = [
        format!("127.0.0.2:{port}"),
        format!("tracker.example:{port}"),
    ];
    let client = gated(scripted(&[&rules[0], &rules[1]], &script));
    let mut spec = spec(&server);
    spec.url = Endpoint::parse(&format!("http://tracker.example:{port}/mcp")).unwrap();
    let info = ClientInfo {
        name: "probe".into(),
        version: "9".into(),
    };
    let by = after(Duration::from_secs(20));
    let connecting =
        spawn(async move { http::connect(&spec, Arc::new(client), info, by, &Tokio).await });
    // No connection is kept, so that each request is dialled anew.
    let close = "Connection: close\r\nContent-Type: application/json\r\n";
    let seen = server.post().await;
    let hello = server::hello(&seen.id());
    seen.answer(200, close, &hello).await;
    server.post().await.answer(202, close, "").await;
    server.get().await.answer(405, close, "").await;
    let (link, _events) = connecting.await.unwrap().unwrap();
    let call = spawn(async move { link.request(request("tools/call")).await });
    let seen = server.post().await;
    // The hop finds that the name leads elsewhere by now.
    script.turn("127.0.0.1");
    seen.answer(307, &format!("Location: /hop\r\n{close}"), "")
        .await;
    let LinkError::Elsewhere(failure) = call.await.unwrap().unwrap_err() else {
        panic!("it was not denied");
    };
    assert_eq!(
        (failure.class, &*failure.code),
        (Class::Denied, "egress_denied")
    );
    assert_eq!(&*failure.reason, "the destination is not allowed");
    forbidden.is_untouched().await;
}

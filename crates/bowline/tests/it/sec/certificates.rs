//! A TLS server with a bad certificate is refused, and no setting changes that.

use std::io::Read as _;
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::mpsc;
use std::thread;

use bowline_testkit::gateway::{Executor, Gateway, bowline_binary};
use bowline_testkit::wait_until;
use rustls::crypto::ring;
use rustls::pki_types::PrivatePkcs8KeyDer;
use rustls::{ServerConfig, ServerConnection, Stream};

use crate::sec::egress_setup::{REQUEST_ORIGINS, RequestOrigin};

/// Serves TLS with a self-signed certificate of this name; reports the bytes of each caller after
/// the handshake.
fn start_self_signed(name: &str) -> (u16, mpsc::Receiver<Vec<u8>>) {
    let made = rcgen::generate_simple_self_signed([name.to_owned()]).unwrap();
    let key = PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key.into())
        .unwrap();
    let config = Arc::new(config);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let (told, tells) = mpsc::channel();
    // The thread lives as long as the test process; no join.
    thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let mut tls = ServerConnection::new(Arc::clone(&config)).unwrap();
            let mut heard = Vec::new();
            let _refused = Stream::new(&mut tls, &mut stream).read_to_end(&mut heard);
            if told.send(heard).is_err() {
                return;
            }
        }
    });
    (port, tells)
}

#[test]
fn sec_24_self_signed_certificate_is_refused() {
    for road in REQUEST_ORIGINS {
        for name in ["localhost", "other.example"] {
            let (port, tells) = start_self_signed(name);
            let via = match road {
                RequestOrigin::Direct => "",
                RequestOrigin::Executor => "via = \"executor:office\"\n",
            };
            let config = format!(
                "[servers.s]\nurl = \"https://localhost:{port}/mcp\"\n{via}\
                 [servers.s.headers]\nAuthorization = \"Bearer s3cret-s3cret\"\n"
            );
            let gateway = Gateway::start_with_command(&config, |up| {
                // Variables against certificate checks of common runtimes have no effect.
                up.env("NODE_TLS_REJECT_UNAUTHORIZED", "0")
                    .env("PYTHONHTTPSVERIFY", "0")
                    .env("SSL_VERIFY", "false")
                    .env("GIT_SSL_NO_VERIFY", "true");
            });
            let rule = format!("localhost:{port}");
            let join = || {
                let args = ["--allow", rule.as_str()];
                Executor::join(&gateway, "office", &gateway.token, "", &args)
            };
            let _office = (road == RequestOrigin::Executor).then(join);
            let said = || gateway.server_status("s")["last_error"]["message"].to_string();
            wait_until("it is refused", || said().contains("certificate"));
            assert_ne!(gateway.server_status("s")["state"], "ready");
            // The caller noticed before sending anything.
            assert_eq!(tells.recv().unwrap(), b"", "{road:?} {name}");
        }
    }
}

#[test]
fn sec_24_no_config_key_disables_certificate_check() {
    let directory = tempfile::tempdir().unwrap();
    let config = directory.path().join("bowline.toml");
    let server = "[servers.s]\nurl = \"https://localhost:1/mcp\"\n";
    for key in [
        "insecure = true",
        "tls_verify = false",
        "verify = false",
        "insecure_tls = true",
    ] {
        for text in [
            format!("{server}{key}\n"),
            format!("[gateway]\n{key}\n{server}"),
        ] {
            std::fs::write(&config, &text).unwrap();
            let mut check = std::process::Command::new(bowline_binary());
            let checked = check
                .args(["check", "--json", "--config"])
                .arg(&config)
                .output();
            let checked = checked.unwrap();
            let said = String::from_utf8_lossy(&checked.stderr).into_owned()
                + &String::from_utf8_lossy(&checked.stdout);
            assert!(said.contains("unknown key"), "{text}: {said}");
        }
    }
}

//! A scripted gateway for tests that records requests.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use super::output::captured::{self, CapturedOutput};
use super::{CommandContext, GlobalArgs, OutputFormat};
use bowline_config::EnvVars;
use bowline_config::state::{RunRecord, StateDir};

/// A recorded request.
#[derive(Clone, Debug)]
pub(crate) struct FakeRequest {
    pub(crate) line: String,
    pub(crate) headers: BTreeMap<String, String>,
    pub(crate) body: String,
}

impl FakeRequest {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(String::as_str)
    }
}

/// Produces the bytes of a response; `None` leaves the request unanswered.
pub(crate) type FakeScript = Arc<dyn Fn(&FakeRequest) -> Option<Vec<u8>> + Send + Sync>;

/// Scripts a JSON response.
pub(crate) fn json_response(status: u16, body: &str) -> FakeScript {
    let bytes = response_bytes(status, &[("content-type", "application/json")], body);
    Arc::new(move |_| Some(bytes.clone()))
}

/// Scripts no response.
pub(crate) fn no_response() -> FakeScript {
    Arc::new(|_| None)
}

/// Builds the bytes of a response.
pub(crate) fn response_bytes(status: u16, headers: &[(&str, &str)], body: &str) -> Vec<u8> {
    let mut text = format!("HTTP/1.1 {status} X\r\nconnection: close\r\n");
    for (name, value) in headers {
        text.push_str(&format!("{name}: {value}\r\n"));
    }
    text.push_str(&format!("content-length: {}\r\n\r\n{body}", body.len()));
    text.into_bytes()
}

/// A fake gateway on a free port, with a state directory.
pub(crate) struct FakeGateway {
    pub(crate) state: StateDir,
    directory: Option<tempfile::TempDir>,
    port: u16,
    requests: Arc<Mutex<Vec<FakeRequest>>>,
    open_streams: Arc<Mutex<Vec<TcpStream>>>,
    thread: Option<JoinHandle<()>>,
    stop: Arc<std::sync::atomic::AtomicBool>,
}

impl FakeGateway {
    /// Responds by `METHOD /path`, with or without a query.
    pub(crate) fn start<const N: usize>(scripts: [(&str, FakeScript); N]) -> Self {
        let scripts: BTreeMap<String, FakeScript> = scripts
            .into_iter()
            .map(|(line, script)| (line.to_owned(), script))
            .collect();
        let directory = tempfile::tempdir().unwrap();
        let state = StateDir::open(directory.path().join("state")).unwrap();
        state.owner_token().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let requests = Arc::new(Mutex::new(Vec::new()));
        let open_streams = Arc::new(Mutex::new(Vec::new()));
        let stop = Arc::new(std::sync::atomic::AtomicBool::new(false));
        let thread = {
            let (requests, open, stop) = (requests.clone(), open_streams.clone(), stop.clone());
            std::thread::spawn(move || {
                accept_connections(&listener, &scripts, &requests, &open, &stop)
            })
        };
        let url = format!("http://127.0.0.1:{port}");
        let run = RunRecord {
            v: 1,
            pid: std::process::id(),
            started_at_ms: 0,
            mcp: format!("{url}/mcp"),
            url,
            token_file: state.token_file(),
        };
        state.write_run(&run).unwrap();
        Self {
            state,
            directory: Some(directory),
            port,
            requests,
            open_streams,
            thread: Some(thread),
            stop,
        }
    }

    /// Stops listening, but keeps the state directory.
    pub(crate) fn stop(mut self) -> Option<tempfile::TempDir> {
        self.directory.take()
    }

    pub(crate) fn owner_token(&self) -> String {
        self.state.owner_token().unwrap().expose().to_owned()
    }

    pub(crate) fn requests(&self) -> Vec<FakeRequest> {
        self.requests.lock().unwrap().clone()
    }

    /// Creates a context for finding the gateway by the state directory.
    pub(crate) fn command_context(
        &self,
        format: OutputFormat,
    ) -> (CommandContext, CapturedOutput, CapturedOutput) {
        let global = GlobalArgs {
            state: Some(self.state.path().to_owned()),
            ..GlobalArgs::default()
        };
        let (out, stdout, stderr) = captured::captured_output(format);
        (
            CommandContext {
                global,
                env: EnvVars::default(),
                out,
            },
            stdout,
            stderr,
        )
    }
}

impl Drop for FakeGateway {
    fn drop(&mut self) {
        self.stop.store(true, std::sync::atomic::Ordering::SeqCst);
        let _woken = TcpStream::connect(("127.0.0.1", self.port));
        if let Some(thread) = self.thread.take() {
            let _joined = thread.join();
        }
        for stream in self.open_streams.lock().unwrap().drain(..) {
            let _closed = stream.shutdown(Shutdown::Both);
        }
    }
}

fn accept_connections(
    listener: &TcpListener,
    scripts: &BTreeMap<String, FakeScript>,
    requests: &Arc<Mutex<Vec<FakeRequest>>>,
    open_streams: &Arc<Mutex<Vec<TcpStream>>>,
    stop: &std::sync::atomic::AtomicBool,
) {
    for stream in listener.incoming() {
        if stop.load(std::sync::atomic::Ordering::SeqCst) {
            return;
        }
        let stream = stream.unwrap();
        let (scripts, requests, open_streams) =
            (scripts.clone(), requests.clone(), open_streams.clone());
        std::thread::spawn(move || handle_connection(stream, &scripts, &requests, &open_streams));
    }
}

fn handle_connection(
    mut stream: TcpStream,
    scripts: &BTreeMap<String, FakeScript>,
    requests: &Mutex<Vec<FakeRequest>>,
    open_streams: &Mutex<Vec<TcpStream>>,
) {
    let Some(request) = read_request(&stream) else {
        return;
    };
    requests.lock().unwrap().push(request.clone());
    let path = request.line.split('?').next().unwrap_or_default();
    let script = scripts.get(&request.line).or_else(|| scripts.get(path));
    let bytes = match script {
        Some(script) => script(&request),
        None => Some(response_bytes(404, &[], "")),
    };
    match bytes {
        Some(bytes) => {
            let _written = stream.write_all(&bytes);
        }
        None => open_streams.lock().unwrap().push(stream),
    }
}

fn read_request(stream: &TcpStream) -> Option<FakeRequest> {
    let mut reader = BufReader::new(stream);
    let mut first = String::new();
    reader.read_line(&mut first).ok()?;
    let mut words = first.split_whitespace();
    let line = format!("{} {}", words.next()?, words.next()?);
    let mut headers = BTreeMap::new();
    loop {
        let mut header = String::new();
        reader.read_line(&mut header).ok()?;
        let Some((name, value)) = header.trim_end().split_once(':') else {
            break;
        };
        headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
    }
    let length: usize = headers
        .get("content-length")
        .and_then(|text| text.parse().ok())
        .unwrap_or(0);
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    Some(FakeRequest {
        line,
        headers,
        body: String::from_utf8(body).ok()?,
    })
}

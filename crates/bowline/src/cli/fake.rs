//! A gateway for tests: answers by a script, remembers what it was asked.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use super::out::captured::{self, Captured};
use super::{Context, Format, Global};
use crate::config::Env;
use crate::state::{Run, State};

/// What was asked.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    pub(crate) line: String,
    pub(crate) headers: BTreeMap<String, String>,
    pub(crate) body: String,
}

impl Asked {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(String::as_str)
    }
}

/// What is answered, as the bytes of a response; nothing keeps the caller waiting.
pub(crate) type Script = Arc<dyn Fn(&Asked) -> Option<Vec<u8>> + Send + Sync>;

/// A JSON answer.
pub(crate) fn answer(status: u16, body: &str) -> Script {
    let bytes = response(status, &[("content-type", "application/json")], body);
    Arc::new(move |_| Some(bytes.clone()))
}

/// No answer at all.
pub(crate) fn silence() -> Script {
    Arc::new(|_| None)
}

/// The bytes of a response.
pub(crate) fn response(status: u16, headers: &[(&str, &str)], body: &str) -> Vec<u8> {
    let mut text = format!("HTTP/1.1 {status} X\r\nconnection: close\r\n");
    for (name, value) in headers {
        text.push_str(&format!("{name}: {value}\r\n"));
    }
    text.push_str(&format!("content-length: {}\r\n\r\n{body}", body.len()));
    text.into_bytes()
}

/// A gateway that listens on a free port, with its state directory.
pub(crate) struct Fake {
    pub(crate) state: State,
    directory: Option<tempfile::TempDir>,
    port: u16,
    asked: Arc<Mutex<Vec<Asked>>>,
    open: Arc<Mutex<Vec<TcpStream>>>,
    thread: Option<JoinHandle<()>>,
    stop: Arc<std::sync::atomic::AtomicBool>,
}

impl Fake {
    /// Answers by `METHOD /path`, with or without a query.
    pub(crate) fn start<const N: usize>(scripts: [(&str, Script); N]) -> Self {
        let scripts: BTreeMap<String, Script> = scripts
            .into_iter()
            .map(|(line, script)| (line.to_owned(), script))
            .collect();
        let directory = tempfile::tempdir().unwrap();
        let state = State::open(directory.path().join("state")).unwrap();
        state.token().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let asked = Arc::new(Mutex::new(Vec::new()));
        let open = Arc::new(Mutex::new(Vec::new()));
        let stop = Arc::new(std::sync::atomic::AtomicBool::new(false));
        let thread = {
            let (asked, open, stop) = (asked.clone(), open.clone(), stop.clone());
            std::thread::spawn(move || serve(&listener, &scripts, &asked, &open, &stop))
        };
        let url = format!("http://127.0.0.1:{port}");
        let run = Run {
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
            asked,
            open,
            thread: Some(thread),
            stop,
        }
    }

    /// Listens no more, but leaves its state directory.
    pub(crate) fn stop(mut self) -> Option<tempfile::TempDir> {
        self.directory.take()
    }

    pub(crate) fn token(&self) -> String {
        self.state.token().unwrap().expose().to_owned()
    }

    pub(crate) fn requests(&self) -> Vec<Asked> {
        self.asked.lock().unwrap().clone()
    }

    /// A context that finds this gateway by its state directory.
    pub(crate) fn context(&self, format: Format) -> (Context, Captured, Captured) {
        let global = Global {
            state: Some(self.state.path().to_owned()),
            ..Global::default()
        };
        let (out, stdout, stderr) = captured::out(format);
        (
            Context {
                global,
                env: Env::default(),
                out,
            },
            stdout,
            stderr,
        )
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        self.stop.store(true, std::sync::atomic::Ordering::SeqCst);
        let _woken = TcpStream::connect(("127.0.0.1", self.port));
        if let Some(thread) = self.thread.take() {
            let _joined = thread.join();
        }
        for stream in self.open.lock().unwrap().drain(..) {
            let _closed = stream.shutdown(Shutdown::Both);
        }
    }
}

fn serve(
    listener: &TcpListener,
    scripts: &BTreeMap<String, Script>,
    asked: &Arc<Mutex<Vec<Asked>>>,
    open: &Arc<Mutex<Vec<TcpStream>>>,
    stop: &std::sync::atomic::AtomicBool,
) {
    for stream in listener.incoming() {
        if stop.load(std::sync::atomic::Ordering::SeqCst) {
            return;
        }
        let stream = stream.unwrap();
        let (scripts, asked, open) = (scripts.clone(), asked.clone(), open.clone());
        std::thread::spawn(move || one(stream, &scripts, &asked, &open));
    }
}

fn one(
    mut stream: TcpStream,
    scripts: &BTreeMap<String, Script>,
    asked: &Mutex<Vec<Asked>>,
    open: &Mutex<Vec<TcpStream>>,
) {
    let Some(request) = read(&stream) else { return };
    asked.lock().unwrap().push(request.clone());
    let path = request.line.split('?').next().unwrap_or_default();
    let script = scripts.get(&request.line).or_else(|| scripts.get(path));
    let bytes = match script {
        Some(script) => script(&request),
        None => Some(response(404, &[], "")),
    };
    match bytes {
        Some(bytes) => {
            let _written = stream.write_all(&bytes);
        }
        None => open.lock().unwrap().push(stream),
    }
}

fn read(stream: &TcpStream) -> Option<Asked> {
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
    Some(Asked {
        line,
        headers,
        body: String::from_utf8(body).ok()?,
    })
}

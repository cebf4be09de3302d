//! Modern stdio servers, and their detection.

use std::sync::Mutex;

use bowline_core::call::BodyKind;
use bowline_core::client_handle::{
    ClientCapabilities, ClientCapability, ClientHandle, ServerRequest, ServerRequestId, SessionKey,
};
use bowline_core::error::ExecutionStatus;
use bowline_core::log_level::LogLevel;
use bowline_link::InputRequestError;
use bowline_wire::mcp::Revision;
use tokio::sync::Notify;

use super::*;

/// Shell loop that answers each line by its method, and echoes input to stderr.
const LOOP: &str = r#"
answer() { printf '%s\n' '{"jsonrpc":"2.0","id":'"$id"',"result":{"resultType":"complete",'"$1"'}}'; }
refuse() { printf '%s\n' '{"jsonrpc":"2.0","id":'"$id"',"error":{"code":'"$1"',"message":"no"'"$2"'}}'; }
hello() { answer '"protocolVersion":"2025-11-25","capabilities":{}'; }
discovered() {
  answer '"supportedVersions":["2026-07-28"],"capabilities":{'"$1"'},"ttlMs":0,"cacheScope":"private",
"_meta":{"io.modelcontextprotocol/serverInfo":{"name":"m","version":"7"}}' | tr '\n' ' '; echo
}
ask() { printf '%s\n' '{"jsonrpc":"2.0","id":'"$id"',"result":{"resultType":"input_required",'"$1"'}}'; }
while read -r line; do
  printf '%s\n' "$line" >&2
  id="${line#*\"id\":}"; id="${id%%,*}"
  case "$line" in
"#;

/// Returns a server with these `case` branches.
fn scripted_scene(cases: &str) -> StdioScene {
    let mut scene =
        StdioScene::from_script(ReaperMode::Nothing, &format!("{LOOP}{cases}\nesac; done"));
    scene.spec.negotiation = EraNegotiation::Unknown;
    scene
}

/// Returns the same server, configured as modern.
fn modern_scene(cases: &str) -> StdioScene {
    let mut scene = scripted_scene(cases);
    scene.spec.negotiation = EraNegotiation::Only(Era::Modern);
    scene
}

const MODERN: &str =
    r#"*'"server/discover"'*) discovered '"tools":{}' ;; *'"initialize"'*) refuse -32601 ;;"#;

#[derive(Debug)]
struct ScriptedClient {
    abilities: ClientCapabilities,
    pushed: Mutex<Vec<String>>,
    asked: Mutex<Vec<String>>,
    withdrawn: Mutex<Vec<u64>>,
    /// Answers in turn; without an answer, a request stays open.
    answers: Mutex<Vec<&'static str>>,
    open: Mutex<Vec<ServerRequest>>,
    /// Notified after each notification and request.
    received: Notify,
}

impl ScriptedClient {
    fn new(abilities: &[ClientCapability], answers: &[&'static str]) -> Arc<Self> {
        let abilities = abilities.iter().copied();
        Arc::new(Self {
            abilities: abilities.fold(
                ClientCapabilities::default(),
                ClientCapabilities::with_capability,
            ),
            pushed: Mutex::default(),
            asked: Mutex::default(),
            withdrawn: Mutex::default(),
            answers: Mutex::new(answers.iter().rev().copied().collect()),
            open: Mutex::default(),
            received: Notify::new(),
        })
    }

    fn asked_methods(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }

    /// Waits until what the client received satisfies the condition.
    async fn wait_until(&self, holds: impl Fn(&Self) -> bool) {
        let wait = async {
            loop {
                // Created before the look, so a later wake-up is not missed.
                let received = self.received.notified();
                if holds(self) {
                    return;
                }
                received.await;
            }
        };
        wait_bounded(wait).await;
    }
}

impl ClientHandle for ScriptedClient {
    fn session(&self) -> SessionKey {
        SessionKey(1)
    }

    fn capabilities(&self) -> ClientCapabilities {
        self.abilities
    }

    fn log_level(&self) -> Option<LogLevel> {
        Some(LogLevel::Warning)
    }

    fn notify(&self, notification: Bytes) {
        let text = String::from_utf8(notification.to_vec()).unwrap();
        self.pushed.lock().unwrap().push(text);
        self.received.notify_waiters();
    }

    fn request(&self, question: ServerRequest) -> Option<ServerRequestId> {
        let text = String::from_utf8(question.request.to_vec()).unwrap();
        self.asked.lock().unwrap().push(text);
        match self.answers.lock().unwrap().pop() {
            Some(answer) => {
                let id = String::from_utf8(question.id().to_vec()).unwrap();
                let whole = format!(r#"{{"jsonrpc":"2.0","id":{id},{answer}}}"#);
                question.respond(whole.into());
            }
            None => self.open.lock().unwrap().push(question),
        }
        self.received.notify_waiters();
        Some(ServerRequestId(7))
    }

    fn cancel_request(&self, question: ServerRequestId) {
        self.withdrawn.lock().unwrap().push(question.0);
    }

    fn session_handle(&self) -> Arc<dyn ClientHandle> {
        unreachable!("nobody goes home")
    }
}

fn client_call(caller: &Arc<ScriptedClient>) -> LinkRequest {
    let mut request = tool_request(r#"{"name":"t"}"#);
    request.message.client = Some(Arc::clone(caller) as Arc<dyn ClientHandle>);
    request
}

fn body_text(answer: &ServerResponse) -> &str {
    std::str::from_utf8(answer.body_bytes()).unwrap()
}

#[tokio::test]
async fn modern_server_is_discovered() {
    let scene = modern_scene(MODERN);
    let link = scene.connect_link().await;
    let info = link.server_info();
    assert_eq!(info.revision, Revision::V2026_07_28);
    assert_eq!(link.era(), Era::Modern);
    assert_eq!((&*info.name, &*info.version), ("m", "7"));
    let discovered = std::str::from_utf8(&info.initialize).unwrap();
    assert!(discovered.starts_with(r#"{"serverInfo":{"name":"m","version":"7"},"resultType""#));
    assert_eq!(
        scene.stderr_texts(),
        [concat!(
            r#"{"jsonrpc":"2.0","id":1,"method":"server/discover","params":{"_meta":{"#,
            r#""io.modelcontextprotocol/protocolVersion":"2026-07-28","#,
            r#""io.modelcontextprotocol/clientCapabilities":{},"#,
            r#""io.modelcontextprotocol/clientInfo":{"name":"probe","version":"9"}}}}"#
        )]
    );
    link.close().await;
}

#[tokio::test]
async fn older_revisions_lead_to_initialize() {
    for first in [
        r#"answer '"supportedVersions":["2025-11-25"],"capabilities":{}'"#,
        r#"refuse -32022 ',"data":{"supported":["2025-11-25"],"requested":"2026-07-28"}'"#,
        // No response to this request.
        r#"answer '"protocolVersion":"2025-11-25","capabilities":{}'"#,
    ] {
        let mut scene = scripted_scene(&format!(
            "*server/discover*) {first} ;; *'\"initialize\"'*) hello ;;"
        ));
        scene.spec.negotiation = EraNegotiation::DiscoverFirst;
        let link = scene.connect_link().await;
        assert_eq!(link.server_info().revision, Revision::V2025_11_25);
        link.close().await;
    }
}

#[tokio::test]
async fn modern_error_is_not_legacy() {
    let mut scene = scripted_scene("*server/discover*) refuse -32021 ;; *) hello ;;");
    scene.spec.negotiation = EraNegotiation::DiscoverFirst;
    let error = scene.connect().await;
    let LinkConnectError::HandshakeRefused { code, .. } = error.unwrap_err() else {
        panic!("it is another error");
    };
    assert_eq!(code, -32021);
}

#[tokio::test]
async fn slow_server_era_follows_its_response() {
    // The server starts to read after both messages were sent.
    let slow = |cases: &str| {
        let mut slow = scripted_scene(cases);
        let script = slow.spec.args[1].to_string_lossy().replace(
            "while read",
            "until [ -n \"$second\" ]; do read -r first; read -r second; done\nwhile read",
        );
        let both = script.replace(
            "while read -r line; do",
            "{ printf '%s\\n' \"$first\" \"$second\"; cat; } | while read -r line; do",
        );
        slow.spec.args[1] = both.into();
        slow
    };
    for (cases, era) in [
        (MODERN.to_owned(), Era::Modern),
        (
            "*server/discover*) refuse -32601 ;; *'\"initialize\"'*) hello ;;".to_owned(),
            Era::Legacy,
        ),
        (
            format!("*'\"initialize\"'*) hello ;; {MODERN}"),
            Era::Legacy,
        ),
    ] {
        let link = slow(&cases).connect_link().await;
        assert_eq!(link.era(), era, "{cases}");
        link.close().await;
    }
}

#[tokio::test]
async fn exiting_server_reports_reason_once() {
    let scene = scripted_scene("*) exit 4 ;;");
    let error = scene.connect().await.unwrap_err();
    assert!(
        error
            .to_string()
            .starts_with("ended before the handshake: exit code 4")
    );
    assert_eq!(scene.stderr_texts().len(), 1);
}

#[tokio::test]
async fn dual_era_server_is_used_as_legacy() {
    // Like servers of the Python SDK, the process accepts a single era.
    let latched = r#"
*'"server/discover"'*) [ -z "$era" ] && era=m; [ "$era" = m ] && discovered '"tools":{}' || refuse -32600 ;;
*'"initialize"'*) [ -z "$era" ] && era=l; [ "$era" = l ] && hello || refuse -32022 ;;"#;
    let scene = scripted_scene(latched);
    let link = scene.connect_link().await;
    assert_eq!(link.era(), Era::Legacy);
    let heard = scene.wait_lines(2).await;
    let first = r#""id":1,"method":"initialize""#;
    assert!(heard[0].contains(first), "{heard:?}");
    assert!(heard[1].contains("notifications/initialized"), "{heard:?}");
    link.close().await;
}

#[tokio::test]
async fn modern_only_server_stays_modern() {
    for refuses in ["refuse -32601", ":"] {
        let cases = format!("*'\"initialize\"'*) {refuses} ;; {MODERN}");
        let scene = scripted_scene(&cases);
        let link = scene.connect_link().await;
        assert_eq!(link.era(), Era::Modern);
        assert!(link.is_open());
        link.close().await;
    }
}

#[tokio::test]
async fn configured_modern_server_skips_initialize() {
    let mut scene = scripted_scene("*server/discover*) refuse -32601 ;; *) hello ;;");
    scene.spec.negotiation = EraNegotiation::Only(Era::Modern);
    let error = scene.connect().await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "gave no valid answer to the handshake: it does not speak the revision 2026-07-28"
    );
}

#[tokio::test]
async fn translated_requests_carry_handshake_data() {
    let scene = modern_scene(&format!(
        "{MODERN} *tools/call*) answer '\"content\":[]' ;;"
    ));
    let link = scene.connect_link().await;
    let caller = ScriptedClient::new(
        &[ClientCapability::Roots, ClientCapability::ElicitationForm],
        &[],
    );
    let answer = link.request(client_call(&caller)).await.unwrap();
    assert_eq!((answer.body, answer.era), (BodyKind::Result, Era::Modern));
    assert_eq!(
        answer.bytes,
        r#"{"jsonrpc":"2.0","id":77,"result":{"resultType":"complete","content":[]}}"#
    );
    let heard = scene.wait_lines(2).await;
    assert_eq!(
        heard[1],
        concat!(
            r#"{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"_meta":{"#,
            r#""io.modelcontextprotocol/protocolVersion":"2026-07-28","#,
            r#""io.modelcontextprotocol/clientCapabilities":{"elicitation":{"form":{}},"roots":{}},"#,
            r#""io.modelcontextprotocol/clientInfo":{"name":"probe","version":"9"},"#,
            r#""io.modelcontextprotocol/logLevel":"warning"},"name":"t"}}"#
        )
    );
    link.close().await;
}

#[tokio::test]
async fn same_era_requests_pass_unchanged() {
    let scene = modern_scene(&format!(
        "{MODERN} *tools/call*) ask '\"requestState\":\"s\"' ;;"
    ));
    let link = scene.connect_link().await;
    let params = r#"{"_meta":{"x":1},"name":"t","requestState":"r"}"#;
    let mut modern = tool_request(params);
    modern.message.era = Era::Modern;

    let answer = link.request(modern).await.unwrap();
    assert_eq!(answer.era, Era::Modern);
    assert_eq!(
        body_text(&answer),
        r#"{"resultType":"input_required","requestState":"s"}"#
    );
    let heard = scene.wait_lines(2).await;
    assert!(heard[1].ends_with(&format!("{params}}}")), "{heard:?}");
    link.close().await;
}

#[tokio::test]
async fn modern_requests_are_translated_to_legacy() {
    let scene = StdioScene::from_server_script(
        ReaperMode::Nothing,
        r#"read -r call; printf '%s\n' "$call" >&2; printf '%s\n' '{"id":2,"result":{}}'; read -r x"#,
    );
    let link = scene.connect_link().await;
    let params = concat!(
        r#"{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","progressToken":9,"#,
        r#""io.modelcontextprotocol/clientCapabilities":{}},"requestState":"r","name":"t","#,
        r#""inputResponses":{}}"#
    );
    let token = params.find('9').unwrap();
    let mut modern = tool_request(params);
    modern.message.era = Era::Modern;
    modern.message.progress_at = Some(token..token + 1);

    let answer = link.request(modern).await.unwrap();
    assert_eq!(answer.era, Era::Legacy);
    assert_eq!(
        scene.wait_lines(1).await,
        [
            r#"{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"_meta":{"progressToken":2},"name":"t"}}"#
        ]
    );
    link.close().await;
}

#[tokio::test]
async fn modern_server_requests_are_ignored() {
    let ask = r#"printf '%s\n' '{"jsonrpc":"2.0","id":"q","method":"ping"}'"#;
    let cases = format!("{MODERN} *tools/call*) {ask}; answer '\"content\":[]' ;;");
    let scene = modern_scene(&cases);
    let link = scene.connect_link().await;
    for _ in 0..2 {
        call_tool(&*link).await.unwrap();
    }
    let heard = scene.wait_lines(3).await;
    assert!(heard[1].contains("tools/call") && heard[2].contains("tools/call"));
    link.close().await;
}

#[tokio::test]
async fn progress_and_cancel_work_in_modern_era() {
    let progress = r#"printf '%s\n' '{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":'"$id"',"progress":1}}'"#;
    let log = r#"printf '%s\n' '{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"error","data":"d"}}'"#;
    let scene = modern_scene(&format!("{MODERN} *tools/call*) {progress}; {log} ;;"));
    let link = scene.connect_link().await;
    let caller = ScriptedClient::new(&[], &[]);
    let params = r#"{"_meta":{"progressToken":"mine"},"name":"t"}"#;
    let at = params.find("\"mine\"").unwrap();
    let mut request = client_call(&caller);
    request.message.progress_at = Some(at..at + 6);

    let mut request = request;
    request.message.params = params.into();

    let heard = caller.wait_until(|caller| caller.pushed.lock().unwrap().len() >= 2);
    tokio::select! {
        _ = link.request(request) => panic!("it is not answered"),
        () = heard => {}
    }
    let pushed = caller.pushed.lock().unwrap().clone();
    assert!(
        pushed[0].contains(r#""progressToken":"mine","progress":1"#),
        "{pushed:?}"
    );
    assert!(pushed[1].contains(r#""level":"error""#));
    let heard = scene.wait_lines(3).await;
    assert!(heard[2].contains(r#""notifications/cancelled","params":{"requestId":2"#));
    link.close().await;
}

mod process_count;
mod stdio_listening;
mod stdio_rounds;

//! Servers of the modern era, and how it is found out that they are.

use std::sync::Mutex;

use bowline_core::call::Body;
use bowline_core::caller::{Abilities, Ability, CallerEnd, Question, QuestionId, SessionKey};
use bowline_core::error::Execution;
use bowline_core::level::Level;
use bowline_link::NoAnswer;
use bowline_wire::mcp::Revision;

use super::*;

/// Reads lines, and answers each by its method; what it hears goes to stderr.
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

/// A server that answers as `cases` say.
fn scene(cases: &str) -> Scene {
    let mut scene = Scene::script(Behind::Nothing, &format!("{LOOP}{cases}\nesac; done"));
    scene.spec.opening = Opening::Unknown;
    scene
}

/// The same, known to be of the modern era.
fn modern(cases: &str) -> Scene {
    let mut scene = scene(cases);
    scene.spec.opening = Opening::Only(Era::Modern);
    scene
}

const MODERN: &str =
    r#"*'"server/discover"'*) discovered '"tools":{}' ;; *'"initialize"'*) refuse -32601 ;;"#;

#[derive(Debug)]
struct Caller {
    abilities: Abilities,
    pushed: Mutex<Vec<String>>,
    asked: Mutex<Vec<String>>,
    withdrawn: Mutex<Vec<u64>>,
    /// What it answers in turn; without one, it thinks for ever.
    answers: Mutex<Vec<&'static str>>,
    open: Mutex<Vec<Question>>,
}

impl Caller {
    fn new(abilities: &[Ability], answers: &[&'static str]) -> Arc<Self> {
        let abilities = abilities.iter().copied();
        Arc::new(Self {
            abilities: abilities.fold(Abilities::default(), Abilities::with),
            pushed: Mutex::default(),
            asked: Mutex::default(),
            withdrawn: Mutex::default(),
            answers: Mutex::new(answers.iter().rev().copied().collect()),
            open: Mutex::default(),
        })
    }

    fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }
}

impl CallerEnd for Caller {
    fn session(&self) -> SessionKey {
        SessionKey(1)
    }

    fn abilities(&self) -> Abilities {
        self.abilities
    }

    fn level(&self) -> Option<Level> {
        Some(Level::Warning)
    }

    fn push(&self, notification: Bytes) {
        let text = String::from_utf8(notification.to_vec()).unwrap();
        self.pushed.lock().unwrap().push(text);
    }

    fn ask(&self, question: Question) -> Option<QuestionId> {
        let text = String::from_utf8(question.request.to_vec()).unwrap();
        self.asked.lock().unwrap().push(text);
        match self.answers.lock().unwrap().pop() {
            Some(answer) => {
                let id = String::from_utf8(question.id().to_vec()).unwrap();
                let whole = format!(r#"{{"jsonrpc":"2.0","id":{id},{answer}}}"#);
                question.answer(whole.into());
            }
            None => self.open.lock().unwrap().push(question),
        }
        Some(QuestionId(7))
    }

    fn withdraw(&self, question: QuestionId) {
        self.withdrawn.lock().unwrap().push(question.0);
    }

    fn home(&self) -> Arc<dyn CallerEnd> {
        unreachable!("nobody goes home")
    }
}

fn call_of(caller: &Arc<Caller>) -> Request {
    Request {
        caller: Some(Arc::clone(caller) as Arc<dyn CallerEnd>),
        ..request(r#"{"name":"t"}"#)
    }
}

fn body(answer: &Answer) -> &str {
    std::str::from_utf8(answer.body_bytes()).unwrap()
}

#[tokio::test]
async fn a_modern_server_is_met_by_one_question() {
    let scene = modern(MODERN);
    let link = scene.link().await;
    let info = link.server();
    assert_eq!(info.revision, Revision::V2026_07_28);
    assert_eq!(link.era(), Era::Modern);
    assert_eq!((&*info.name, &*info.version), ("m", "7"));
    let discovered = std::str::from_utf8(&info.initialize).unwrap();
    assert!(discovered.starts_with(r#"{"serverInfo":{"name":"m","version":"7"},"resultType""#));
    assert_eq!(
        scene.texts(),
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
async fn a_server_whose_revisions_are_all_older_is_met_with_a_handshake() {
    for first in [
        r#"answer '"supportedVersions":["2025-11-25"],"capabilities":{}'"#,
        r#"refuse -32022 ',"data":{"supported":["2025-11-25"],"requested":"2026-07-28"}'"#,
        // No answer to this question at all.
        r#"answer '"protocolVersion":"2025-11-25","capabilities":{}'"#,
    ] {
        let mut scene = scene(&format!(
            "*server/discover*) {first} ;; *'\"initialize\"'*) hello ;;"
        ));
        scene.spec.opening = Opening::DiscoverFirst;
        let link = scene.link().await;
        assert_eq!(link.server().revision, Revision::V2025_11_25);
        link.close().await;
    }
}

#[tokio::test]
async fn an_error_of_the_modern_era_is_not_taken_for_the_other() {
    let mut scene = scene("*server/discover*) refuse -32021 ;; *) hello ;;");
    scene.spec.opening = Opening::DiscoverFirst;
    let error = scene.connect().await;
    let ConnectError::HandshakeRefused { code, .. } = error.unwrap_err() else {
        panic!("it is another error");
    };
    assert_eq!(code, -32021);
}

#[tokio::test]
async fn a_slow_server_is_met_by_what_it_answers() {
    // It starts to read when both were sent.
    let slow = |cases: &str| {
        let mut slow = scene(cases);
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
        let link = slow(&cases).link().await;
        assert_eq!(link.era(), era, "{cases}");
        link.close().await;
    }
}

#[tokio::test]
async fn server_that_ends_says_why_and_is_started_once() {
    let scene = scene("*) exit 4 ;;");
    let error = scene.connect().await.unwrap_err();
    assert!(
        error
            .to_string()
            .starts_with("ended before the handshake: exit code 4")
    );
    assert_eq!(scene.texts().len(), 1);
}

#[tokio::test]
async fn a_server_of_both_eras_is_spoken_to_in_the_one_in_which_its_tools_can_ask() {
    // A process takes only the era that it was opened in, as those of the Python SDK do.
    let latched = r#"
*'"server/discover"'*) [ -z "$era" ] && era=m; [ "$era" = m ] && discovered '"tools":{}' || refuse -32600 ;;
*'"initialize"'*) [ -z "$era" ] && era=l; [ "$era" = l ] && hello || refuse -32022 ;;"#;
    let scene = scene(latched);
    let link = scene.link().await;
    assert_eq!(link.era(), Era::Legacy);
    let heard = scene.lines(2).await;
    let first = r#""id":1,"method":"initialize""#;
    assert!(heard[0].contains(first), "{heard:?}");
    assert!(heard[1].contains("notifications/initialized"), "{heard:?}");
    link.close().await;
}

#[tokio::test]
async fn a_modern_server_that_takes_no_handshake_is_kept_as_it_was_met() {
    for refuses in ["refuse -32601", ":"] {
        let cases = format!("*'\"initialize\"'*) {refuses} ;; {MODERN}");
        let scene = scene(&cases);
        let link = scene.link().await;
        assert_eq!(link.era(), Era::Modern);
        assert!(link.is_open());
        link.close().await;
    }
}

#[tokio::test]
async fn a_server_that_is_said_to_be_modern_is_not_met_otherwise() {
    let mut scene = scene("*server/discover*) refuse -32601 ;; *) hello ;;");
    scene.spec.opening = Opening::Only(Era::Modern);
    let error = scene.connect().await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "gave no valid answer to the handshake: it does not speak the revision 2026-07-28"
    );
}

#[tokio::test]
async fn requests_of_the_other_era_say_what_a_handshake_says() {
    let scene = modern(&format!(
        "{MODERN} *tools/call*) answer '\"content\":[]' ;;"
    ));
    let link = scene.link().await;
    let caller = Caller::new(&[Ability::Roots, Ability::ElicitationForm], &[]);
    let answer = link.request(call_of(&caller)).await.unwrap();
    assert_eq!((answer.body, answer.era), (Body::Result, Era::Modern));
    assert_eq!(
        answer.bytes,
        r#"{"jsonrpc":"2.0","id":77,"result":{"resultType":"complete","content":[]}}"#
    );
    let heard = scene.lines(2).await;
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
async fn requests_of_its_own_era_pass_as_they_are() {
    let scene = modern(&format!(
        "{MODERN} *tools/call*) ask '\"requestState\":\"s\"' ;;"
    ));
    let link = scene.link().await;
    let params = r#"{"_meta":{"x":1},"name":"t","requestState":"r"}"#;
    let modern = Request {
        era: Era::Modern,
        ..request(params)
    };
    let answer = link.request(modern).await.unwrap();
    assert_eq!(answer.era, Era::Modern);
    assert_eq!(
        body(&answer),
        r#"{"resultType":"input_required","requestState":"s"}"#
    );
    let heard = scene.lines(2).await;
    assert!(heard[1].ends_with(&format!("{params}}}")), "{heard:?}");
    link.close().await;
}

#[tokio::test]
async fn requests_of_the_modern_era_are_written_for_a_legacy_server() {
    let scene = Scene::server(
        Behind::Nothing,
        r#"read -r call; printf '%s\n' "$call" >&2; printf '%s\n' '{"id":2,"result":{}}'; read -r x"#,
    );
    let link = scene.link().await;
    let params = concat!(
        r#"{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","progressToken":9,"#,
        r#""io.modelcontextprotocol/clientCapabilities":{}},"requestState":"r","name":"t","#,
        r#""inputResponses":{}}"#
    );
    let token = params.find('9').unwrap();
    let modern = Request {
        era: Era::Modern,
        progress_at: Some(token..token + 1),
        ..request(params)
    };
    let answer = link.request(modern).await.unwrap();
    assert_eq!(answer.era, Era::Legacy);
    assert_eq!(
        scene.lines(1).await,
        [
            r#"{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"_meta":{"progressToken":2},"name":"t"}}"#
        ]
    );
    link.close().await;
}

#[tokio::test]
async fn what_a_server_of_the_modern_era_asks_by_itself_is_not_answered() {
    let ask = r#"printf '%s\n' '{"jsonrpc":"2.0","id":"q","method":"ping"}'"#;
    let cases = format!("{MODERN} *tools/call*) {ask}; answer '\"content\":[]' ;;");
    let scene = modern(&cases);
    let link = scene.link().await;
    for _ in 0..2 {
        call(&*link).await.unwrap();
    }
    let heard = scene.lines(3).await;
    assert!(heard[1].contains("tools/call") && heard[2].contains("tools/call"));
    link.close().await;
}

#[tokio::test]
async fn progress_and_cancellation_are_as_in_the_other_era() {
    let progress = r#"printf '%s\n' '{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":'"$id"',"progress":1}}'"#;
    let log = r#"printf '%s\n' '{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"error","data":"d"}}'"#;
    let scene = modern(&format!("{MODERN} *tools/call*) {progress}; {log} ;;"));
    let link = scene.link().await;
    let caller = Caller::new(&[], &[]);
    let params = r#"{"_meta":{"progressToken":"mine"},"name":"t"}"#;
    let at = params.find("\"mine\"").unwrap();
    let request = Request {
        progress_at: Some(at..at + 6),
        ..call_of(&caller)
    };
    let request = Request {
        params: Some(params.into()),
        ..request
    };
    let heard = async {
        while caller.pushed.lock().unwrap().len() < 2 {
            tokio::task::yield_now().await;
        }
    };
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
    let heard = scene.lines(3).await;
    assert!(heard[2].contains(r#""notifications/cancelled","params":{"requestId":2"#));
    link.close().await;
}

mod listening;
mod processes;
mod rounds;

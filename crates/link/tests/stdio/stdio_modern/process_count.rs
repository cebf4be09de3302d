//! Era detection with a single process.

use super::*;

/// Returns a server limited to a single process, like a browser profile, and unusable after a kill.
fn single_instance_scene(cases: &str) -> (StdioScene, tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let mut scene = scripted_scene(cases);
    let script = scene.spec.args[1].to_string_lossy().into_owned();
    let lock = r#"mkdir "$LOCK" 2>/dev/null || { echo busy >&2; exit 9; }
trap 'rmdir "$LOCK"; echo end >&2' EXIT
echo start >&2"#;
    scene.spec.args[1] = format!("{lock}\n{script}").into();
    let path = dir.path().join("lock").into_os_string();
    scene.spec.env.push(("LOCK".into(), path));
    (scene, dir)
}

/// Returns the first messages of a server, as single words.
async fn heard_words(scene: &StdioScene, count: usize) -> Vec<String> {
    let method = |text: &String| {
        let rest = text.split_once(r#""method":""#);
        let method = rest.and_then(|(_, rest)| rest.split_once('"'));
        method.map_or_else(|| text.clone(), |(method, _)| method.to_owned())
    };
    scene.wait_lines(count).await.iter().map(method).collect()
}

const DISCOVER: &str = "server/discover";
const SHAKE: &str = "initialize";

/// Accepts a single era, like servers of the Python SDK.
const LATCHED: &str = r#"
*'"server/discover"'*) [ -z "$era" ] && era=m; [ "$era" = m ] && discovered '"tools":{}' || refuse -32600 ;;
*'"initialize"'*) [ -z "$era" ] && era=l; [ "$era" = l ] && hello || refuse -32022 ;;"#;

#[tokio::test]
async fn legacy_process_gets_only_initialize() {
    let ways = ["refuse -32601", "exit 3", ":"]
        .map(|says| format!("*server/discover*) {says} ;; *'\"initialize\"'*) hello ;;"));
    // Servers of the TypeScript SDK accept both messages in sequence.
    let both = format!("*'\"initialize\"'*) hello ;; {MODERN}");
    for cases in ways.into_iter().chain([LATCHED.to_owned(), both]) {
        for opening in [
            EraNegotiation::Unknown,
            EraNegotiation::Remembered(Era::Legacy),
        ] {
            let (mut scene, _dir) = single_instance_scene(&cases);
            scene.spec.negotiation = opening;
            let link = scene.connect_link().await;
            assert_eq!(link.era(), Era::Legacy, "{cases}");
            let starts = ["start", SHAKE, "notifications/initialized"];
            assert_eq!(heard_words(&scene, 3).await, starts, "{cases}");
            link.close().await;
        }
    }
}

#[tokio::test]
async fn modern_process_is_discovered_on_same_pipes() {
    for refuses in [
        "refuse -32601",
        "refuse -32022",
        "answer '\"capabilities\":7'",
        // The server is silent, so both messages are sent.
        ":",
    ] {
        let cases = format!("*'\"initialize\"'*) {refuses} ;; {MODERN}");
        let (scene, _dir) = single_instance_scene(&cases);
        let link = scene.connect_link().await;
        assert_eq!((link.era(), link.is_open()), (Era::Modern, true));
        let starts = ["start", SHAKE, DISCOVER];
        assert_eq!(heard_words(&scene, 3).await, starts, "{refuses}");
        link.close().await;
    }
}

#[tokio::test]
async fn remembered_modern_process_is_sent_both_at_once() {
    let quiet = format!("*'\"initialize\"'*) : ;; {MODERN}");
    for (cases, era) in [(quiet.as_str(), Era::Modern), (LATCHED, Era::Legacy)] {
        let (mut scene, _dir) = single_instance_scene(cases);
        scene.spec.negotiation = EraNegotiation::Remembered(Era::Modern);
        let link = scene.connect_link().await;
        assert_eq!(link.era(), era);
        assert_eq!(
            heard_words(&scene, 3).await[..3],
            ["start", SHAKE, DISCOVER]
        );
        link.close().await;
    }
}

#[tokio::test]
async fn process_ended_by_initialize_is_discovered_next() {
    let (mut scene, _dir) =
        single_instance_scene(&format!("*'\"initialize\"'*) exit 1 ;; {MODERN}"));
    let error = scene.connect().await.unwrap_err();
    assert!(
        matches!(error, LinkConnectError::ExitedBeforeHandshake { .. }),
        "{error:?}"
    );
    scene.spec.negotiation = EraNegotiation::DiscoverFirst;
    let link = scene.connect_link().await;
    assert_eq!(link.era(), Era::Modern);
    let starts = ["start", SHAKE, "end", "start", DISCOVER];
    assert_eq!(heard_words(&scene, 5).await, starts);
    link.close().await;
}

#[tokio::test]
async fn discovered_process_falls_back_to_initialize() {
    for says in ["refuse -32601", ":"] {
        let cases = format!("*server/discover*) {says} ;; *'\"initialize\"'*) hello ;;");
        let (mut scene, _dir) = single_instance_scene(&cases);
        scene.spec.negotiation = EraNegotiation::DiscoverFirst;
        let link = scene.connect_link().await;
        assert_eq!(link.era(), Era::Legacy);
        assert_eq!(
            heard_words(&scene, 3).await[..3],
            ["start", DISCOVER, SHAKE]
        );
        link.close().await;
    }
}

#[tokio::test]
async fn process_refusing_both_eras_is_started_once() {
    let (scene, _dir) = single_instance_scene("*) refuse -32600 ;;");
    let error = scene.connect().await.unwrap_err();
    assert!(matches!(
        error,
        LinkConnectError::HandshakeRefused { code: -32600, .. }
    ));
    let starts = ["start", SHAKE, DISCOVER];
    assert_eq!(heard_words(&scene, 3).await[..3], starts);
}

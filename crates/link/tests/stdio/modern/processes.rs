//! How often a server is started until it is known how it speaks, and that it never runs twice.

use super::*;

/// A server of which one process can run at a time, as one with a browser's profile, and that is
/// left unusable where it is killed.
fn alone(cases: &str) -> (Scene, tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let mut scene = scene(cases);
    let script = scene.spec.args[1].to_string_lossy().into_owned();
    let lock = r#"mkdir "$LOCK" 2>/dev/null || { echo busy >&2; exit 9; }
trap 'rmdir "$LOCK"; echo end >&2' EXIT
echo start >&2"#;
    scene.spec.args[1] = format!("{lock}\n{script}").into();
    let path = dir.path().join("lock").into_os_string();
    scene.spec.env.push(("LOCK".into(), path));
    (scene, dir)
}

/// The first things that a server heard and said, in one word each.
async fn heard(scene: &Scene, count: usize) -> Vec<String> {
    let method = |text: &String| {
        let rest = text.split_once(r#""method":""#);
        let method = rest.and_then(|(_, rest)| rest.split_once('"'));
        method.map_or_else(|| text.clone(), |(method, _)| method.to_owned())
    };
    scene.lines(count).await.iter().map(method).collect()
}

const DISCOVER: &str = "server/discover";
const SHAKE: &str = "initialize";

#[tokio::test]
async fn a_process_that_says_it_is_modern_is_ended_before_another_is_shaken_hands_with() {
    // A process takes only the era that it was opened in, as those of the Python SDK do.
    let latched = r#"
*'"server/discover"'*) [ -z "$era" ] && era=m; [ "$era" = m ] && discovered '"tools":{}' || refuse -32600 ;;
*'"initialize"'*) [ -z "$era" ] && era=l; [ "$era" = l ] && hello || refuse -32022 ;;"#;
    let (scene, _dir) = alone(latched);
    let link = scene.link().await;
    assert_eq!(link.era(), Era::Legacy);
    let starts = ["start", DISCOVER, SHAKE, "end", "start", SHAKE];
    assert_eq!(heard(&scene, 6).await[..6], starts);
    link.close().await;
}

#[tokio::test]
async fn a_process_that_takes_a_handshake_after_the_question_is_started_once() {
    // As those of the TypeScript SDK do.
    let (scene, _dir) = alone(&format!("*'\"initialize\"'*) hello ;; {MODERN}"));
    let link = scene.link().await;
    assert_eq!(link.era(), Era::Legacy);
    assert_eq!(heard(&scene, 3).await[..3], ["start", DISCOVER, SHAKE]);
    link.close().await;
}

#[tokio::test]
async fn a_modern_server_that_takes_no_handshake_never_runs_twice() {
    for (refuses, starts) in [
        (
            "refuse -32601",
            &["start", DISCOVER, SHAKE, "end", "start", SHAKE, DISCOVER][..],
        ),
        (
            "exit 1",
            &[
                "start", DISCOVER, SHAKE, "end", "start", SHAKE, "end", "start", DISCOVER,
            ],
        ),
    ] {
        let (scene, _dir) = alone(&format!("*'\"initialize\"'*) {refuses} ;; {MODERN}"));
        let link = scene.link().await;
        assert_eq!((link.era(), link.is_open()), (Era::Modern, true));
        assert_eq!(heard(&scene, starts.len()).await, starts);
        link.close().await;
    }
}

#[tokio::test]
async fn a_modern_server_is_kept_where_there_is_no_time_for_another() {
    let (scene, _dir) = alone(MODERN);
    let (link, _events) = scene.connect_within(Duration::from_secs(7)).await.unwrap();
    assert_eq!((link.era(), link.is_open()), (Era::Modern, true));
    assert_eq!(heard(&scene, 3).await, ["start", DISCOVER, SHAKE]);
    link.close().await;
}

#[tokio::test]
async fn a_server_that_the_question_confuses_is_started_once_more_without_it() {
    // It takes the first message for a handshake, whatever it says.
    for (first, second) in [
        ("refuse -32601", "refuse -32600"),
        ("refuse -32601", "answer '\"protocolVersion\":7'"),
        (":", "refuse -32600"),
    ] {
        let cases = format!(
            "*server/discover*) asked=1; {first} ;;
             *'\"initialize\"'*) [ -z \"$asked\" ] && hello || {second} ;;"
        );
        let (scene, _dir) = alone(&cases);
        let link = scene.link().await;
        assert_eq!(link.era(), Era::Legacy);
        let starts = ["start", DISCOVER, SHAKE, "end", "start", SHAKE];
        assert_eq!(heard(&scene, 6).await[..6], starts);
        link.close().await;
    }
}

#[tokio::test]
async fn a_server_that_answers_the_question_and_then_nothing_is_started_once_more_in_time() {
    let cases = "*server/discover*) asked=1; refuse -32601 ;;
         *'\"initialize\"'*) [ -z \"$asked\" ] && hello ;;";
    let (scene, _dir) = alone(cases);
    let (link, _events) = scene.connect_within(Duration::from_secs(6)).await.unwrap();
    assert_eq!(link.era(), Era::Legacy);
    let starts = ["start", DISCOVER, SHAKE, "end", "start", SHAKE];
    assert_eq!(heard(&scene, 6).await[..6], starts);
    link.close().await;
}

#[tokio::test]
async fn a_server_that_refuses_every_handshake_says_so_and_is_started_twice() {
    let (scene, _dir) = alone("*) refuse -32600 ;;");
    let error = scene.connect().await.unwrap_err();
    assert!(matches!(
        error,
        ConnectError::HandshakeRefused { code: -32600, .. }
    ));
    let starts = ["start", DISCOVER, SHAKE, "end", "start", SHAKE];
    assert_eq!(heard(&scene, 6).await[..6], starts);
}

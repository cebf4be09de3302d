//! Lanes and servers on a clock that the test moves.

use super::*;

/// The server was away, and the drain leaves the lane.
fn fail(board: &mut Board, lane: &str, after: Option<Duration>, now: u64) {
    board.failed(lane, after, Now(now), 0);
    board.ended(lane, Now(now));
}

/// The server took a write, and the drain leaves the lane.
fn answer(board: &mut Board, lane: &str, now: u64) {
    board.answered(lane, Now(now));
    board.ended(lane, Now(now));
}

fn board(lanes: &[(&str, &str)]) -> Board {
    let mut board = Board::default();
    for (lane, server) in lanes {
        board.note(&Arc::from(*lane), &Arc::from(*server), Now(0));
    }
    board
}

fn all(board: &mut Board, now: u64) -> Vec<String> {
    std::iter::from_fn(|| board.next(Now(now), |_| true))
        .map(|lane| lane.to_string())
        .collect()
}

#[test]
fn one_lane_tries_a_server_that_is_not_known_to_be_up_and_then_all_go() {
    let mut board = board(&[("a", "s"), ("b", "s"), ("c", "s"), ("x", "t")]);
    assert_eq!(all(&mut board, 0), ["a", "x"], "one for each server");
    assert_eq!(all(&mut board, 9), [""; 0]);
    assert_eq!(board.due(|_| true), None, "what comes of it decides");
    board.answered("a", Now(10));
    assert_eq!(all(&mut board, 10), ["b", "c"], "side by side");
}

#[test]
fn a_failed_try_makes_lane_and_server_rest_longer_each_time() {
    let mut board = board(&[("a", "s"), ("b", "s")]);
    assert_eq!(all(&mut board, 0), ["a"]);
    fail(&mut board, "a", None, 0);
    assert_eq!(board.due(|_| true), Some(Now(1_000)));
    assert_eq!(all(&mut board, 999), [""; 0]);
    assert_eq!(all(&mut board, 1_000), ["b"], "the one that waits longest");
    fail(&mut board, "b", None, 1_000);
    assert_eq!(all(&mut board, 2_999), [""; 0]);
    assert_eq!(all(&mut board, 3_000), ["a"]);
    fail(&mut board, "a", Some(Duration::from_secs(60)), 3_000);
    assert_eq!(board.due(|_| true), Some(Now(63_000)), "as the server said");
}

#[test]
fn a_lane_that_fails_for_ever_does_not_keep_others_of_its_server_back() {
    let mut board = board(&[("bad", "s"), ("good", "s")]);
    let mut now = 0;
    let mut good = 0;
    for _ in 0..20 {
        for lane in all(&mut board, now) {
            match lane.as_str() {
                "bad" => fail(&mut board, "bad", None, now),
                _ => {
                    good += 1;
                    answer(&mut board, "good", now);
                }
            }
        }
        now += 1_000;
    }
    assert!(good >= 12, "{good} of 20");
}

#[test]
fn a_ready_server_is_tried_at_once_by_one_lane() {
    let mut board = board(&[("a", "s"), ("b", "s")]);
    assert_eq!(all(&mut board, 0), ["a"]);
    fail(&mut board, "a", Some(Duration::from_secs(300)), 0);
    board.ready("s", Now(5));
    assert_eq!(all(&mut board, 5).len(), 1);
    board.ready("nobody", Now(5));
}

#[test]
fn what_comes_while_a_lane_is_looked_into_is_not_forgotten() {
    let mut board = board(&[("a", "s")]);
    assert!(board.is_busy("a"));
    assert_eq!(all(&mut board, 0), ["a"]);
    board.note(&"a".into(), &"s".into(), Now(1));
    board.emptied("a", Now(1));
    assert!(
        board.is_busy("a"),
        "it may be the new one that was not seen"
    );
    assert_eq!(all(&mut board, 1), ["a"]);
    board.emptied("a", Now(2));
    assert!(!board.is_busy("a") && board.is_empty());
    assert!(board.servers.is_empty());
}

#[test]
fn failure_of_caller_keeps_drain_alone_in_lane() {
    let mut board = board(&[("a", "s")]);
    assert_eq!(all(&mut board, 0), ["a"]);
    board.answered("a", Now(1));
    assert_eq!(board.admission("a"), Admission::Turn);
    // A caller's own write failed while the drain works on the lane.
    board.failed("a", None, Now(2), 0);
    assert_eq!(board.admission("a"), Admission::Queue);
    assert_eq!(all(&mut board, 5_000), [""; 0], "one drain for each lane");
    board.ended("a", Now(5_000));
    assert_eq!(all(&mut board, 5_000), ["a"]);
    assert_eq!(board.admission("other"), Admission::Live);
}

#[test]
fn calls_lost_together_are_one_failure() {
    let mut board = board(&[("a", "s")]);
    for _ in 0..20 {
        board.failed("a", None, Now(3), 0);
    }
    assert_eq!(board.due(|_| true), Some(Now(1_003)));
    assert_eq!(board.times("a").map(|times| times.failures), Some(1));
}

#[test]
fn new_write_probes_soon_behind_suspect() {
    let mut board = board(&[("a", "s")]);
    assert_eq!(all(&mut board, 0), ["a"]);
    fail(&mut board, "a", Some(Duration::from_secs(300)), 0);
    board.note(&"a".into(), &"s".into(), Now(1));
    assert_eq!(
        board.due(|_| true),
        Some(Now(300_000)),
        "the server is away"
    );
    board.suspect("a");
    board.note(&"a".into(), &"s".into(), Now(1));
    assert_eq!(board.due(|_| true), Some(Now(1_001)));
}

#[test]
fn backlog_of_live_server_shrinks_however_fast_writes_come() {
    let mut board = board(&[("a", "s")]);
    assert_eq!(all(&mut board, 0), ["a"]);
    let wait = Duration::from_secs(10);
    assert!(board.may_add("a", 9_999, wait), "nothing is known yet");
    // 100 ms for each delivery, and five times as many writes want in.
    let (mut backlog, mut refused) = (5_000_u64, 0);
    for nth in 1..=5_000_u64 {
        board.answered("a", Now(nth * 100));
        backlog -= 1;
        for _ in 0..5 {
            match board.may_add("a", backlog, wait) {
                true => backlog += 1,
                false => refused += 1,
            }
        }
        if backlog <= 100 {
            break;
        }
    }
    // From there on a write gets its turn within the wait.
    assert!(backlog <= 2_600, "{backlog} left, {refused} refused");
    assert_eq!(
        board.delivery_time("a", 10),
        Some(Duration::from_secs(1)),
        "at the pace of the drain"
    );
}

#[test]
fn lanes_of_servers_that_are_not_there_wait() {
    let mut board = board(&[("a", "gone"), ("b", "s")]);
    let here = |server: &str| server == "s";
    assert_eq!(board.next(Now(0), here).as_deref(), Some("b"));
    assert_eq!(board.next(Now(0), here), None);
    assert_eq!(board.due(here), None);
    assert!(board.times("a").is_some());
}

#[test]
fn no_more_lanes_send_at_once_than_may() {
    let names: Vec<_> = (0..DRAINS_MAX + 9).map(|nth| format!("{nth:03}")).collect();
    let lanes: Vec<_> = names.iter().map(|name| (name.as_str(), "s")).collect();
    let mut board = board(&lanes);
    let first = all(&mut board, 0);
    answer(&mut board, &first[0], 0);
    assert_eq!(all(&mut board, 0).len(), DRAINS_MAX);
    assert!(board.is_wanted(Now(0)), "some wait for their share");
    answer(&mut board, "001", 1);
    assert_eq!(all(&mut board, 1).len(), 1);
}

#[test]
fn hurry_makes_a_resting_lane_due() {
    let mut board = board(&[("a", "s")]);
    assert_eq!(all(&mut board, 0), ["a"]);
    fail(&mut board, "a", Some(Duration::from_secs(300)), 0);
    board.hurry("a", Now(9));
    let times = board.times("a").unwrap();
    assert_eq!((times.due, times.failures), (Now(9), 0));
    assert_eq!(all(&mut board, 9), ["a"]);
}

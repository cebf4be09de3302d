//! Lanes and servers on a clock that the test moves.

use super::*;

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
    assert_eq!(all(&mut board, 10), ["b", "c", "a"], "side by side");
}

#[test]
fn a_failed_try_makes_lane_and_server_rest_longer_each_time() {
    let mut board = board(&[("a", "s"), ("b", "s")]);
    assert_eq!(all(&mut board, 0), ["a"]);
    board.failed("a", None, Now(0), 0);
    assert_eq!(board.due(|_| true), Some(Now(1_000)));
    assert_eq!(all(&mut board, 999), [""; 0]);
    assert_eq!(all(&mut board, 1_000), ["b"], "the one that waits longest");
    board.failed("b", None, Now(1_000), 0);
    assert_eq!(all(&mut board, 2_999), [""; 0]);
    assert_eq!(all(&mut board, 3_000), ["a"]);
    board.failed("a", Some(Duration::from_secs(60)), Now(3_000), 0);
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
                "bad" => board.failed("bad", None, Now(now), 0),
                _ => {
                    good += 1;
                    board.answered("good", Now(now));
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
    board.failed("a", Some(Duration::from_secs(300)), Now(0), 0);
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
fn a_blocked_lane_waits_until_it_is_told() {
    let mut board = board(&[("a", "s")]);
    assert_eq!(all(&mut board, 0), ["a"]);
    board.blocked("a", Now(60_000), Now(0));
    assert_eq!(board.due(|_| true), Some(Now(60_000)));
    board.unblock("a", Now(7));
    assert_eq!(all(&mut board, 7), ["a"]);
    board.unblock("a", Now(8));
    board.blocked("a", Now(60_000), Now(8));
    assert_eq!(all(&mut board, 8), ["a"], "it was told in the meantime");
    board.failed("a", None, Now(8), 0);
    board.unblock("a", Now(9));
    assert_eq!(board.due(|_| true), Some(Now(1_008)), "a rest goes on");
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
    board.answered(&first[0], Now(0));
    assert_eq!(all(&mut board, 0).len(), DRAINS_MAX);
    board.answered("001", Now(1));
    assert_eq!(all(&mut board, 1).len(), 1);
}

#[test]
fn hurry_makes_a_resting_lane_due() {
    let mut board = board(&[("a", "s")]);
    assert_eq!(all(&mut board, 0), ["a"]);
    board.failed("a", Some(Duration::from_secs(300)), Now(0), 0);
    board.hurry("a", Now(9));
    let times = board.times("a").unwrap();
    assert_eq!((times.due, times.failures), (Now(9), 0));
    assert_eq!(all(&mut board, 9), ["a"]);
}

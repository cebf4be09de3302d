//! Lanes and servers with a test-controlled clock.

use super::*;

/// The server was away, and the drain leaves the lane.
fn fail_and_release(board: &mut LaneScheduler, lane: &str, after: Option<Duration>, now: u64) {
    board.on_unreachable(lane, after, MonotonicTime(now));
    board.release_lane(lane, MonotonicTime(now));
}

/// The server took a write, and the drain leaves the lane.
fn deliver_and_release(board: &mut LaneScheduler, lane: &str, now: u64) {
    board.on_delivered(lane, MonotonicTime(now));
    board.release_lane(lane, MonotonicTime(now));
}

fn scheduler(lanes: &[(&str, &str)]) -> LaneScheduler {
    let mut board = LaneScheduler::default();
    for (lane, server) in lanes {
        board.mark_pending(&Arc::from(*lane), &Arc::from(*server), MonotonicTime(0));
    }
    board
}

fn take_lanes(board: &mut LaneScheduler, now: u64) -> Vec<String> {
    std::iter::from_fn(|| board.next_lane(MonotonicTime(now), |_| true))
        .map(|lane| lane.to_string())
        .collect()
}

#[test]
fn one_lane_probes_server_then_all_drain() {
    let mut board = scheduler(&[("a", "s"), ("b", "s"), ("c", "s"), ("x", "t")]);
    assert_eq!(take_lanes(&mut board, 0), ["a", "x"], "one for each server");
    assert_eq!(take_lanes(&mut board, 9), [""; 0]);
    assert_eq!(board.next_due(|_| true), None, "what comes of it decides");
    board.on_delivered("a", MonotonicTime(10));
    assert_eq!(take_lanes(&mut board, 10), ["b", "c"], "side by side");
}

#[test]
fn failures_lengthen_lane_and_server_backoff() {
    let mut board = scheduler(&[("a", "s"), ("b", "s")]);
    assert_eq!(take_lanes(&mut board, 0), ["a"]);
    fail_and_release(&mut board, "a", None, 0);
    assert_eq!(board.next_due(|_| true), Some(MonotonicTime(1_000)));
    assert_eq!(take_lanes(&mut board, 999), [""; 0]);
    assert_eq!(
        take_lanes(&mut board, 1_000),
        ["b"],
        "the one that waits longest"
    );
    fail_and_release(&mut board, "b", None, 1_000);
    assert_eq!(take_lanes(&mut board, 2_999), [""; 0]);
    assert_eq!(take_lanes(&mut board, 3_000), ["a"]);
    fail_and_release(&mut board, "a", Some(Duration::from_secs(60)), 3_000);
    assert_eq!(
        board.next_due(|_| true),
        Some(MonotonicTime(63_000)),
        "as the server said"
    );
}

#[test]
fn failing_lane_does_not_block_other_lanes() {
    let mut board = scheduler(&[("bad", "s"), ("good", "s")]);
    let mut now = 0;
    let mut good = 0;
    for _ in 0..20 {
        for lane in take_lanes(&mut board, now) {
            match lane.as_str() {
                "bad" => fail_and_release(&mut board, "bad", None, now),
                _ => {
                    good += 1;
                    deliver_and_release(&mut board, "good", now);
                }
            }
        }
        now += 1_000;
    }
    assert!(good >= 12, "{good} of 20");
}

#[test]
fn ready_server_is_probed_by_one_lane() {
    let mut board = scheduler(&[("a", "s"), ("b", "s")]);
    assert_eq!(take_lanes(&mut board, 0), ["a"]);
    fail_and_release(&mut board, "a", Some(Duration::from_secs(300)), 0);
    board.on_server_ready("s", MonotonicTime(5));
    assert_eq!(take_lanes(&mut board, 5).len(), 1);
    board.on_server_ready("nobody", MonotonicTime(5));
}

#[test]
fn write_added_during_drain_stays_pending() {
    let mut board = scheduler(&[("a", "s")]);
    assert!(board.has_pending("a"));
    assert_eq!(take_lanes(&mut board, 0), ["a"]);
    board.mark_pending(&"a".into(), &"s".into(), MonotonicTime(1));
    board.on_drained("a", MonotonicTime(1));
    assert!(
        board.has_pending("a"),
        "it may be the new one that was not seen"
    );
    assert_eq!(take_lanes(&mut board, 1), ["a"]);
    board.on_drained("a", MonotonicTime(2));
    assert!(!board.has_pending("a") && board.is_empty());
    assert!(board.servers.is_empty());
}

#[test]
fn caller_failure_keeps_one_drain_per_lane() {
    let mut board = scheduler(&[("a", "s")]);
    assert_eq!(take_lanes(&mut board, 0), ["a"]);
    board.on_delivered("a", MonotonicTime(1));
    assert_eq!(board.lane_admission("a"), LaneAdmission::WaitTurn);
    // A caller's own write failed while the drain works on the lane.
    board.on_unreachable("a", None, MonotonicTime(2));
    assert_eq!(board.lane_admission("a"), LaneAdmission::Queue);
    assert_eq!(
        take_lanes(&mut board, 5_000),
        [""; 0],
        "one drain for each lane"
    );
    board.release_lane("a", MonotonicTime(5_000));
    assert_eq!(take_lanes(&mut board, 5_000), ["a"]);
    assert_eq!(board.lane_admission("other"), LaneAdmission::Live);
}

#[test]
fn calls_lost_together_are_one_failure() {
    let mut board = scheduler(&[("a", "s")]);
    for _ in 0..20 {
        board.on_unreachable("a", None, MonotonicTime(3));
    }
    assert_eq!(board.next_due(|_| true), Some(MonotonicTime(1_003)));
    assert_eq!(board.lane_times("a").map(|times| times.failures), Some(1));
}

#[test]
fn new_write_probes_soon_behind_suspect_write() {
    let mut board = scheduler(&[("a", "s")]);
    assert_eq!(take_lanes(&mut board, 0), ["a"]);
    fail_and_release(&mut board, "a", Some(Duration::from_secs(300)), 0);
    board.mark_pending(&"a".into(), &"s".into(), MonotonicTime(1));
    assert_eq!(
        board.next_due(|_| true),
        Some(MonotonicTime(300_000)),
        "the server is away"
    );
    board.mark_suspect("a");
    board.mark_pending(&"a".into(), &"s".into(), MonotonicTime(1));
    assert_eq!(board.next_due(|_| true), Some(MonotonicTime(1_001)));
}

#[test]
fn backlog_of_live_server_always_shrinks() {
    let mut board = scheduler(&[("a", "s")]);
    assert_eq!(take_lanes(&mut board, 0), ["a"]);
    let wait = Duration::from_secs(10);
    assert!(board.try_append("a", 9_999, wait), "nothing is known yet");
    // 100 ms for each delivery, and five times as many writes want in.
    let (mut backlog, mut refused) = (5_000_u64, 0);
    for nth in 1..=5_000_u64 {
        board.on_delivered("a", MonotonicTime(nth * 100));
        backlog -= 1;
        for _ in 0..5 {
            match board.try_append("a", backlog, wait) {
                true => backlog += 1,
                false => refused += 1,
            }
        }
        if backlog <= 100 {
            break;
        }
    }
    // From here on a write gets a turn within the wait.
    assert!(backlog <= 2_600, "{backlog} left, {refused} refused");
    assert_eq!(
        board.delivery_time("a", 10),
        Some(Duration::from_secs(1)),
        "at the pace of the drain"
    );
}

#[test]
fn lanes_of_absent_servers_wait() {
    let mut board = scheduler(&[("a", "gone"), ("b", "s")]);
    let here = |server: &str| server == "s";
    assert_eq!(
        board.next_lane(MonotonicTime(0), here).as_deref(),
        Some("b")
    );
    assert_eq!(board.next_lane(MonotonicTime(0), here), None);
    assert_eq!(board.next_due(here), None);
    assert!(board.lane_times("a").is_some());
}

#[test]
fn draining_lanes_are_bounded() {
    let names: Vec<_> = (0..DRAINS_MAX + 9).map(|nth| format!("{nth:03}")).collect();
    let lanes: Vec<_> = names.iter().map(|name| (name.as_str(), "s")).collect();
    let mut board = scheduler(&lanes);
    let first = take_lanes(&mut board, 0);
    deliver_and_release(&mut board, &first[0], 0);
    assert_eq!(take_lanes(&mut board, 0).len(), DRAINS_MAX);
    assert!(
        board.should_yield(MonotonicTime(0)),
        "some wait for their share"
    );
    deliver_and_release(&mut board, "001", 1);
    assert_eq!(take_lanes(&mut board, 1).len(), 1);
}

#[test]
fn expedite_makes_delayed_lane_due() {
    let mut board = scheduler(&[("a", "s")]);
    assert_eq!(take_lanes(&mut board, 0), ["a"]);
    fail_and_release(&mut board, "a", Some(Duration::from_secs(300)), 0);
    board.expedite("a", MonotonicTime(9));
    let times = board.lane_times("a").unwrap();
    assert_eq!((times.due_at, times.failures), (MonotonicTime(9), 0));
    assert_eq!(take_lanes(&mut board, 9), ["a"]);
}

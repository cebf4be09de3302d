//! Send order of the writes of a lane.

use super::*;

fn new_window(entries: &[(u64, &str)]) -> LaneWindow {
    let mut window = LaneWindow::default();
    for (id, stream) in entries {
        window.push(*id, Some(Arc::from(*stream)));
    }
    window
}

/// Starts all due writes; callers send the `parked` writes.
fn start_due(window: &mut LaneWindow, width: usize, parked: &[u64]) -> Vec<SendAction> {
    let mut turns = Vec::new();
    while let Some(turn) = window.next_action(width, |id| parked.contains(&id)) {
        match turn {
            Replay(id) => window.mark_sending(id),
            Grant(id) => window.grant_to_caller(id),
        }
        turns.push(turn);
    }
    turns
}

use SendAction::{Grant, Replay};

#[test]
fn streams_run_in_parallel_each_in_order() {
    let mut window = new_window(&[(1, "a"), (2, "a"), (3, "b"), (4, "c"), (5, "b")]);
    assert_eq!(
        start_due(&mut window, 9, &[]),
        [Replay(1), Replay(3), Replay(4)]
    );
    window.remove(3);
    assert_eq!(start_due(&mut window, 9, &[]), [Replay(5)]);
    window.remove(1);
    assert_eq!(start_due(&mut window, 9, &[]), [Replay(2)]);
    for id in [2, 4, 5] {
        window.remove(id);
    }
    assert!(window.is_empty());
}

#[test]
fn parked_callers_follow_replays_and_run_together() {
    let mut window = new_window(&[(1, "a"), (2, "a"), (3, "a"), (4, "a"), (5, "a")]);
    let parked = [2, 3, 5];
    assert_eq!(start_due(&mut window, 9, &parked), [Replay(1)]);
    window.remove(1);
    // The fourth was queued, so the fifth follows the fourth.
    assert_eq!(
        start_due(&mut window, 9, &parked),
        [Grant(2), Grant(3), Replay(4)]
    );
    window.remove(4);
    assert_eq!(start_due(&mut window, 9, &parked), [Grant(5)]);
    assert!(window.is_empty(), "callers have them");
}

#[test]
fn in_flight_writes_stay_within_width() {
    let names: Vec<_> = (0..WINDOW_MAX).map(|nth| nth.to_string()).collect();
    let all: Vec<_> = (0u64..).zip(names.iter().map(String::as_str)).collect();
    let mut window = new_window(&all);
    assert_eq!(window.free_slots(), 0);
    let odd: Vec<_> = (0..64).filter(|id| id % 2 == 1).collect();
    assert_eq!(start_due(&mut window, 1, &odd), [Replay(0)]);
    assert_eq!(start_due(&mut window, 999, &odd).len(), LANE_SENDS_MAX - 1);
    assert_eq!(
        window.free_slots(),
        LANE_SENDS_MAX / 2,
        "callers have their own"
    );
    window.release_grants(3);
    assert_eq!(start_due(&mut window, 999, &odd).len(), 3);
}

#[test]
fn write_without_stream_blocks_lane() {
    let mut window = new_window(&[(1, "a")]);
    window.push(2, None);
    window.push(3, Some("b".into()));
    assert_eq!(start_due(&mut window, 9, &[]), [Replay(1)]);
    window.remove(1);
    assert_eq!(start_due(&mut window, 9, &[]), [Replay(2)]);
    window.remove(2);
    assert_eq!(start_due(&mut window, 9, &[]), [Replay(3)]);
}

#[test]
fn delayed_write_blocks_only_its_stream() {
    let mut window = new_window(&[(1, "a"), (2, "a"), (3, "b"), (4, "b")]);
    assert_eq!(start_due(&mut window, 9, &[]), [Replay(1), Replay(3)]);
    window.delay_until(1, MonotonicTime(50));
    assert_eq!(
        (window.next_due(), window.due_messages(MonotonicTime(49))),
        (Some(MonotonicTime(50)), vec![])
    );
    assert_eq!(window.blocked_messages(), [2]);
    window.remove(3);
    assert_eq!(start_due(&mut window, 9, &[]), [Replay(4)]);
    assert_eq!(window.due_messages(MonotonicTime(50)), [1]);
    window.push(1, Some("a".into()));
    assert_eq!(window.unsent_messages(), [1, 2]);
    assert_eq!(start_due(&mut window, 9, &[]), [Replay(1)]);
    window.remove(1);
    assert_eq!(start_due(&mut window, 9, &[]), [Replay(2)]);
}

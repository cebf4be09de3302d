//! Turns of the writes of one lane.

use super::*;

fn window(entries: &[(u64, &str)]) -> Window {
    let mut window = Window::default();
    for (id, stream) in entries {
        window.push(*id, Some(Arc::from(*stream)));
    }
    window
}

/// Starts all whose turn it is; those of `parked` are sent by their callers.
fn start(window: &mut Window, width: usize, parked: &[u64]) -> Vec<Turn> {
    let mut turns = Vec::new();
    while let Some(turn) = window.next(width, |id| parked.contains(&id)) {
        match turn {
            Replay(id) => window.send(id),
            Grant(id) => window.grant(id),
        }
        turns.push(turn);
    }
    turns
}

use Turn::{Grant, Replay};

#[test]
fn streams_go_side_by_side_each_in_order() {
    let mut window = window(&[(1, "a"), (2, "a"), (3, "b"), (4, "c"), (5, "b")]);
    assert_eq!(
        start(&mut window, 9, &[]),
        [Replay(1), Replay(3), Replay(4)]
    );
    window.finish(3);
    assert_eq!(start(&mut window, 9, &[]), [Replay(5)]);
    window.finish(1);
    assert_eq!(start(&mut window, 9, &[]), [Replay(2)]);
    for id in [2, 4, 5] {
        window.finish(id);
    }
    assert!(window.is_empty());
}

#[test]
fn waiting_callers_follow_replays_and_go_together() {
    let mut window = window(&[(1, "a"), (2, "a"), (3, "a"), (4, "a"), (5, "a")]);
    let parked = [2, 3, 5];
    assert_eq!(start(&mut window, 9, &parked), [Replay(1)]);
    window.finish(1);
    // The fourth was answered as queued: the fifth follows it.
    assert_eq!(
        start(&mut window, 9, &parked),
        [Grant(2), Grant(3), Replay(4)]
    );
    window.finish(4);
    assert_eq!(start(&mut window, 9, &parked), [Grant(5)]);
    assert!(window.is_empty(), "callers have them");
}

#[test]
fn in_flight_writes_stay_within_width() {
    let names: Vec<_> = (0..WINDOW_MAX).map(|nth| nth.to_string()).collect();
    let all: Vec<_> = (0u64..).zip(names.iter().map(String::as_str)).collect();
    let mut window = window(&all);
    assert_eq!(window.room(), 0);
    let odd: Vec<_> = (0..64).filter(|id| id % 2 == 1).collect();
    assert_eq!(start(&mut window, 1, &odd), [Replay(0)]);
    assert_eq!(start(&mut window, 999, &odd).len(), LANE_SENDS_MAX - 1);
    assert_eq!(window.room(), LANE_SENDS_MAX / 2, "callers have their own");
    window.returned(3);
    assert_eq!(start(&mut window, 999, &odd).len(), 3);
}

#[test]
fn write_of_older_gateway_is_passed_by_none() {
    let mut window = window(&[(1, "a")]);
    window.push(2, None);
    window.push(3, Some("b".into()));
    assert_eq!(start(&mut window, 9, &[]), [Replay(1)]);
    window.finish(1);
    assert_eq!(start(&mut window, 9, &[]), [Replay(2)]);
    window.finish(2);
    assert_eq!(start(&mut window, 9, &[]), [Replay(3)]);
}

#[test]
fn resting_write_blocks_only_its_stream() {
    let mut window = window(&[(1, "a"), (2, "a"), (3, "b"), (4, "b")]);
    assert_eq!(start(&mut window, 9, &[]), [Replay(1), Replay(3)]);
    window.rest(1, Now(50));
    assert_eq!(
        (window.due(), window.wake(Now(49))),
        (Some(Now(50)), vec![])
    );
    assert_eq!(window.behind_rest(), [2]);
    window.finish(3);
    assert_eq!(start(&mut window, 9, &[]), [Replay(4)]);
    assert_eq!(window.wake(Now(50)), [1]);
    window.push(1, Some("a".into()));
    assert_eq!(window.unsent(), [1, 2]);
    assert_eq!(start(&mut window, 9, &[]), [Replay(1)]);
    window.finish(1);
    assert_eq!(start(&mut window, 9, &[]), [Replay(2)]);
}

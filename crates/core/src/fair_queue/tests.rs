//! Scripts and random walks over permits and queue.

use super::*;

fn new_queue(places: usize, queue: usize) -> FairQueue<u64> {
    FairQueue::new(QueueLimits {
        running_max: places,
        waiting_max: queue,
    })
}

fn principal(name: &str) -> Arc<str> {
    name.into()
}

/// Acquires a permit (`true`) or enqueues the call (`false`); returns the call if refused.
fn acquire_or_enqueue(
    queue: &mut FairQueue<u64>,
    whose: &Arc<str>,
    call: u64,
) -> Result<bool, u64> {
    if queue.try_acquire(whose, OwnerReserve::Closed) {
        return Ok(true);
    }
    queue
        .enqueue(whose, OwnerReserve::Closed, call)
        .map(|_| false)
}

#[test]
fn one_principal_never_holds_all_permits() {
    let mut queue = new_queue(256, 256);
    let (ann, owner) = (principal("ann"), principal("owner"));
    let asked: Vec<_> = (0..520)
        .map(|nth| acquire_or_enqueue(&mut queue, &ann, nth))
        .collect();
    assert_eq!(asked.iter().filter(|one| **one == Ok(true)).count(), 224);
    assert_eq!(asked.iter().filter(|one| **one == Ok(false)).count(), 256);
    assert_eq!(asked.iter().filter(|one| one.is_err()).count(), 40);
    assert!((0..10).all(|_| queue.try_acquire(&owner, OwnerReserve::Open)));
    assert!(queue.try_acquire(&principal("bob"), OwnerReserve::Closed));
}

#[test]
fn single_principal_uses_all_of_few_permits() {
    for places in 1..8 {
        let mut queue = new_queue(places, 1);
        let ann = principal("ann");
        assert!((0..places).all(|_| queue.try_acquire(&ann, OwnerReserve::Closed)));
        assert!(!queue.try_acquire(&ann, OwnerReserve::Closed));
    }
}

#[test]
fn full_queue_displaces_newest_of_largest_principal() {
    let mut queue = new_queue(1, 4);
    let (ann, bob, owner) = (principal("ann"), principal("bob"), principal("owner"));
    assert_eq!(acquire_or_enqueue(&mut queue, &ann, 0), Ok(true));
    for nth in 1..=4 {
        assert_eq!(acquire_or_enqueue(&mut queue, &ann, nth), Ok(false));
    }
    assert_eq!(acquire_or_enqueue(&mut queue, &ann, 5), Err(5));
    let displaced = |queue: &mut FairQueue<u64>, whose, reserve, call| {
        queue.enqueue(whose, reserve, call).map(|one| one.displaced)
    };
    assert_eq!(
        displaced(&mut queue, &bob, OwnerReserve::Closed, 6),
        Ok(Some(4))
    );
    assert_eq!(
        displaced(&mut queue, &bob, OwnerReserve::Closed, 7),
        Ok(Some(3))
    );
    assert_eq!(displaced(&mut queue, &bob, OwnerReserve::Closed, 8), Err(8));
    assert_eq!(
        displaced(&mut queue, &owner, OwnerReserve::Open, 9),
        Ok(Some(7))
    );
    // Principals rotate, each serving its oldest call first.
    let mut served = Vec::new();
    let mut holder = ann.clone();
    while let Some(next) = queue.release_permit(&holder) {
        holder = match next {
            1 | 2 => ann.clone(),
            6 => bob.clone(),
            _ => owner.clone(),
        };
        served.push(next);
    }
    assert_eq!(served, [1, 6, 9, 2]);
    assert!(queue.principals.is_empty() && queue.rotation.is_empty());
}

#[test]
fn free_permit_goes_to_principal_below_share() {
    let mut queue = new_queue(4, 8);
    let (ann, bob) = (principal("ann"), principal("bob"));
    for nth in 0..6 {
        assert!(acquire_or_enqueue(&mut queue, &ann, nth).is_ok());
    }
    for nth in 10..13 {
        assert!(acquire_or_enqueue(&mut queue, &bob, nth).is_ok());
    }
    // Two of four each, however long ann waits already.
    assert_eq!(queue.release_permit(&ann), Some(10));
    assert_eq!(queue.release_permit(&ann), Some(11));
    assert_eq!(queue.release_permit(&ann), Some(4));
    assert_eq!(queue.release_permit(&bob), Some(12));
}

#[test]
fn cancelled_call_is_not_served() {
    let mut queue = new_queue(1, 4);
    let (ann, bob) = (principal("ann"), principal("bob"));
    assert!(queue.try_acquire(&ann, OwnerReserve::Closed));
    let first = queue.enqueue(&bob, OwnerReserve::Closed, 1).unwrap().ticket;
    let second = queue.enqueue(&bob, OwnerReserve::Closed, 2).unwrap().ticket;
    assert!(queue.cancel_queued(&bob, first) && !queue.cancel_queued(&bob, first));
    assert_eq!(queue.release_permit(&ann), Some(2));
    assert!(!queue.cancel_queued(&bob, second), "it has a place");
    assert_eq!(queue.release_permit(&bob), None);
    assert!(queue.principals.is_empty());
}

/// A deterministic random generator.
struct TestRng(u64);

impl TestRng {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % end as u64).unwrap()
    }
}

/// Reference model of the calls.
#[derive(Default)]
struct QueueModel {
    running: Vec<usize>,
    waiting: HashMap<u64, (usize, u64)>,
}

fn assert_matches_model(queue: &FairQueue<u64>, model: &QueueModel, names: &[Arc<str>]) {
    assert_eq!(queue.running_count(), model.running.len());
    assert_eq!(queue.waiting_count(), model.waiting.len());
    assert!(
        queue.running_count() <= queue.limits.running_max
            && queue.waiting_count() <= queue.limits.waiting_max
    );
    for (nth, name) in names.iter().enumerate() {
        let running = model.running.iter().filter(|one| **one == nth).count();
        let waits = model.waiting.values().filter(|one| one.0 == nth).count();
        let Some(party) = queue.principals.get(name) else {
            assert_eq!((running, waits), (0, 0));
            continue;
        };
        assert_eq!(
            (party.running_count, party.queued_calls.len()),
            (running, waits)
        );
        assert!(
            running + waits > 0,
            "nothing is remembered of who has nothing"
        );
        let turns = queue.rotation.iter().filter(|one| *one == name).count();
        assert_eq!(turns, usize::from(waits > 0));
        // No wake-up is lost: a queued call could not run.
        let (own_max, all_max) = queue.limits.running_limits(party.reserve);
        let could_run = queue.running_count < all_max && running < own_max;
        assert!(waits == 0 || !could_run, "{name} waits for nothing");
    }
}

#[test]
fn random_walks_lose_no_permit_or_wakeup() {
    let names: Vec<_> = ["owner", "a", "b", "c", "d"].map(principal).into();
    let reserve = |nth: usize| match nth {
        0 => OwnerReserve::Open,
        _ => OwnerReserve::Closed,
    };
    for seed in 1..=200 {
        let mut random = TestRng(seed * 0x9e37_79b9);
        let mut queue = new_queue(1 + random.below(40), random.below(20));
        let mut model = QueueModel::default();
        for call in 0..400 {
            match random.below(4) {
                0 | 1 => {
                    let nth = random.below(names.len());
                    if queue.try_acquire(&names[nth], reserve(nth)) {
                        model.running.push(nth);
                    } else if let Ok(queued) = queue.enqueue(&names[nth], reserve(nth), call) {
                        model.waiting.insert(call, (nth, queued.ticket));
                        if let Some(displaced) = queued.displaced {
                            assert_ne!(model.waiting.remove(&displaced).unwrap().0, nth);
                        }
                    }
                }
                2 if !model.running.is_empty() => {
                    let nth = model.running.swap_remove(random.below(model.running.len()));
                    if let Some(next) = queue.release_permit(&names[nth]) {
                        model.running.push(model.waiting.remove(&next).unwrap().0);
                    }
                }
                _ => {
                    let Some(call) = model.waiting.keys().min().copied() else {
                        continue;
                    };
                    let (nth, ticket) = model.waiting.remove(&call).unwrap();
                    assert!(queue.cancel_queued(&names[nth], ticket));
                }
            }
            assert_matches_model(&queue, &model, &names);
        }
        while let Some(nth) = model.running.pop() {
            if let Some(next) = queue.release_permit(&names[nth]) {
                model.running.push(model.waiting.remove(&next).unwrap().0);
            }
        }
        assert!(model.waiting.is_empty(), "all who wait are served");
        assert!(queue.principals.is_empty() && queue.rotation.is_empty());
    }
}

//! Scripts and random walks over places and queue.

use super::*;

fn queue(places: usize, queue: usize) -> FairQueue<u64> {
    FairQueue::new(QueueLimits { places, queue })
}

fn name(name: &str) -> Arc<str> {
    name.into()
}

/// Asks for a place: whether it is taken, waits (with whom it displaced) or is refused.
fn ask(queue: &mut FairQueue<u64>, whose: &Arc<str>, call: u64) -> Result<bool, u64> {
    if queue.take(whose, Reserve::Closed) {
        return Ok(true);
    }
    queue.wait(whose, Reserve::Closed, call).map(|_| false)
}

#[test]
fn one_principal_leaves_places_for_next() {
    let mut queue = queue(256, 256);
    let (ann, owner) = (name("ann"), name("owner"));
    let asked: Vec<_> = (0..520).map(|nth| ask(&mut queue, &ann, nth)).collect();
    assert_eq!(asked.iter().filter(|one| **one == Ok(true)).count(), 224);
    assert_eq!(asked.iter().filter(|one| **one == Ok(false)).count(), 256);
    assert_eq!(asked.iter().filter(|one| one.is_err()).count(), 40);
    assert!((0..10).all(|_| queue.take(&owner, Reserve::Open)));
    assert!(queue.take(&name("bob"), Reserve::Closed));
}

#[test]
fn alone_with_few_places_all_are_open() {
    for places in 1..8 {
        let mut queue = queue(places, 1);
        let ann = name("ann");
        assert!((0..places).all(|_| queue.take(&ann, Reserve::Closed)));
        assert!(!queue.take(&ann, Reserve::Closed));
    }
}

#[test]
fn full_queue_gives_up_newest_of_largest() {
    let mut queue = queue(1, 4);
    let (ann, bob, owner) = (name("ann"), name("bob"), name("owner"));
    assert_eq!(ask(&mut queue, &ann, 0), Ok(true));
    for nth in 1..=4 {
        assert_eq!(ask(&mut queue, &ann, nth), Ok(false));
    }
    assert_eq!(ask(&mut queue, &ann, 5), Err(5));
    let displaced = |queue: &mut FairQueue<u64>, whose, reserve, call| {
        queue.wait(whose, reserve, call).map(|one| one.displaced)
    };
    assert_eq!(displaced(&mut queue, &bob, Reserve::Closed, 6), Ok(Some(4)));
    assert_eq!(displaced(&mut queue, &bob, Reserve::Closed, 7), Ok(Some(3)));
    assert_eq!(displaced(&mut queue, &bob, Reserve::Closed, 8), Err(8));
    assert_eq!(displaced(&mut queue, &owner, Reserve::Open, 9), Ok(Some(7)));
    // They take turns, and each its own oldest first.
    let mut served = Vec::new();
    let mut holder = ann.clone();
    while let Some(next) = queue.release(&holder) {
        holder = match next {
            1 | 2 => ann.clone(),
            6 => bob.clone(),
            _ => owner.clone(),
        };
        served.push(next);
    }
    assert_eq!(served, [1, 6, 9, 2]);
    assert!(queue.parties.is_empty() && queue.turns.is_empty());
}

#[test]
fn free_place_goes_to_less_than_its_part() {
    let mut queue = queue(4, 8);
    let (ann, bob) = (name("ann"), name("bob"));
    for nth in 0..6 {
        assert!(ask(&mut queue, &ann, nth).is_ok());
    }
    for nth in 10..13 {
        assert!(ask(&mut queue, &bob, nth).is_ok());
    }
    // Two of four each, however long ann waits already.
    assert_eq!(queue.release(&ann), Some(10));
    assert_eq!(queue.release(&ann), Some(11));
    assert_eq!(queue.release(&ann), Some(4));
    assert_eq!(queue.release(&bob), Some(12));
}

#[test]
fn call_that_left_is_not_served() {
    let mut queue = queue(1, 4);
    let (ann, bob) = (name("ann"), name("bob"));
    assert!(queue.take(&ann, Reserve::Closed));
    let first = queue.wait(&bob, Reserve::Closed, 1).unwrap().ticket;
    let second = queue.wait(&bob, Reserve::Closed, 2).unwrap().ticket;
    assert!(queue.leave(&bob, first) && !queue.leave(&bob, first));
    assert_eq!(queue.release(&ann), Some(2));
    assert!(!queue.leave(&bob, second), "it has a place");
    assert_eq!(queue.release(&bob), None);
    assert!(queue.parties.is_empty());
}

/// A generator whose walks are the same each time.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % end as u64).unwrap()
    }
}

/// What a walk knows of the calls, beside the queue.
#[derive(Default)]
struct Model {
    running: Vec<usize>,
    waiting: HashMap<u64, (usize, u64)>,
}

fn check(queue: &FairQueue<u64>, model: &Model, names: &[Arc<str>]) {
    assert_eq!(queue.running(), model.running.len());
    assert_eq!(queue.waiting(), model.waiting.len());
    assert!(queue.running() <= queue.limits.places && queue.waiting() <= queue.limits.queue);
    for (nth, name) in names.iter().enumerate() {
        let running = model.running.iter().filter(|one| **one == nth).count();
        let waits = model.waiting.values().filter(|one| one.0 == nth).count();
        let Some(party) = queue.parties.get(name) else {
            assert_eq!((running, waits), (0, 0));
            continue;
        };
        assert_eq!((party.running, party.waiting.len()), (running, waits));
        assert!(
            running + waits > 0,
            "nothing is remembered of who has nothing"
        );
        let turns = queue.turns.iter().filter(|one| *one == name).count();
        assert_eq!(turns, usize::from(waits > 0));
        // No wake-up is lost: whoever waits could not run.
        let (own_max, all_max) = queue.limits.open(party.reserve);
        let could_run = queue.running < all_max && running < own_max;
        assert!(waits == 0 || !could_run, "{name} waits for nothing");
    }
}

#[test]
fn random_walks_lose_no_place_and_no_wakeup() {
    let names: Vec<_> = ["owner", "a", "b", "c", "d"].map(name).into();
    let reserve = |nth: usize| match nth {
        0 => Reserve::Open,
        _ => Reserve::Closed,
    };
    for seed in 1..=200 {
        let mut random = Random(seed * 0x9e37_79b9);
        let mut queue = queue(1 + random.below(40), random.below(20));
        let mut model = Model::default();
        for call in 0..400 {
            match random.below(4) {
                0 | 1 => {
                    let nth = random.below(names.len());
                    if queue.take(&names[nth], reserve(nth)) {
                        model.running.push(nth);
                    } else if let Ok(queued) = queue.wait(&names[nth], reserve(nth), call) {
                        model.waiting.insert(call, (nth, queued.ticket));
                        if let Some(displaced) = queued.displaced {
                            assert_ne!(model.waiting.remove(&displaced).unwrap().0, nth);
                        }
                    }
                }
                2 if !model.running.is_empty() => {
                    let nth = model.running.swap_remove(random.below(model.running.len()));
                    if let Some(next) = queue.release(&names[nth]) {
                        model.running.push(model.waiting.remove(&next).unwrap().0);
                    }
                }
                _ => {
                    let Some(call) = model.waiting.keys().min().copied() else {
                        continue;
                    };
                    let (nth, ticket) = model.waiting.remove(&call).unwrap();
                    assert!(queue.leave(&names[nth], ticket));
                }
            }
            check(&queue, &model, &names);
        }
        while let Some(nth) = model.running.pop() {
            if let Some(next) = queue.release(&names[nth]) {
                model.running.push(model.waiting.remove(&next).unwrap().0);
            }
        }
        assert!(model.waiting.is_empty(), "all who wait are served");
        assert!(queue.parties.is_empty() && queue.turns.is_empty());
    }
}

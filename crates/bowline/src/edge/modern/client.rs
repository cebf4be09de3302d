//! Who asks without a session: what servers tell apart by sessions, they tell apart by clients.

use std::cell::Cell;
use std::collections::HashMap;
use std::hash::BuildHasher as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use bowline_core::call::{Principal, Scope};
use bowline_core::caller::{Abilities, SessionKey};
use bowline_core::level::Level;
use bowline_core::sync::lock;
use bowline_core::time::{Now, millis};
use foldhash::fast::RandomState;

use crate::edge::session::Sessions;

/// Clients held in memory; one more pushes out some that were quiet longest.
pub(crate) const CLIENTS_MAX: usize = 65_536;

/// So many are pushed out at once, so that not every new one looks at all.
const PUSHED_OUT: usize = CLIENTS_MAX / 16;

/// A client that was quiet this long is forgotten, and what servers hold for it is let go.
pub(crate) const CLIENT_IDLE: Duration = Duration::from_secs(3_600);

/// Everything by which clients are told apart. None of it narrows or widens anything.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Name {
    principal: Arc<str>,
    credential: Arc<str>,
    scope: Scope,
    abilities: u8,
    /// Of what it says that it is.
    info: u64,
}

/// One client.
#[derive(Debug)]
pub(crate) struct Client {
    /// Stands for a session where servers want one.
    pub(crate) key: SessionKey,
    credential: Arc<str>,
    used_ms: AtomicU64,
    /// What its requests under way want to hear.
    volume: Mutex<Volume>,
}

/// From which levels on the requests of one client want to hear log messages.
#[derive(Debug, Default)]
struct Volume {
    /// How many requests under way want to hear each level.
    counts: [u32; Level::ALL.len()],
    /// What servers were told last.
    told: Option<Level>,
}

/// A request under way that wants to hear log messages; dropped, it does not any more.
#[derive(Debug)]
pub(crate) struct Hearing {
    client: Arc<Client>,
    level: Level,
}

impl Client {
    /// Whether it asked with this credential.
    pub(crate) fn is_of(&self, credential: &str) -> bool {
        *self.credential == *credential
    }

    /// Notes what one request wants to hear, for as long as the answer is held, and returns what
    /// servers are to be told where that is news: the most verbose of what requests under way
    /// want, since each of them leaves out what is too much for it.
    pub(crate) fn hears(self: &Arc<Self>, level: Level) -> (Hearing, Option<Level>) {
        let hearing = Hearing {
            client: Arc::clone(self),
            level,
        };
        let mut volume = lock(&self.volume);
        volume.count(level, |count| count.saturating_add(1));
        let mut levels = Level::ALL.into_iter().zip(volume.counts);
        let most = levels.find(|(_, count)| *count > 0).map(|(level, _)| level);
        let is_news = volume.told != most;
        volume.told = most;
        (hearing, most.filter(|_| is_news))
    }
}

impl Volume {
    fn count(&mut self, level: Level, change: impl Fn(u32) -> u32) {
        if let Some(count) = self.counts.get_mut(level as usize) {
            *count = change(*count);
        }
    }
}

/// Servers are not told: what is too much for those that are left is left out here.
impl Drop for Hearing {
    fn drop(&mut self) {
        lock(&self.client.volume).count(self.level, |count| count.saturating_sub(1));
    }
}

/// The clients that asked lately.
#[derive(Debug, Default)]
pub(crate) struct Clients {
    table: Mutex<Table>,
    hasher: RandomState,
}

#[derive(Debug, Default)]
struct Table {
    live: HashMap<Name, Arc<Client>, RandomState>,
}

impl Clients {
    /// Returns the client that asks: the same for the same credential, endpoint, abilities and
    /// description of itself. It lasts while the answer is held. Also returns those that had to
    /// go for it.
    pub(crate) fn enter(
        &self,
        sessions: &Sessions,
        (principal, scope): (&Principal, &Scope),
        (abilities, info): (Abilities, &[u8]),
        now: Now,
    ) -> (Arc<Client>, Vec<SessionKey>) {
        let name = Name {
            principal: Arc::clone(&principal.name),
            credential: Arc::clone(&principal.credential),
            scope: scope.clone(),
            abilities: abilities.bits(),
            info: self.hasher.hash_one(info),
        };
        let mut table = self.table();
        if let Some(client) = table.live.get(&name) {
            client.used_ms.store(now.0, Ordering::Relaxed);
            return (Arc::clone(client), Vec::new());
        }
        let gone = match table.live.len() >= CLIENTS_MAX {
            true => table.push_out(),
            false => Vec::new(),
        };
        let client = Arc::new(Client {
            key: sessions.new_key(),
            credential: Arc::clone(&principal.credential),
            used_ms: AtomicU64::new(now.0),
            volume: Mutex::default(),
        });
        table.live.insert(name, Arc::clone(&client));
        (client, gone)
    }

    /// Lets clients go that were quiet for long, and returns all that had to go.
    pub(crate) fn sweep(&self, now: Now) -> Vec<SessionKey> {
        self.table().drop_where(|client| {
            let used = Now(client.used_ms.load(Ordering::Relaxed));
            now.millis_since(used) >= millis(CLIENT_IDLE) && !is_busy(client)
        })
    }

    /// Lets the clients of a credential go, and returns all that had to go.
    pub(crate) fn dismiss(&self, credential: &str) -> Vec<SessionKey> {
        self.table().drop_where(|client| client.is_of(credential))
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        lock(&self.table)
    }
}

impl Table {
    fn drop_where(&mut self, which: impl Fn(&Arc<Client>) -> bool) -> Vec<SessionKey> {
        let gone = self.live.extract_if(|_, client| which(client));
        gone.map(|(_, client)| client.key).collect()
    }

    /// Lets those go that were quiet longest.
    fn push_out(&mut self) -> Vec<SessionKey> {
        let used = |client: &Arc<Client>| client.used_ms.load(Ordering::Relaxed);
        let idle = self.live.values().filter(|client| !is_busy(client));
        let mut times: Vec<u64> = idle.map(used).collect();
        if times.is_empty() {
            return Vec::new();
        }
        let nth = PUSHED_OUT.min(times.len() - 1);
        let (_, last, _) = times.select_nth_unstable(nth);
        let last = *last;
        let left = Cell::new(PUSHED_OUT);
        self.drop_where(|client| {
            let goes = left.get() > 0 && !is_busy(client) && used(client) <= last;
            left.set(left.get() - usize::from(goes));
            goes
        })
    }
}

/// Whether a call of it is under way.
fn is_busy(client: &Arc<Client>) -> bool {
    Arc::strong_count(client) > 1
}

#[cfg(test)]
mod tests {
    use bowline_core::call::Role;
    use bowline_core::caller::Ability;

    use super::*;

    fn principal(name: &str, credential: &str) -> Principal {
        Principal {
            credential: credential.into(),
            ..Principal::new(name, Role::Owner)
        }
    }

    #[test]
    fn servers_are_told_the_most_verbose_level_of_the_requests_under_way() {
        let (clients, sessions) = (Clients::default(), Sessions::new(&[1; 32]));
        let (ann, nothing) = (principal("ann", "t"), (Abilities::default(), &b""[..]));
        let (client, _) = clients.enter(&sessions, (&ann, &Scope::All), nothing, Now(0));
        let (debug, told) = client.hears(Level::Debug);
        assert_eq!(told, Some(Level::Debug));
        let (error, told) = client.hears(Level::Error);
        assert_eq!(told, None, "the first one still wants to hear all");
        let (again, told) = client.hears(Level::Debug);
        assert_eq!(told, None);
        drop(debug);
        assert_eq!(client.hears(Level::Error).1, None);
        drop((error, again));
        assert_eq!(client.hears(Level::Error).1, Some(Level::Error));
    }

    #[test]
    fn a_client_is_the_same_until_anything_about_it_is_another() {
        let (clients, sessions) = (Clients::default(), Sessions::new(&[1; 32]));
        let ann = principal("ann", "t");
        let none = Abilities::default();
        let enter = |who: &Principal, scope: &Scope, abilities, info: &str| {
            let what = (abilities, info.as_bytes());
            clients.enter(&sessions, (who, scope), what, Now(0)).0.key
        };
        let all = Scope::All;
        let key = enter(&ann, &all, none, "i");
        assert_eq!(enter(&ann, &all, none, "i"), key);
        let asked = none.with(Ability::Roots);
        let others = [
            enter(&principal("bob", "t"), &all, none, "i"),
            enter(&principal("ann", "u"), &all, none, "i"),
            enter(&ann, &Scope::Server("s".into()), none, "i"),
            enter(&ann, &all, asked, "i"),
            enter(&ann, &all, none, "j"),
        ];
        for (at, other) in others.iter().enumerate() {
            assert_ne!(*other, key, "{at}");
            assert!(!others[..at].contains(other), "{at}");
        }
        assert_eq!(clients.dismiss("u").len(), 1);
        assert_eq!(enter(&ann, &all, none, "i"), key, "another credential's");
    }

    #[test]
    fn a_quiet_client_is_forgotten_unless_a_call_of_it_is_under_way() {
        let (clients, sessions) = (Clients::default(), Sessions::new(&[1; 32]));
        let ann = principal("ann", "");
        let enter = |info: &'static str| {
            let what = (Abilities::default(), info.as_bytes());
            clients
                .enter(&sessions, (&ann, &Scope::All), what, Now(0))
                .0
        };
        let busy = enter("busy");
        let quiet = enter("quiet").key;
        let late = Now(0).plus(CLIENT_IDLE);
        assert!(clients.sweep(Now(late.0 - 1)).is_empty());
        assert_eq!(clients.sweep(late), [quiet]);
        assert_ne!(enter("quiet").key, quiet);
        let key = busy.key;
        assert_eq!(enter("busy").key, key);
        drop(busy);
        assert_eq!(clients.sweep(late).len(), 2);
    }

    #[test]
    fn where_there_is_no_room_some_of_the_quietest_go_and_those_at_work_stay() {
        let (clients, sessions) = (Clients::default(), Sessions::new(&[1; 32]));
        let ann = principal("ann", "");
        let enter = |nth: usize| {
            let info = nth.to_string();
            let what = (Abilities::default(), info.as_bytes());
            let now = Now(nth as u64);
            clients.enter(&sessions, (&ann, &Scope::All), what, now)
        };
        let (busy, _) = enter(0);
        let quiet = enter(1).0.key;
        for nth in 2..CLIENTS_MAX {
            assert!(enter(nth).1.is_empty());
        }
        let (_, gone) = enter(CLIENTS_MAX);
        assert_eq!(gone.len(), PUSHED_OUT);
        assert!(gone.contains(&quiet) && !gone.contains(&busy.key));
        let (_, gone) = enter(CLIENTS_MAX + 1);
        assert!(gone.is_empty(), "there is room for a while");
    }
}

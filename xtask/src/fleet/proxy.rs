//! A proxy that breaks what goes through it, where no namespace can be had.

use std::{
    io::{Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

use anyhow::Result;

/// How often is looked whether what is held back may pass.
const LOOK: Duration = Duration::from_millis(20);

/// What a slow way carries at a time, and the pause after it.
const SLOW_BYTES: usize = 2_048;
const SLOW: Duration = Duration::from_millis(40);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Weather {
    #[default]
    Fair,
    Slow,
    /// What comes goes nowhere, and nobody is told.
    Holds,
    /// Nobody is let in.
    Refuses,
}

#[derive(Debug, Default)]
struct Shared {
    weather: Weather,
    hub: Option<SocketAddr>,
    open: Vec<TcpStream>,
}

/// Stands between the hub and whoever comes from afar. Its threads end with the process.
#[derive(Debug)]
pub(crate) struct Proxy {
    address: SocketAddr,
    shared: Arc<Mutex<Shared>>,
}

impl Proxy {
    pub(crate) fn open() -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.2:0")?;
        let shared = Arc::<Mutex<Shared>>::default();
        let address = listener.local_addr()?;
        let kept = Arc::clone(&shared);
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                // A hub that is being restarted is away for a moment.
                let _ = carry(client, &kept);
            }
        });
        Ok(Self { address, shared })
    }

    pub(crate) fn port(&self) -> u16 {
        self.address.port()
    }

    pub(crate) fn lead_to(&self, hub: SocketAddr) -> SocketAddr {
        lock(&self.shared).hub = Some(hub);
        self.address
    }

    /// Whether anybody is connected through it.
    pub(crate) fn carries(&self) -> bool {
        !lock(&self.shared).open.is_empty()
    }

    pub(crate) fn cut(&self) {
        for stream in lock(&self.shared).open.drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    pub(crate) fn hold(&self) {
        lock(&self.shared).weather = Weather::Holds;
    }

    pub(crate) fn refuse(&self) {
        lock(&self.shared).weather = Weather::Refuses;
        self.cut();
    }

    pub(crate) fn slow(&self) {
        lock(&self.shared).weather = Weather::Slow;
    }

    pub(crate) fn heal(&self) {
        lock(&self.shared).weather = Weather::Fair;
    }
}

fn carry(client: TcpStream, shared: &Arc<Mutex<Shared>>) -> Result<()> {
    // Whoever else wants in waits as well, which is what should happen to them.
    wait_while_held(shared);
    let (weather, hub) = {
        let shared = lock(shared);
        (shared.weather, shared.hub)
    };
    let (Weather::Fair | Weather::Slow, Some(hub)) = (weather, hub) else {
        return Ok(());
    };
    let hub = TcpStream::connect(hub)?;
    client.set_nodelay(true)?;
    hub.set_nodelay(true)?;
    lock(shared)
        .open
        .extend([client.try_clone()?, hub.try_clone()?]);
    for (from, to) in [(client.try_clone()?, hub.try_clone()?), (hub, client)] {
        let shared = Arc::clone(shared);
        thread::spawn(move || pass(from, to, &shared));
    }
    Ok(())
}

/// Carries one direction until it ends, and then ends the other.
fn pass(mut from: TcpStream, mut to: TcpStream, shared: &Mutex<Shared>) {
    let mut chunk = vec![0; 64 * 1024];
    loop {
        let slow = lock(shared).weather == Weather::Slow;
        let room = if slow { SLOW_BYTES } else { chunk.len() };
        let Some(length @ 1..) = chunk.get_mut(..room).and_then(|room| from.read(room).ok()) else {
            break;
        };
        if slow {
            thread::sleep(SLOW);
        }
        wait_while_held(shared);
        let part = chunk.get(..length).unwrap_or_default();
        if to.write_all(part).is_err() {
            break;
        }
    }
    for end in [from, to] {
        let _ = end.shutdown(Shutdown::Both);
    }
}

fn wait_while_held(shared: &Mutex<Shared>) {
    while lock(shared).weather == Weather::Holds {
        thread::sleep(LOOK);
    }
}

fn lock(shared: &Mutex<Shared>) -> MutexGuard<'_, Shared> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

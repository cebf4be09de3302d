//! TCP proxy that injects faults, for machines without network namespaces.

use std::{
    io::{Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

use anyhow::Result;

/// Interval of the checks whether held bytes may pass.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Chunk size of a slow connection, and the pause after each chunk.
const SLOW_BYTES: usize = 2_048;
const SLOW_PAUSE: Duration = Duration::from_millis(40);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum ProxyMode {
    #[default]
    Forward,
    Slow,
    /// Bytes are held back; connections stay open.
    Hold,
    /// New connections are closed at once.
    Refuse,
}

#[derive(Debug, Default)]
struct ProxyState {
    mode: ProxyMode,
    hub: Option<SocketAddr>,
    open_streams: Vec<TcpStream>,
}

/// Proxy between the hub and the worker side. The threads end with the process.
#[derive(Debug)]
pub(crate) struct FaultProxy {
    address: SocketAddr,
    shared: Arc<Mutex<ProxyState>>,
}

impl FaultProxy {
    pub(crate) fn open() -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.2:0")?;
        let shared = Arc::<Mutex<ProxyState>>::default();
        let address = listener.local_addr()?;
        let kept = Arc::clone(&shared);
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                // Connecting fails while the hub restarts.
                let _ = forward_connection(client, &kept);
            }
        });
        Ok(Self { address, shared })
    }

    pub(crate) fn port(&self) -> u16 {
        self.address.port()
    }

    pub(crate) fn set_hub(&self, hub: SocketAddr) -> SocketAddr {
        lock_state(&self.shared).hub = Some(hub);
        self.address
    }

    /// Returns whether any connection is open.
    pub(crate) fn has_connections(&self) -> bool {
        !lock_state(&self.shared).open_streams.is_empty()
    }

    pub(crate) fn cut_connections(&self) {
        for stream in lock_state(&self.shared).open_streams.drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    pub(crate) fn hold_bytes(&self) {
        lock_state(&self.shared).mode = ProxyMode::Hold;
    }

    pub(crate) fn refuse_connections(&self) {
        lock_state(&self.shared).mode = ProxyMode::Refuse;
        self.cut_connections();
    }

    pub(crate) fn slow_down(&self) {
        lock_state(&self.shared).mode = ProxyMode::Slow;
    }

    pub(crate) fn restore(&self) {
        lock_state(&self.shared).mode = ProxyMode::Forward;
    }
}

fn forward_connection(client: TcpStream, shared: &Arc<Mutex<ProxyState>>) -> Result<()> {
    // Blocks the accept loop on purpose: further connections are held as well.
    wait_while_held(shared);
    let (weather, hub) = {
        let shared = lock_state(shared);
        (shared.mode, shared.hub)
    };
    let (ProxyMode::Forward | ProxyMode::Slow, Some(hub)) = (weather, hub) else {
        return Ok(());
    };
    let hub = TcpStream::connect(hub)?;
    client.set_nodelay(true)?;
    hub.set_nodelay(true)?;
    lock_state(shared)
        .open_streams
        .extend([client.try_clone()?, hub.try_clone()?]);
    for (from, to) in [(client.try_clone()?, hub.try_clone()?), (hub, client)] {
        let shared = Arc::clone(shared);
        thread::spawn(move || forward_bytes(from, to, &shared));
    }
    Ok(())
}

/// Forwards one direction until the end, then closes both streams.
fn forward_bytes(mut from: TcpStream, mut to: TcpStream, shared: &Mutex<ProxyState>) {
    let mut chunk = vec![0; 64 * 1024];
    loop {
        let slow = lock_state(shared).mode == ProxyMode::Slow;
        let room = if slow { SLOW_BYTES } else { chunk.len() };
        let Some(length @ 1..) = chunk.get_mut(..room).and_then(|room| from.read(room).ok()) else {
            break;
        };
        if slow {
            thread::sleep(SLOW_PAUSE);
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

fn wait_while_held(shared: &Mutex<ProxyState>) {
    while lock_state(shared).mode == ProxyMode::Hold {
        thread::sleep(POLL_INTERVAL);
    }
}

fn lock_state(shared: &Mutex<ProxyState>) -> MutexGuard<'_, ProxyState> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

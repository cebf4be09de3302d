//! A breakable network between a gateway and a server.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex};

/// The state of the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NetworkState {
    /// Everything arrives.
    Up,
    /// No connection is accepted.
    Down,
    /// Requests arrive, responses do not.
    ResponsesLost,
}

impl NetworkState {
    const ALL: [Self; 3] = [Self::Up, Self::Down, Self::ResponsesLost];
}

/// The network path to a server.
#[derive(Debug)]
pub struct FaultyNetwork {
    pub address: SocketAddr,
    state: Arc<AtomicU8>,
    connections: Arc<Mutex<Vec<TcpStream>>>,
}

impl FaultyNetwork {
    /// Starts a proxy to `server`.
    pub fn start(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let this = Self {
            address: listener.local_addr().unwrap(),
            state: Arc::new(AtomicU8::new(NetworkState::Up as u8)),
            connections: Arc::default(),
        };
        let (weather, open) = (Arc::clone(&this.state), Arc::clone(&this.connections));
        // The thread lives as long as the test process; no join.
        std::thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                if load_state(&weather) == NetworkState::Down {
                    continue;
                }
                // A restarting server is unreachable for a moment.
                let _away = relay_connection(client, server, &weather, &open);
            }
        });
        this
    }

    /// Changes the state; any state but `Up` cuts open connections.
    pub fn set_state(&self, weather: NetworkState) {
        self.state.store(weather as u8, Ordering::SeqCst);
        if weather == NetworkState::Down {
            self.cut_connections();
        }
    }

    /// Cuts every connection; new connections follow the current state.
    pub fn cut_connections(&self) {
        for stream in self.connections.lock().unwrap().drain(..) {
            let _gone = stream.shutdown(Shutdown::Both);
        }
    }
}

fn load_state(weather: &AtomicU8) -> NetworkState {
    NetworkState::ALL[usize::from(weather.load(Ordering::SeqCst))]
}

fn relay_connection(
    client: TcpStream,
    server: SocketAddr,
    weather: &Arc<AtomicU8>,
    open: &Mutex<Vec<TcpStream>>,
) -> std::io::Result<()> {
    let server = TcpStream::connect(server)?;
    for stream in [&client, &server] {
        stream.set_nodelay(true)?;
    }
    let kept = [client.try_clone()?, server.try_clone()?];
    open.lock().unwrap().extend(kept);
    let (requests, sent) = (client.try_clone()?, server.try_clone()?);
    std::thread::spawn(move || relay_direction(requests, sent, |_| true));
    let weather = Arc::clone(weather);
    let may = move |_: &[u8]| load_state(&weather) != NetworkState::ResponsesLost;
    std::thread::spawn(move || relay_direction(server, client, may));
    Ok(())
}

/// Copies one direction until the end, then closes the reverse direction.
fn relay_direction(mut from: TcpStream, mut to: TcpStream, arrives: impl Fn(&[u8]) -> bool) {
    let mut chunk = vec![0; 64 * 1024];
    while let Ok(length @ 1..) = from.read(&mut chunk) {
        let chunk = &chunk[..length];
        if arrives(chunk) && to.write_all(chunk).is_err() {
            break;
        }
    }
    for end in [from, to] {
        let _gone = end.shutdown(Shutdown::Both);
    }
}

//! A network that a test can break: it stands between a gateway and a server.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex};

/// What becomes of what goes through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Weather {
    /// All of it arrives.
    Fair,
    /// Nobody is let through.
    Down,
    /// Requests arrive, and answers do not.
    Mute,
}

impl Weather {
    const ALL: [Self; 3] = [Self::Fair, Self::Down, Self::Mute];
}

/// The way to one server.
#[derive(Debug)]
pub(crate) struct Network {
    pub(crate) address: SocketAddr,
    weather: Arc<AtomicU8>,
    open: Arc<Mutex<Vec<TcpStream>>>,
}

impl Network {
    /// Opens a way to `server`.
    pub(crate) fn to(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let this = Self {
            address: listener.local_addr().unwrap(),
            weather: Arc::new(AtomicU8::new(Weather::Fair as u8)),
            open: Arc::default(),
        };
        let (weather, open) = (Arc::clone(&this.weather), Arc::clone(&this.open));
        // Lives as long as the test's process; nobody waits for it.
        std::thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                if now(&weather) == Weather::Down {
                    continue;
                }
                // A server that is being restarted is away for a moment.
                let _away = carry(client, server, &weather, &open);
            }
        });
        this
    }

    /// Changes the weather, and breaks what is on its way unless it turns fair.
    pub(crate) fn turn(&self, weather: Weather) {
        self.weather.store(weather as u8, Ordering::SeqCst);
        if weather == Weather::Down {
            self.cut();
        }
    }

    /// Cuts every connection; new ones are let through as the weather is.
    pub(crate) fn cut(&self) {
        for stream in self.open.lock().unwrap().drain(..) {
            let _gone = stream.shutdown(Shutdown::Both);
        }
    }
}

fn now(weather: &AtomicU8) -> Weather {
    Weather::ALL[usize::from(weather.load(Ordering::SeqCst))]
}

fn carry(
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
    std::thread::spawn(move || pass(requests, sent, |_| true));
    let weather = Arc::clone(weather);
    let may = move |_: &[u8]| now(&weather) != Weather::Mute;
    std::thread::spawn(move || pass(server, client, may));
    Ok(())
}

/// Carries one direction until it ends, and then ends the other.
fn pass(mut from: TcpStream, mut to: TcpStream, arrives: impl Fn(&[u8]) -> bool) {
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

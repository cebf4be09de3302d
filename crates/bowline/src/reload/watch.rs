//! Notices that a file was written, replaced, or is another one behind a link.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Changes that follow each other this closely are one: editors write in several steps.
const QUIET: Duration = Duration::from_millis(200);

/// A file that never rests is looked at all the same after this long.
const UNREST_MAX: Duration = Duration::from_secs(2);

/// Watches one file.
#[derive(Debug)]
pub(super) struct Watch {
    path: PathBuf,
    ear: Ear,
}

impl Watch {
    /// Begins to watch.
    pub(super) fn of(path: &Path) -> io::Result<Self> {
        let ear = Ear::open()?;
        let this = Self {
            path: path.to_owned(),
            ear,
        };
        this.listen()?;
        Ok(this)
    }

    /// Waits until something happened to the file and it rests again.
    pub(super) async fn changed(&mut self) {
        self.ear.heard(&self.path).await;
        let rest = async {
            while tokio::time::timeout(QUIET, self.ear.heard(&self.path))
                .await
                .is_ok()
            {}
        };
        let _ = tokio::time::timeout(UNREST_MAX, rest).await;
        // What a link leads to may stand in another directory by now.
        if let Err(error) = self.listen() {
            tracing::debug!(error = &error as &dyn std::error::Error, "watch is lost");
        }
    }

    /// The directories are watched and not the file, which a rename replaces by another one.
    fn listen(&self) -> io::Result<()> {
        let directory = self.path.parent().unwrap_or_else(|| Path::new("/"));
        self.ear.listen(directory)?;
        if let Ok(real) = self.path.canonicalize()
            && let Some(directory) = real.parent()
        {
            self.ear.listen(directory)?;
        }
        Ok(())
    }
}

#[cfg(target_os = "linux")]
use linux::Ear;
#[cfg(not(target_os = "linux"))]
use polled::Ear;

#[cfg(target_os = "linux")]
mod linux {
    //! The kernel tells.

    use std::io;
    use std::path::Path;

    use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
    use tokio::net::unix::pipe::Receiver;

    /// Room for what is told at once; what it says is not looked at.
    const NEWS_BYTES: usize = 4_096;

    /// The queue of the kernel, which is read as a pipe is.
    #[derive(Debug)]
    pub(super) struct Ear(Receiver);

    impl Ear {
        pub(super) fn open() -> io::Result<Self> {
            let queue = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC)?;
            Ok(Self(Receiver::from_owned_fd_unchecked(queue)?))
        }

        /// Hears of a directory; once more changes nothing.
        pub(super) fn listen(&self, directory: &Path) -> io::Result<()> {
            let news = WatchFlags::CLOSE_WRITE
                | WatchFlags::CREATE
                | WatchFlags::DELETE
                | WatchFlags::MOVED_FROM
                | WatchFlags::MOVED_TO
                | WatchFlags::ONLYDIR;
            inotify::add_watch(&self.0, directory, news)?;
            Ok(())
        }

        /// Waits until something happened in a directory.
        pub(super) async fn heard(&self, _path: &Path) {
            let mut news = [0; NEWS_BYTES];
            while self.0.readable().await.is_ok() {
                match self.0.try_read(&mut news) {
                    Ok(1..) => return,
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    Ok(_) | Err(_) => break,
                }
            }
            // The queue is broken: nothing will be heard any more.
            std::future::pending().await
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod polled {
    //! Looks again and again.

    use std::io;
    use std::path::Path;
    use std::time::Duration;

    /// How often is looked.
    const LOOK_EVERY: Duration = Duration::from_secs(1);

    #[derive(Debug)]
    pub(super) struct Ear;

    impl Ear {
        pub(super) fn open() -> io::Result<Self> {
            Ok(Self)
        }

        pub(super) fn listen(&self, _directory: &Path) -> io::Result<()> {
            Ok(())
        }

        pub(super) async fn heard(&self, path: &Path) {
            let seen = |path: &Path| {
                let data = std::fs::metadata(path).ok()?;
                Some((data.modified().ok()?, data.len()))
            };
            let before = seen(path);
            while seen(path) == before {
                tokio::time::sleep(LOOK_EVERY).await;
            }
        }
    }
}

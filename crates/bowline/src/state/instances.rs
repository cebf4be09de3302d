//! Which lives of the gateway may have left processes behind, kept in the state directory.

use bowline_link::{Instance, end_instances};
use serde::{Deserialize, Serialize};

use super::{Error, State, file, json};

/// Version of the file.
const VERSION: u32 = 1;

/// Former lives that are looked for; each that left nothing is forgotten.
const FORMER_MAX: usize = 64;

const FILE_BYTES_MAX: u64 = 64 * 1024;

/// `instances.json`.
#[derive(Debug, Serialize, Deserialize)]
struct Record {
    v: u32,
    /// Names of lives, the newest last. Processes of any of them may be left.
    instances: Vec<String>,
}

impl State {
    /// Begins a life of the gateway: processes that former lives left are ended, and the new life
    /// is on the disk before it starts a process. Blocks for a few seconds at most, and for some
    /// milliseconds where nothing is left.
    ///
    /// To be called under the lock of the state directory: former lives are over then.
    ///
    /// # Errors
    /// The file cannot be read or written.
    pub(crate) fn begin_instance(&self) -> Result<Instance, Error> {
        let path = self.path().join("instances.json");
        let former = former(file::read_private(&path, FILE_BYTES_MAX)?.as_deref());
        let instance = Instance::new().map_err(|source| Error::Io {
            action: "name",
            path: path.clone(),
            source,
        })?;
        let keep = |former: &[Instance]| {
            let all = former.iter().chain([&instance]);
            let instances = all.map(|one| one.as_str().to_owned()).collect();
            let v = VERSION;
            file::replace(&path, &json(&Record { v, instances })?)
        };
        let ended = end_instances(&former);
        if ended.found > 0 {
            let (found, left) = (ended.found, ended.left);
            tracing::warn!(
                found,
                left,
                "processes of a gateway that was killed are ended"
            );
        }
        match ended.left {
            0 => keep(&[])?,
            // The next life tries again.
            _ => keep(&former)?,
        }
        Ok(instance)
    }
}

/// Reads the former lives; a file that is damaged names none.
fn former(bytes: Option<&[u8]>) -> Vec<Instance> {
    let record: Option<Record> = bytes.and_then(|bytes| serde_json::from_slice(bytes).ok());
    let names = record.filter(|record| record.v == VERSION);
    let names = names.map_or_else(Vec::new, |record| record.instances);
    let newest = names.iter().rev().take(FORMER_MAX);
    let mut known: Vec<_> = newest.filter_map(|name| Instance::parse(name)).collect();
    known.reverse();
    known
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_life_knows_the_one_before() {
        let dir = tempfile::tempdir().unwrap();
        let state = State::open(dir.path().join("state")).unwrap();
        let first = state.begin_instance().unwrap();
        let read = || std::fs::read(state.path().join("instances.json")).unwrap();
        assert_eq!(former(Some(&read())), std::slice::from_ref(&first));
        let second = state.begin_instance().unwrap();
        assert_eq!(former(Some(&read())), [second], "the first left nothing");
        for broken in [&b""[..], b"null", b"{\"v\":2,\"instances\":[]}", b"[1"] {
            assert_eq!(former(Some(broken)), []);
        }
        let many = vec![first.as_str().to_owned(); FORMER_MAX + 1];
        let many = Record {
            v: VERSION,
            instances: many,
        };
        assert_eq!(former(Some(&json(&many).unwrap())).len(), FORMER_MAX);
    }
}

//! Instances of the gateway that may have left processes behind, stored in the state directory.

use bowline_link::{GatewayInstance, end_instances};
use serde::{Deserialize, Serialize};

use super::{StateDir, StateError, private_file, to_json_line};

/// Version of the file format.
const VERSION: u32 = 1;

/// Maximum number of former instances searched for; instances without processes are dropped.
const FORMER_INSTANCES_MAX: usize = 64;

const FILE_BYTES_MAX: u64 = 64 * 1024;

/// `instances.json`.
#[derive(Debug, Serialize, Deserialize)]
struct InstancesRecord {
    v: u32,
    /// Names of instances, the newest last. Any of them may have left processes.
    instances: Vec<String>,
}

impl StateDir {
    /// Begins an instance of the gateway: ends processes left by former instances, and records the
    /// new instance on disk before any process starts. Blocks for a few seconds at most, and for
    /// some milliseconds when no process is left.
    ///
    /// The caller holds the lock of the state directory, so former instances have ended.
    ///
    /// # Errors
    /// The file cannot be read or written.
    pub fn begin_instance(&self) -> Result<GatewayInstance, StateError> {
        let path = self.path().join("instances.json");
        let former =
            parse_former_instances(private_file::read_private(&path, FILE_BYTES_MAX)?.as_deref());
        let instance = GatewayInstance::new().map_err(|source| StateError::Io {
            action: "name",
            path: path.clone(),
            source,
        })?;
        let save_record = |former: &[GatewayInstance]| {
            let all = former.iter().chain([&instance]);
            let instances = all.map(|one| one.as_str().to_owned()).collect();
            let v = VERSION;
            private_file::replace_file(&path, &to_json_line(&InstancesRecord { v, instances })?)
        };
        let ended = end_instances(&former);
        if ended.found > 0 {
            let (found, left) = (ended.found, ended.left);
            tracing::warn!(found, left, "ended processes left by a killed gateway");
        }
        match ended.left {
            0 => save_record(&[])?,
            // The next instance tries again.
            _ => save_record(&former)?,
        }
        Ok(instance)
    }
}

/// Parses the former instances; a damaged file yields none.
fn parse_former_instances(bytes: Option<&[u8]>) -> Vec<GatewayInstance> {
    let record: Option<InstancesRecord> =
        bytes.and_then(|bytes| serde_json::from_slice(bytes).ok());
    let names = record.filter(|record| record.v == VERSION);
    let names = names.map_or_else(Vec::new, |record| record.instances);
    let newest = names.iter().rev().take(FORMER_INSTANCES_MAX);
    let mut instances: Vec<_> = newest
        .filter_map(|name| GatewayInstance::parse(name))
        .collect();
    instances.reverse();
    instances
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_instance_records_the_previous_one() {
        let dir = tempfile::tempdir().unwrap();
        let state = StateDir::open(dir.path().join("state")).unwrap();
        let first = state.begin_instance().unwrap();
        let read = || std::fs::read(state.path().join("instances.json")).unwrap();
        assert_eq!(
            parse_former_instances(Some(&read())),
            std::slice::from_ref(&first)
        );
        let second = state.begin_instance().unwrap();
        assert_eq!(
            parse_former_instances(Some(&read())),
            [second],
            "the first left nothing"
        );
        for broken in [&b""[..], b"null", b"{\"v\":2,\"instances\":[]}", b"[1"] {
            assert_eq!(parse_former_instances(Some(broken)), []);
        }
        let many = vec![first.as_str().to_owned(); FORMER_INSTANCES_MAX + 1];
        let many = InstancesRecord {
            v: VERSION,
            instances: many,
        };
        assert_eq!(
            parse_former_instances(Some(&to_json_line(&many).unwrap())).len(),
            FORMER_INSTANCES_MAX
        );
    }
}

//! The keys that say how programs are started with `run`.

use super::keys;
use super::reader::Reader;
use super::server::{Text, inside};
use crate::clients::Client;
use crate::config::tree::Node;

/// One client as written.
#[derive(Debug)]
pub(crate) struct Agent {
    pub(crate) client: Client,
    pub(crate) enabled: Option<bool>,
    pub(crate) direct: Option<Text>,
    pub(crate) direct_token: Option<Text>,
    pub(crate) keep_env: Vec<Text>,
}

/// Reads `clients`.
pub(super) fn read(reader: &mut Reader, node: &Node, place: &str) -> Vec<Agent> {
    let mut all = Vec::new();
    for named in reader.table(node, "clients", place, &keys::CLIENTS) {
        let Some(client) = Client::of(&named.key) else {
            continue;
        };
        let mut agent = Agent {
            client,
            enabled: None,
            direct: None,
            direct_token: None,
            keep_env: Vec::new(),
        };
        let place = inside(place, &named.key);
        for entry in reader.table(&named.node, &named.key, &place, &keys::CLIENT) {
            match entry.key.as_str() {
                "enabled" => agent.enabled = reader.boolean(entry),
                "direct" => agent.direct = reader.text(entry),
                "direct_token" => agent.direct_token = reader.text(entry),
                "keep_env" => agent.keep_env = reader.names_of_variables(entry),
                _ => {}
            }
        }
        all.push(agent);
    }
    all
}

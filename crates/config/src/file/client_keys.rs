//! The keys of client programs started with `run`.

use super::known_keys;
use super::server_keys::{UnexpandedText, nested_table};
use super::tree_reader::TreeReader;
use crate::client_programs::ClientProgram;
use crate::tree::ConfigNode;

/// The section of a client.
#[derive(Debug)]
pub(crate) struct ClientSection {
    pub(crate) client: ClientProgram,
    pub(crate) enabled: Option<bool>,
    pub(crate) direct: Option<UnexpandedText>,
    pub(crate) direct_token: Option<UnexpandedText>,
    pub(crate) keep_env: Vec<UnexpandedText>,
}

/// Parses `clients`.
pub(super) fn parse_clients(
    reader: &mut TreeReader,
    node: &ConfigNode,
    table_path: &str,
) -> Vec<ClientSection> {
    let mut sections = Vec::new();
    for named in reader.read_table(node, "clients", table_path, &known_keys::CLIENTS) {
        let Some(client) = ClientProgram::from_name(&named.key) else {
            continue;
        };
        let mut section = ClientSection {
            client,
            enabled: None,
            direct: None,
            direct_token: None,
            keep_env: Vec::new(),
        };
        let table_path = nested_table(table_path, &named.key);
        for entry in reader.read_table(&named.node, &named.key, &table_path, &known_keys::CLIENT) {
            match entry.key.as_str() {
                "enabled" => section.enabled = reader.read_boolean(entry),
                "direct" => section.direct = reader.read_text(entry),
                "direct_token" => section.direct_token = reader.read_text(entry),
                "keep_env" => section.keep_env = reader.read_variable_names(entry),
                _ => {}
            }
        }
        sections.push(section);
    }
    sections
}

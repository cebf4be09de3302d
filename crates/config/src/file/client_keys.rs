//! The keys of client programs started with `run`.

use super::config_table::config_table;
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

config_table! {
    /// `[clients]`: programs that `bowline run` starts.
    pub(super) enum ClientsKey {
        /// Claude Code.
        Claude = "claude" takes "a table",
        /// Codex.
        Codex = "codex" takes "a table",
    }
}

config_table! {
    /// `[clients.NAME]`: a program that `bowline run` starts.
    pub(super) enum ClientKey {
        /// Whether `bowline run` may start the program.
        Enabled = "enabled" takes "true or false",
        /// Endpoint of the program without the gateway.
        Direct = "direct" takes "a text",
        /// Credential for that endpoint.
        DirectToken = "direct_token" takes "a text",
        /// Credential variables that the program keeps.
        KeepEnv = "keep_env" takes "a list of variables",
    }
}

/// Parses `clients`.
pub(super) fn parse_clients(
    reader: &mut TreeReader,
    node: &ConfigNode,
    table_path: &str,
) -> Vec<ClientSection> {
    let mut sections = Vec::new();
    for (key, named) in reader.read_table::<ClientsKey>(node, "clients", table_path) {
        let mut section = ClientSection {
            client: match key {
                ClientsKey::Claude => ClientProgram::Claude,
                ClientsKey::Codex => ClientProgram::Codex,
            },
            enabled: None,
            direct: None,
            direct_token: None,
            keep_env: Vec::new(),
        };
        let table_path = nested_table(table_path, &named.key);
        for (key, entry) in reader.read_table::<ClientKey>(&named.node, &named.key, &table_path) {
            match key {
                ClientKey::Enabled => section.enabled = reader.read_boolean(entry),
                ClientKey::Direct => section.direct = reader.read_text(entry),
                ClientKey::DirectToken => section.direct_token = reader.read_text(entry),
                ClientKey::KeepEnv => section.keep_env = reader.read_variable_names(entry),
            }
        }
        sections.push(section);
    }
    sections
}

//! The reference of all keys, from the declarations that the readers use.

use std::fmt::Write as _;

use super::client_keys::{ClientKey, ClientsKey};
use super::config_table::TableKey;
use super::executor_keys::{ExecutorKey, ExecutorSecretKey, ExecutorServerKey, ExecutorsKey};
use super::rule_keys::{
    BudgetKey, ContextKey, PolicyKey, PrincipalKey, ProfileKey, RateKey, RoleKey, TokensKey,
    WhenKey,
};
use super::secret_keys::{SecretKey, SecretStoreKey};
use super::section_tables::{
    AuditKey, CacheKey, GatewayKey, JournalKey, JsonServerKey, JsonTopKey, TelemetryKey, TopKey,
};
use super::server_keys::{BreakerKey, ChildLimitKey, RestartKey, ServerKey};
use super::{broker_keys::BrokerKey, limit_keys::LimitKey, tool_keys::ToolKey};

const HEAD: &str = "\
# Keys of the config file

Each table of `bowline.toml` with its keys, as `bowline` itself knows them. This page is written by
`cargo run -p bowline-config --example config_keys > docs/config-keys.md`.
";

/// Returns the reference of all keys of a config file, as Markdown.
#[must_use]
pub fn key_reference() -> String {
    let mut page = HEAD.to_owned();
    write_table::<TopKey>(&mut page);
    write_table::<GatewayKey>(&mut page);
    write_table::<LimitKey>(&mut page);
    write_table::<TelemetryKey>(&mut page);
    write_table::<CacheKey>(&mut page);
    write_table::<JournalKey>(&mut page);
    write_table::<BrokerKey>(&mut page);
    write_table::<SecretKey>(&mut page);
    write_table::<SecretStoreKey>(&mut page);
    write_table::<AuditKey>(&mut page);
    write_table::<PolicyKey>(&mut page);
    write_table::<RoleKey>(&mut page);
    write_table::<WhenKey>(&mut page);
    write_table::<BudgetKey>(&mut page);
    write_table::<RateKey>(&mut page);
    write_table::<PrincipalKey>(&mut page);
    write_table::<TokensKey>(&mut page);
    write_table::<ContextKey>(&mut page);
    write_table::<ProfileKey>(&mut page);
    write_table::<ClientsKey>(&mut page);
    write_table::<ClientKey>(&mut page);
    write_table::<ExecutorsKey>(&mut page);
    write_table::<ExecutorKey>(&mut page);
    write_table::<ExecutorServerKey>(&mut page);
    write_table::<ExecutorSecretKey>(&mut page);
    write_table::<ServerKey>(&mut page);
    write_table::<ChildLimitKey>(&mut page);
    write_table::<RestartKey>(&mut page);
    write_table::<BreakerKey>(&mut page);
    write_table::<ToolKey>(&mut page);
    write_table::<JsonTopKey>(&mut page);
    write_table::<JsonServerKey>(&mut page);
    page
}

fn write_table<K: TableKey>(page: &mut String) {
    let heading = K::PURPOSE.trim().trim_end_matches('.');
    // A String takes whatever is written.
    let _ = write!(
        page,
        "\n## {heading}\n| key | takes | what for |\n|---|---|---|\n"
    );
    for key in K::KEYS {
        let (name, takes, purpose) = (key.name, key.takes, key.purpose);
        let _ = writeln!(page, "| `{name}` | {takes} | {purpose} |");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_lists_keys_as_declared() {
        let page = include_str!("../../../../docs/config-keys.md");
        assert_eq!(page, key_reference(), "write the page again: see its head");
    }
}

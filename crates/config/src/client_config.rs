//! Settings of client programs started with `run`: permission to start, the direct endpoint used
//! without a gateway, and the hidden environment variables.

use std::collections::{BTreeMap, BTreeSet};

use bowline_link::http::endpoint::HttpEndpoint;

use super::ConfigWarning;
use super::config_problem::ConfigProblem;
use super::env::EnvVars;
use super::expand::{self, ExpandSource, expand_text};
use super::file::{ClientSection, ConfigFile, UnexpandedText};
use super::server_secrets::should_hide_value;
use super::upstream_config::{ConfigTemplate, TemplateContext};
use crate::client_programs::ClientProgram;

/// Settings of a client program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientConfig {
    /// Whether the client may be started.
    pub enabled: bool,
    /// Endpoint to use when no gateway runs.
    pub direct: Option<DirectEndpoint>,
    /// Variables passed to the client although servers use the values as secrets.
    pub keep_env: Vec<String>,
}

/// An endpoint of a third party.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirectEndpoint {
    /// URL of the endpoint.
    pub url: String,
    /// Bearer token sent with every request.
    pub token: Option<ConfigTemplate>,
}

impl Default for ClientConfig {
    fn default() -> Self {
        Self {
            enabled: true,
            direct: None,
            keep_env: Vec::new(),
        }
    }
}

/// Resolves the client sections of the file.
pub(super) fn resolve_clients(
    sections: &[ClientSection],
    source: ExpandSource<'_>,
    warnings: &mut Vec<ConfigWarning>,
) -> Result<BTreeMap<ClientProgram, ClientConfig>, ConfigProblem> {
    let mut all = BTreeMap::new();
    for section in sections {
        let fallback = ClientConfig::default();
        let config = ClientConfig {
            enabled: section.enabled.unwrap_or(fallback.enabled),
            direct: resolve_direct(section, source, warnings)?,
            keep_env: section
                .keep_env
                .iter()
                .map(|name| name.text.clone())
                .collect(),
        };
        all.insert(section.client, config);
    }
    Ok(all)
}

fn resolve_direct(
    section: &ClientSection,
    source: ExpandSource<'_>,
    warnings: &mut Vec<ConfigWarning>,
) -> Result<Option<DirectEndpoint>, ConfigProblem> {
    let client = section.client.name();
    let Some(url) = &section.direct else {
        return match &section.direct_token {
            None => Ok(None),
            Some(token) => {
                let message = format!("client `{client}` has a `direct_token` for nowhere");
                let problem =
                    ConfigProblem::new(token.span.clone(), message, "`direct` is missing");
                Err(problem.with_help("add direct = \"https://...\""))
            }
        };
    };
    let unusable = |fault: String| {
        let message = format!("client `{client}` cannot go to this `direct` endpoint");
        ConfigProblem::new(url.span.clone(), message, fault)
    };
    let address = match expand_text(&url.text, source) {
        Ok(address) => address,
        Err(error) if error.is_config_fault() => return Err(unusable(error.to_string())),
        // The endpoint is needed only without a gateway, so a warning suffices.
        Err(error) => {
            let message = format!("client `{client}` has no direct endpoint: {error}");
            warnings.push(ConfigWarning {
                position: None,
                message,
            });
            return Ok(None);
        }
    };
    let endpoint = HttpEndpoint::parse(&address).map_err(|error| unusable(error.to_string()))?;
    if section.direct_token.is_some() && !endpoint.is_private() {
        let fault = "a token goes to other machines over https only";
        return Err(unusable(fault.to_owned()));
    }
    let token = section.direct_token.as_ref();
    let token = token.map(|token| ConfigTemplate::new(&token.text, &TemplateContext::new(source)));
    Ok(Some(DirectEndpoint {
        url: address,
        token,
    }))
}

/// Returns the environment variables with credentials of servers. A client uses the servers
/// through the gateway and needs none of the credentials.
pub(super) fn find_credential_variables(file: &ConfigFile, env: &EnvVars) -> BTreeSet<String> {
    let mut variables = BTreeSet::new();
    let mut note = |name: &str| {
        let value = env.raw(name).map(|value| value.to_string_lossy());
        if value.is_some_and(|value| should_hide_value(name, &value)) {
            variables.insert(name.to_owned());
        }
    };
    for server in &file.servers {
        let env = server.env.iter().map(|(_, text)| text);
        let texts = server.args.iter().chain(&server.url).chain(env);
        for name in texts.flat_map(|text| expand::referenced_variables(&text.text)) {
            note(name);
        }
        for name in &server.inherit_env {
            note(&name.text);
        }
    }
    // Headers and tokens are credentials regardless of variable names.
    let headers = file.servers.iter().flat_map(|server| &server.headers);
    let headers = headers.map(|(_, text)| text);
    let tokens = file
        .clients
        .iter()
        .filter_map(|client| client.direct_token.as_ref());
    let credentials: Vec<&UnexpandedText> = headers.chain(tokens).collect();
    let credentials = credentials
        .iter()
        .flat_map(|text| expand::referenced_variables(&text.text));
    variables.extend(credentials.map(str::to_owned));
    let secrets = file.secrets.iter().filter_map(|secret| secret.env.as_ref());
    variables.extend(secrets.map(|name| name.text.clone()));
    variables
}

#[cfg(test)]
mod tests {
    use super::super::{Config, ConfigError, parse_config};
    use super::*;

    fn parse_toml(text: &str, env: &EnvVars) -> Result<Config, ConfigError> {
        parse_config(text, "b.toml".as_ref(), env)
    }

    #[test]
    fn client_section_resolves_with_lazy_token() {
        let text = "[clients.claude]\nenabled = false\n[clients.codex]\n\
                    direct = \"https://${HOST}/mcp\"\ndirect_token = \"${TOKEN}\"\n\
                    keep_env = [\"OPENAI_API_KEY\"]\n";
        let env = EnvVars::from_pairs([("HOST", "h.example"), ("TOKEN", "t0k")]);
        let config = parse_toml(text, &env).unwrap();
        assert!(!config.clients[&ClientProgram::Claude].enabled);
        let codex = &config.clients[&ClientProgram::Codex];
        assert!(codex.enabled);
        assert_eq!(codex.keep_env, ["OPENAI_API_KEY"]);
        let direct = codex.direct.as_ref().unwrap();
        assert_eq!(direct.url, "https://h.example/mcp");
        let token = direct.token.as_ref().unwrap();
        assert_eq!(token.expand(), Ok("t0k".to_owned()));
        assert!(!format!("{config:?}").contains("t0k"));

        let config = parse_toml(text, &EnvVars::default()).unwrap();
        assert_eq!(config.clients[&ClientProgram::Codex].direct, None);
        assert_eq!(config.warnings.len(), 1, "{:?}", config.warnings);
    }

    #[test]
    fn invalid_client_section_is_an_error() {
        for (text, wanted) in [
            ("[clients.cladue]\n", "unknown key `cladue`"),
            ("[clients.codex]\ndirect_token = \"x\"\n", "for nowhere"),
            ("[clients.codex]\ndirect = \"nowhere\"\n", "cannot go to"),
            (
                "[clients.codex]\ndirect = \"http://h.example/\"\ndirect_token = \"x\"\n",
                "cannot go to",
            ),
            ("[clients.codex]\nenabled = 1\n", "true or false"),
        ] {
            let error = parse_toml(text, &EnvVars::default()).unwrap_err();
            let report = error.report();
            assert!(report.contains(wanted), "{text}: {report}");
        }
    }

    #[test]
    fn credential_variables_include_broken_servers() {
        let text = r#"
[servers.a]
command = "x"
args = ["${HOME}/code", "--key=${ARG_KEY}", "$${NOT_ONE}"]
env = { A = "${IN_ENV:-no}", B = "${PORT}" }
inherit_env = ["INHERITED_TOKEN", "LANG", "UNSET_TOKEN"]
[servers.b]
url = "https://h.example/?k=${IN_URL}"
headers = { Authorization = "Bearer ${PLAIN}", X = "${file:nowhere}" }
[secrets.tracker]
env = "NAMED"
[clients.codex]
direct = "https://h.example/"
direct_token = "${DIRECT}"
"#;
        let env = EnvVars::from_pairs([
            ("HOME", "/tmp"),
            ("PORT", "80"),
            ("LANG", "C.UTF-8"),
            ("ARG_KEY", "1"),
            ("IN_ENV", "swordfish"),
            ("INHERITED_TOKEN", "t"),
            ("IN_URL", "swordfish"),
            ("PLAIN", "80"),
            ("OTHER_TOKEN", "t"),
        ]);
        let config = parse_toml(text, &env).unwrap();
        assert_eq!(config.broken_servers.len(), 1);
        let found: Vec<_> = config
            .credential_variables
            .iter()
            .map(String::as_str)
            .collect();
        let wanted = [
            "ARG_KEY",
            "DIRECT",
            "INHERITED_TOKEN",
            "IN_ENV",
            "IN_URL",
            "NAMED",
            "PLAIN",
        ];
        assert_eq!(found, wanted);
    }
}

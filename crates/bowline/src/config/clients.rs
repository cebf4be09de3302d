//! What the file says of programs that are started with `run`: whether they may be, where they go
//! without a gateway, and which variables they must not see.

use std::collections::{BTreeMap, BTreeSet};

use bowline_link::http::endpoint::Endpoint;

use super::Warning;
use super::env::Env;
use super::expand::{self, Source, expand};
use super::file::{Agent, File, Text};
use super::frame::Problem;
use super::reach::{Ground, Template};
use super::secrets::is_worth_hiding;
use crate::clients::Client;

/// What the file says of one client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientConfig {
    /// Whether it may be started at all.
    pub enabled: bool,
    /// Where it goes where there is no gateway.
    pub direct: Option<Direct>,
    /// Variables that it sees although servers have them as secrets.
    pub keep_env: Vec<String>,
}

/// An endpoint that is not ours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Direct {
    /// Where it is.
    pub url: String,
    /// What goes there with every request.
    pub token: Option<Template>,
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

/// Reads what was written of clients.
pub(super) fn resolve(
    written: &[Agent],
    source: Source<'_>,
    warnings: &mut Vec<Warning>,
) -> Result<BTreeMap<Client, ClientConfig>, Problem> {
    let mut all = BTreeMap::new();
    for agent in written {
        let fallback = ClientConfig::default();
        let config = ClientConfig {
            enabled: agent.enabled.unwrap_or(fallback.enabled),
            direct: direct(agent, source, warnings)?,
            keep_env: agent
                .keep_env
                .iter()
                .map(|name| name.text.clone())
                .collect(),
        };
        all.insert(agent.client, config);
    }
    Ok(all)
}

fn direct(
    agent: &Agent,
    source: Source<'_>,
    warnings: &mut Vec<Warning>,
) -> Result<Option<Direct>, Problem> {
    let client = agent.client.name();
    let Some(url) = &agent.direct else {
        return match &agent.direct_token {
            None => Ok(None),
            Some(token) => {
                let message = format!("client `{client}` has a `direct_token` for nowhere");
                let problem = Problem::new(token.span.clone(), message, "`direct` is missing");
                Err(problem.help("add direct = \"https://...\""))
            }
        };
    };
    let unusable = |fault: String| {
        let message = format!("client `{client}` cannot go to this `direct` endpoint");
        Problem::new(url.span.clone(), message, fault)
    };
    let address = match expand(&url.text, source) {
        Ok(address) => address,
        Err(error) if error.is_fault_of_the_file() => return Err(unusable(error.to_string())),
        // It is needed only where there is no gateway.
        Err(error) => {
            let message = format!("client `{client}` has no direct endpoint: {error}");
            warnings.push(Warning {
                place: None,
                message,
            });
            return Ok(None);
        }
    };
    let endpoint = Endpoint::parse(&address).map_err(|error| unusable(error.to_string()))?;
    if agent.direct_token.is_some() && !endpoint.is_private() {
        let fault = "a token goes to other machines over https only";
        return Err(unusable(fault.to_owned()));
    }
    let token = agent.direct_token.as_ref();
    let token = token.map(|token| Template::new(&token.text, &Ground::new(source)));
    Ok(Some(Direct {
        url: address,
        token,
    }))
}

/// Returns the variables that hold credentials of servers: whoever uses those servers through a
/// gateway has no need of them.
pub(super) fn credentials(file: &File, env: &Env) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut note = |name: &str| {
        let value = env.raw(name).map(|value| value.to_string_lossy());
        if value.is_some_and(|value| is_worth_hiding(name, &value)) {
            found.insert(name.to_owned());
        }
    };
    for server in &file.servers {
        let env = server.env.iter().map(|(_, text)| text);
        let texts = server.args.iter().chain(&server.url).chain(env);
        for name in texts.flat_map(|text| expand::variables(&text.text)) {
            note(name);
        }
        for name in &server.inherit_env {
            note(&name.text);
        }
    }
    // These are credentials whatever they are called.
    let headers = file.servers.iter().flat_map(|server| &server.headers);
    let headers = headers.map(|(_, text)| text);
    let tokens = file
        .clients
        .iter()
        .filter_map(|one| one.direct_token.as_ref());
    let sent: Vec<&Text> = headers.chain(tokens).collect();
    let sent = sent.iter().flat_map(|text| expand::variables(&text.text));
    found.extend(sent.map(str::to_owned));
    let secrets = file.secrets.iter().filter_map(|secret| secret.env.as_ref());
    found.extend(secrets.map(|name| name.text.clone()));
    found
}

#[cfg(test)]
mod tests {
    use super::super::{Config, Error, parse};
    use super::*;

    fn read(text: &str, env: &Env) -> Result<Config, Error> {
        parse(text, "b.toml".as_ref(), env)
    }

    #[test]
    fn what_is_said_of_a_client_is_read_and_a_token_is_read_when_it_is_used() {
        let text = "[clients.claude]\nenabled = false\n[clients.codex]\n\
                    direct = \"https://${HOST}/mcp\"\ndirect_token = \"${TOKEN}\"\n\
                    keep_env = [\"OPENAI_API_KEY\"]\n";
        let env = Env::of([("HOST", "h.example"), ("TOKEN", "t0k")]);
        let config = read(text, &env).unwrap();
        assert!(!config.clients[&Client::Claude].enabled);
        let codex = &config.clients[&Client::Codex];
        assert!(codex.enabled);
        assert_eq!(codex.keep_env, ["OPENAI_API_KEY"]);
        let direct = codex.direct.as_ref().unwrap();
        assert_eq!(direct.url, "https://h.example/mcp");
        let token = direct.token.as_ref().unwrap();
        assert_eq!(token.value(), Ok("t0k".to_owned()));
        assert!(!format!("{config:?}").contains("t0k"));

        let config = read(text, &Env::default()).unwrap();
        assert_eq!(config.clients[&Client::Codex].direct, None);
        assert_eq!(config.warnings.len(), 1, "{:?}", config.warnings);
    }

    #[test]
    fn what_makes_no_sense_of_a_client_is_an_error_with_its_place() {
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
            let error = read(text, &Env::default()).unwrap_err();
            let report = error.report();
            assert!(report.contains(wanted), "{text}: {report}");
        }
    }

    #[test]
    fn variables_that_hold_credentials_of_servers_are_known_also_of_broken_ones() {
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
        let env = Env::of([
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
        let config = read(text, &env).unwrap();
        assert_eq!(config.broken.len(), 1);
        let found: Vec<_> = config.credentials.iter().map(String::as_str).collect();
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

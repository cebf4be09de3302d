//! What this machine offers as an executor: what its own config and command line say, and nothing
//! that comes from the network.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bowline_core::egress::{Host, Rule};
use bowline_host::executor::{Allowed, Credential, NoSecret, Offer, Secrets};
use bowline_link::StdioLimits;
use bowline_link::http::endpoint::Endpoint;
use bowline_link::stdio::{Reaper, StdioSpec};

use crate::assemble::{Ground, child_of};
use crate::config::{Config, Env, HeldSecret, Reach, ServerConfig};
use crate::{state, telemetry};

/// Returns what is offered under this name.
#[must_use]
pub(crate) fn offer(
    name: &str,
    config: &Config,
    allow: &[Rule],
    (ground, env): (&Ground, &Env),
    learns: &telemetry::Secrets,
) -> Offer {
    let hidden = ground.hidden(config, env);
    let ground = (ground, hidden.as_slice());
    let all = config.servant.allow.iter().chain(allow);
    let servers = config.servers.iter();
    Offer {
        egress: Allowed {
            all: all.cloned().collect(),
            servers: config.servant.servers.clone(),
        },
        servers: servers
            .filter_map(|server| Some((Arc::clone(&server.name), started(server, ground, env)?)))
            .collect(),
        secrets: Arc::new(Held {
            named: config.servant.secrets.clone(),
            learns: learns.clone(),
        }),
        ..Offer::new(name)
    }
}

/// Returns a credential that is read for every connection, so that it can be changed in place.
#[must_use]
pub fn reading(file: &Path) -> Credential {
    let file: PathBuf = file.to_owned();
    Credential::reading(move || {
        let token = state::read_token(&file).map_err(std::io::Error::other)?;
        Ok(token.expose().to_owned())
    })
}

/// Returns how a server is started; nothing where it is not started here.
fn started(server: &ServerConfig, ground: (&Ground, &[PathBuf]), env: &Env) -> Option<StdioSpec> {
    let Reach::Child(child) = &server.reach else {
        return None;
    };
    let child = child_of(child, ground, env);
    let reaper = child.reaper.map(|(program, args)| Reaper { program, args });
    Some(StdioSpec {
        server: Arc::clone(&server.name),
        command: child.command,
        args: child.args,
        env: child.env,
        cwd: child.cwd,
        reaper,
        child_limits: child.limits,
        sandbox: child.sandbox,
        // There is no port of ours to close.
        launcher: None,
        instance: None,
        owner: None,
        opening: server.speaks.into(),
        limits: StdioLimits::default(),
    })
}

/// Secrets that are read when they are sent.
#[derive(Debug)]
struct Held {
    named: BTreeMap<Arc<str>, HeldSecret>,
    /// Keeps them out of logs.
    learns: telemetry::Secrets,
}

impl Secrets for Held {
    fn names(&self) -> Vec<Arc<str>> {
        self.named.keys().cloned().collect()
    }

    fn read(&self, name: &str, to: &Endpoint) -> Result<String, NoSecret> {
        let held = self.named.get(name).ok_or(NoSecret::Unknown)?;
        let host = Host::parse(to.uri().host().unwrap_or_default());
        let is_there = host.is_some_and(|host| held.to.names(&host, to.port()));
        if !is_there {
            return Err(NoSecret::NotThere);
        }
        let value = held.value.value();
        let value = value.map_err(|reason| NoSecret::Unreadable(reason.into()))?;
        self.learns
            .learn(&format!("executor secret {name}"), &value);
        Ok(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config;

    const FILE: &str = r#"
[executor]
allow = ["a.example:443"]
[executor.servers.tracker]
allow = ["10.0.0.1:80"]
[executor.secrets.tracker]
value = "${TOKEN}"
to = ["a.example:443", "10.0.0.1:80"]
[executor.secrets.all]
value = "x"
to = ["b.example:443"]
[executor.secrets.lost]
value = "${UNSET}"
to = ["a.example:443"]
[servers.files]
command = "files"
args = ["a"]
[servers.far]
url = "https://far.example/mcp"
"#;

    fn made() -> Offer {
        let env = Env::of([("TOKEN", "canary"), ("PATH", "/bin")]);
        let config = config::parse(FILE, Path::new("/etc/b/b.toml"), &env).unwrap();
        let allow = ["b.example:*".parse().unwrap()];
        let learns = telemetry::Secrets::default();
        offer(
            "office",
            &config,
            &allow,
            (&Ground::new("/own".into(), Path::new("/state")), &env),
            &learns,
        )
    }

    #[test]
    fn an_executor_offers_what_its_own_config_and_command_line_say_and_nothing_else() {
        let offer = made();
        assert_eq!(&*offer.name, "office");
        let shown = |server: &str| -> Vec<String> {
            let egress = offer.egress.of(server).unwrap();
            egress.rules().iter().map(ToString::to_string).collect()
        };
        assert_eq!(shown("other"), ["a.example:443", "b.example:*"]);
        assert_eq!(
            shown("tracker"),
            ["a.example:443", "b.example:*", "10.0.0.1:80"]
        );
        let names: Vec<_> = offer.servers.keys().map(AsRef::as_ref).collect();
        assert_eq!(names, ["files"]);
        assert_eq!(offer.servers["files"].command, "files");
    }

    #[test]
    fn a_secret_is_read_for_its_own_addresses_only() {
        let offer = made();
        let read = |name: &str, url: &str| {
            let to = Endpoint::parse(url).unwrap();
            offer.secrets.read(name, &to)
        };
        assert_eq!(read("tracker", "https://a.example/x").unwrap(), "canary");
        assert_eq!(read("tracker", "http://10.0.0.1").unwrap(), "canary");
        for url in [
            "https://b.example/",
            "http://a.example/",
            "https://a.example:444/",
            "https://a.example.b.example/",
            "https://0x0a.1/",
        ] {
            assert_eq!(read("tracker", url), Err(NoSecret::NotThere), "{url}");
        }
        assert_eq!(read("all", "https://b.example/").unwrap(), "x");
        assert_eq!(read("none", "https://a.example/"), Err(NoSecret::Unknown));
        let lost = read("lost", "https://a.example/");
        assert!(matches!(lost, Err(NoSecret::Unreadable(_))), "{lost:?}");
        assert!(!format!("{:?}", offer.secrets).contains("canary"));
    }
}

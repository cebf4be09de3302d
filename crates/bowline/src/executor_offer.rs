//! Builds the offer of this machine as an executor. Only the local config and command line count;
//! nothing comes from the network.

use std::collections::BTreeMap;
use std::sync::Arc;

use bowline_core::egress::{EgressHost, EgressRule};
use bowline_host::executor::{EgressRules, ExecutorOffer, ExecutorSecrets, SecretError};
use bowline_link::StdioLimits;
use bowline_link::http::endpoint::HttpEndpoint;
use bowline_link::stdio::{ReaperCommand, StdioSpec};

use crate::assemble::{ChildDefaults, ChildSpecContext, build_child_spec};
use crate::telemetry;
use bowline_config::{Config, EnvVars, OfferedSecret, ServerConfig, UpstreamConfig};

/// Builds the offer under this name.
#[must_use]
pub(crate) fn build_offer(
    name: &str,
    config: &Config,
    allow: &[EgressRule],
    child_defaults: &ChildDefaults,
    env: &EnvVars,
    redactor: &telemetry::LogRedactor,
) -> ExecutorOffer {
    let hidden = child_defaults.hidden_paths(config, env);
    let context = ChildSpecContext {
        defaults: child_defaults,
        hidden: &hidden,
        env,
    };
    let all = config.executor_offer.allow.iter().chain(allow);
    let servers = config.servers.iter();
    ExecutorOffer {
        egress: EgressRules {
            all: all.cloned().collect(),
            servers: config.executor_offer.servers.clone(),
        },
        servers: servers
            .filter_map(|server| {
                Some((Arc::clone(&server.name), build_stdio_spec(server, context)?))
            })
            .collect(),
        secrets: Arc::new(OfferedSecrets {
            secrets: config.executor_offer.secrets.clone(),
            redactor: redactor.clone(),
        }),
        ..ExecutorOffer::new(name)
    }
}

/// Builds the spec of a server started on this machine; `None` for any remote server.
fn build_stdio_spec(server: &ServerConfig, context: ChildSpecContext<'_>) -> Option<StdioSpec> {
    let UpstreamConfig::Child(child) = &server.upstream else {
        return None;
    };
    let child = build_child_spec(child, context);
    let reaper = child
        .reaper
        .map(|(program, args)| ReaperCommand { program, args });
    Some(StdioSpec {
        server: Arc::clone(&server.name),
        command: child.command,
        args: child.args,
        env: child.env,
        cwd: child.cwd,
        reaper,
        child_limits: child.limits,
        sandbox: child.sandbox,
        // An executor has no port of its own to protect.
        launcher: None,
        instance: None,
        owner: None,
        negotiation: server.era_setting.into(),
        limits: StdioLimits::default(),
    })
}

/// Secrets offered by this executor, read at the time of use.
#[derive(Debug)]
struct OfferedSecrets {
    secrets: BTreeMap<Arc<str>, OfferedSecret>,
    /// Redacts the secrets in logs.
    redactor: telemetry::LogRedactor,
}

impl ExecutorSecrets for OfferedSecrets {
    fn names(&self) -> Vec<Arc<str>> {
        self.secrets.keys().cloned().collect()
    }

    fn read(&self, name: &str, to: &HttpEndpoint) -> Result<String, SecretError> {
        let secret = self.secrets.get(name).ok_or(SecretError::Unknown)?;
        let host = EgressHost::parse(to.uri().host().unwrap_or_default());
        let is_allowed = host.is_some_and(|host| secret.to.has_rule_for(&host, to.port()));
        if !is_allowed {
            return Err(SecretError::NotForAddress);
        }
        let value = secret.value.expand();
        let value = value.map_err(|reason| SecretError::Unreadable(reason.into()))?;
        self.redactor
            .add_secret(&format!("executor secret {name}"), &value);
        Ok(value)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

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

    fn test_offer() -> ExecutorOffer {
        let env = EnvVars::from_pairs([("TOKEN", "canary"), ("PATH", "/bin")]);
        let config = bowline_config::parse_config(FILE, Path::new("/etc/b/b.toml"), &env).unwrap();
        let allow = ["b.example:*".parse().unwrap()];
        let learns = telemetry::LogRedactor::default();
        build_offer(
            "office",
            &config,
            &allow,
            &ChildDefaults::new("/own".into(), Path::new("/state")),
            &env,
            &learns,
        )
    }

    #[test]
    fn offer_holds_local_config_and_arguments_only() {
        let offer = test_offer();
        assert_eq!(&*offer.name, "office");
        let shown = |server: &str| -> Vec<String> {
            let egress = offer.egress.egress_for(server).unwrap();
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
    fn secret_is_read_for_allowed_addresses_only() {
        let offer = test_offer();
        let read = |name: &str, url: &str| {
            let to = HttpEndpoint::parse(url).unwrap();
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
            assert_eq!(
                read("tracker", url),
                Err(SecretError::NotForAddress),
                "{url}"
            );
        }
        assert_eq!(read("all", "https://b.example/").unwrap(), "x");
        assert_eq!(
            read("none", "https://a.example/"),
            Err(SecretError::Unknown)
        );
        let lost = read("lost", "https://a.example/");
        assert!(matches!(lost, Err(SecretError::Unreadable(_))), "{lost:?}");
        assert!(!format!("{:?}", offer.secrets).contains("canary"));
    }
}

//! Settings of dialled executors, and of this machine as an executor.

use std::collections::BTreeMap;
use std::sync::Arc;

use bowline_core::egress::{EgressAllowlist, EgressRule};
pub use bowline_host::executor::ExecutorProtocol;
use bowline_link::http::endpoint::{EndpointError, HttpEndpoint};

use super::config_problem::{ConfigProblem, position_at};
use super::expand::ExpandSource;
use super::file::{self, UnexpandedText};
use super::upstream_config::{ConfigTemplate, TemplateContext};
use super::{Config, ConfigWarning};

/// Protocols spoken with executors.
pub const PROTOCOLS: [ExecutorProtocol; 2] =
    [ExecutorProtocol::Bowline, ExecutorProtocol::ExecServer];

/// An executor to dial.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExecutorConfig {
    /// URL of the executor.
    pub url: HttpEndpoint,
    /// Protocol of the executor.
    pub protocol: ExecutorProtocol,
    /// Token sent to the executor, read for every connection.
    pub token: Option<ConfigTemplate>,
}

/// Settings of this machine as an executor.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExecutorOfferConfig {
    /// Destinations permitted for every server of the gateway.
    pub allow: Vec<EgressRule>,
    /// Additional destinations of single servers.
    pub servers: BTreeMap<Arc<str>, Vec<EgressRule>>,
    /// Secrets filled into requests, by name.
    pub secrets: BTreeMap<Arc<str>, OfferedSecret>,
}

/// A secret filled into requests by the executor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OfferedSecret {
    /// Read on every use.
    pub value: ConfigTemplate,
    /// The only permitted destinations of the secret.
    pub to: EgressAllowlist,
}

/// Parses the address of an executor or gateway: `ws` or `http`, with or without TLS.
pub(crate) fn parse_endpoint(text: &str) -> Result<HttpEndpoint, EndpointError> {
    let text = text.trim();
    let scheme = text.split_once("://").map(|(scheme, _)| scheme);
    let rest = |scheme: &str| text.get(scheme.len()..).unwrap_or_default();
    match scheme.map(str::to_ascii_lowercase).as_deref() {
        Some("ws") => HttpEndpoint::parse(&format!("http{}", rest("ws"))),
        Some("wss") => HttpEndpoint::parse(&format!("https{}", rest("wss"))),
        _ => HttpEndpoint::parse(text),
    }
}

/// Resolves the executor sections of the file.
pub(super) fn resolve_executors(
    sections: &[file::ExecutorSection],
    offer: &file::ExecutorOfferSection,
    text: &str,
    source: ExpandSource<'_>,
    config: &mut Config,
    problems: &mut Vec<ConfigProblem>,
) {
    let context = TemplateContext::new(source);
    for section in sections {
        match resolve_dialled(section, &context) {
            Ok(executor) => {
                warn_about_executor(&mut config.warnings, section, &executor, text);
                config
                    .executors
                    .insert(section.name.as_str().into(), executor);
            }
            Err(problem) => problems.push(problem),
        }
    }
    config.executor_offer = resolve_offer(offer, &context);
    for secret in &offer.secrets {
        let secret_config = config.executor_offer.secrets.get(secret.name.as_str());
        if let Some(Err(reason)) = secret_config.map(|secret_config| secret_config.value.expand()) {
            let at = secret.value.as_ref().map(|value| value.span.start);
            config.warnings.push(ConfigWarning {
                position: at.map(|at| position_at(text, at)),
                message: format!("`executor.secrets.{}`: {reason}", secret.name),
            });
        }
    }
}

fn resolve_dialled(
    section: &file::ExecutorSection,
    context: &TemplateContext,
) -> Result<ExecutorConfig, ConfigProblem> {
    let name = &section.name;
    let Some(url) = &section.url else {
        let message = format!("executor `{name}` has no `url`");
        let problem = ConfigProblem::new(section.span.clone(), message, "`url` is missing");
        return Err(problem.with_help(
            "add url = \"ws://HOST:PORT\", or remove the table: an executor that joins needs none",
        ));
    };
    let endpoint = parse_endpoint(&url.text).map_err(|error| {
        let message = format!("executor `{name}` cannot be reached at this `url`");
        let problem = ConfigProblem::new(url.span.clone(), message, error.to_string());
        problem.with_help("for instance url = \"wss://executor.example:8790\"")
    })?;
    Ok(ExecutorConfig {
        url: endpoint,
        protocol: section.protocol,
        token: (section.token.as_ref()).map(|token| ConfigTemplate::new(&token.text, context)),
    })
}

fn warn_about_executor(
    warnings: &mut Vec<ConfigWarning>,
    section: &file::ExecutorSection,
    executor: &ExecutorConfig,
    text: &str,
) {
    let mut add = |at: &UnexpandedText, message: String| {
        warnings.push(ConfigWarning {
            position: Some(position_at(text, at.span.start)),
            message,
        });
    };
    let name = &section.name;
    if let Some(url) = section.url.as_ref().filter(|_| !executor.url.is_private()) {
        let message =
            format!("executor `{name}` is another machine, and its `url` is not encrypted");
        add(url, message);
    }
    if let (Some(token), Some(template)) = (&section.token, &executor.token)
        && let Err(reason) = template.expand()
    {
        add(token, format!("executor `{name}` has no token: {reason}"));
    }
}

fn resolve_offer(
    offer: &file::ExecutorOfferSection,
    context: &TemplateContext,
) -> ExecutorOfferConfig {
    let servers = offer.servers.iter();
    let mut offer_config = ExecutorOfferConfig {
        allow: offer.allow.clone(),
        servers: servers
            .map(|(name, allow)| (name.as_str().into(), allow.clone()))
            .collect(),
        secrets: BTreeMap::new(),
    };
    for secret in &offer.secrets {
        // The parser already reported a missing value.
        if let Some(value) = &secret.value {
            let to = secret.to.clone();
            let offered = OfferedSecret {
                value: ConfigTemplate::new(&value.text, context),
                // The parser already limits the number of rules.
                to: EgressAllowlist::new(to).unwrap_or_default(),
            };
            offer_config
                .secrets
                .insert(secret.name.as_str().into(), offered);
        }
    }
    offer_config
}

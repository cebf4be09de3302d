//! Resolves the secrets section: origins of secrets, and templates to watch for changes.

use std::sync::Arc;

use super::config_problem::ConfigProblem;
use super::expand::{ExpandSource, expand_text, list_references, referenced_secrets};
use super::file::{ConfigFile, SecretSection, ServerSection, UnexpandedText};
use super::resolve_server::program_path;
use super::upstream_config::{ConfigTemplate, TemplateContext};
use crate::secrets::secret_watch::{TemplateSet, WatchedTemplates};
use crate::secrets::{
    MAX_AGE_DEFAULT, SecretOrigin, SecretProgram, SecretSources, SecretVault, SecretsConfig,
};

/// Stands for the user of a secret that no server uses.
const EXECUTOR_USER: &str = "(executor)";

/// Resolves the origins of a file's secrets.
pub(super) fn resolve_secrets(
    file: &ConfigFile,
    source: ExpandSource<'_>,
    vault: &Arc<SecretVault>,
    problems: &mut Vec<ConfigProblem>,
) -> SecretSources {
    let mut config = SecretsConfig {
        store: file.secret_store,
        ..SecretsConfig::default()
    };
    for secret in &file.secrets {
        match resolve_origin(secret, source) {
            Ok(origin) => {
                config.named.insert(secret.name.clone(), origin);
            }
            Err(problem) => problems.push(problem),
        }
    }
    SecretSources::new(vault, config)
}

fn resolve_origin(
    secret: &SecretSection,
    source: ExpandSource<'_>,
) -> Result<SecretOrigin, ConfigProblem> {
    let name = &secret.name;
    let problem_at =
        |message: String, label: &str| ConfigProblem::new(secret.span.clone(), message, label);
    let text = |text: &UnexpandedText| {
        let expanded = expand_text(&text.text, source);
        expanded.map_err(|error| {
            let message = format!("`secrets.{name}` cannot be expanded");
            ConfigProblem::new(text.span.clone(), message, error.to_string())
        })
    };
    if secret.every.is_some() && secret.command.is_none() {
        let message = format!("secret `{name}` has `every` and no `command`");
        return Err(problem_at(message, "only a command is run again"));
    }
    match (&secret.env, &secret.file, &secret.command) {
        (Some(env), None, None) => Ok(SecretOrigin::Env(env.text.clone())),
        (None, Some(file), None) => Ok(SecretOrigin::File(source.directory.join(text(file)?))),
        (None, None, Some(words)) => {
            let words: Vec<_> = words.iter().map(text).collect::<Result<_, _>>()?;
            let Some((program, args)) = words.split_first().filter(|(first, _)| !first.is_empty())
            else {
                let message = format!("secret `{name}` has an empty `command`");
                return Err(problem_at(message, "no program"));
            };
            Ok(SecretOrigin::Command(Arc::new(SecretProgram {
                program: program_path(program, source.directory),
                args: args.to_vec(),
                directory: source.directory.to_owned(),
                max_age: secret.every.unwrap_or(MAX_AGE_DEFAULT),
            })))
        }
        (None, None, None) => {
            let message = format!("secret `{name}` comes from nowhere");
            let problem = problem_at(message, "one of `env`, `file` and `command`");
            Err(problem.with_help(format!(
                "or remove [secrets.{name}], and run: bowline secret set {name}"
            )))
        }
        _ => {
            let message = format!("secret `{name}` comes from more than one place");
            Err(problem_at(
                message,
                "keep one of `env`, `file` and `command`",
            ))
        }
    }
}

/// Runs the programs of all needed secrets in parallel.
pub(super) fn prefetch_secrets(file: &ConfigFile, sources: &SecretSources) {
    let texts = file.servers.iter().flat_map(server_texts);
    let texts = texts.chain(executor_texts(file));
    sources.prefetch(texts.flat_map(|text| referenced_secrets(&text.text)));
}

/// Returns the texts needed by executors: tokens of dialled ones, and offered secrets.
fn executor_texts(file: &ConfigFile) -> impl Iterator<Item = &UnexpandedText> {
    let tokens = file
        .executors
        .iter()
        .filter_map(|executor| executor.token.as_ref());
    let secrets = file.executor_offer.secrets.iter();
    tokens.chain(secrets.filter_map(|secret| secret.value.as_ref()))
}

/// Returns pairs of secret and using server.
pub(super) fn secret_uses(file: &ConfigFile) -> Vec<(String, String)> {
    let of_executors = executor_texts(file).flat_map(|text| referenced_secrets(&text.text));
    let of_executors = of_executors.map(|name| (name.to_owned(), EXECUTOR_USER.to_owned()));
    let mut uses: Vec<_> = file
        .servers
        .iter()
        .flat_map(|server| {
            let names = server_texts(server).flat_map(|text| referenced_secrets(&text.text));
            names.map(|name| (name.to_owned(), server.name.clone()))
        })
        .chain(of_executors)
        .collect();
    uses.sort();
    uses.dedup();
    uses
}

fn server_texts(server: &ServerSection) -> impl Iterator<Item = &UnexpandedText> {
    let headers = server.headers.iter().map(|(_, text)| text);
    headers.chain(start_texts(server))
}

/// Returns the texts needed to start or reach a server.
fn start_texts(server: &ServerSection) -> impl Iterator<Item = &UnexpandedText> {
    let single = [&server.command, &server.url, &server.cwd];
    let env = server.env.iter().map(|(_, text)| text);
    single.into_iter().flatten().chain(&server.args).chain(env)
}

/// Returns the templates of a server to watch. Called before the section is resolved, so changes in
/// between are detected.
pub(super) fn watched_templates(
    server: &ServerSection,
    name: &str,
    source: ExpandSource<'_>,
) -> WatchedTemplates {
    let context = TemplateContext::new(source);
    let template = |text: &UnexpandedText| ConfigTemplate::new(&text.text, &context);
    let request_texts = server.headers.iter().map(|(_, text)| text);
    // Secrets filled in by an executor change there and take effect at once.
    let request_texts = request_texts.filter(|text| {
        !list_references(&text.text).any(|reference| reference.starts_with("executor:"))
    });
    WatchedTemplates {
        server: name.into(),
        request_templates: TemplateSet::from_templates(request_texts.map(template)),
        start_templates: TemplateSet::from_templates(start_texts(server).map(template)),
    }
}

//! From what the file says of secrets to where they come from and what is watched for changes.

use std::sync::Arc;

use super::expand::{Source, expand, references, secrets_in};
use super::file::{File, Secret, Server, Text};
use super::frame::Problem;
use super::reach::{Ground, Template};
use super::resolve::program_path;
use crate::secrets::follow::{Texts, Watched};
use crate::secrets::{Command, EVERY, Origin, SecretsConfig, Sources, Vault};

/// Who needs a secret that no server does.
const EXECUTOR: &str = "(executor)";

/// Returns where the secrets of a file come from.
pub(super) fn sources(
    file: &File,
    source: Source<'_>,
    vault: &Arc<Vault>,
    problems: &mut Vec<Problem>,
) -> Sources {
    let mut config = SecretsConfig {
        store: file.secret_store,
        ..SecretsConfig::default()
    };
    for secret in &file.secrets {
        match origin(secret, source) {
            Ok(origin) => {
                config.named.insert(secret.name.clone(), origin);
            }
            Err(problem) => problems.push(problem),
        }
    }
    Sources::new(vault, config)
}

fn origin(secret: &Secret, source: Source<'_>) -> Result<Origin, Problem> {
    let name = &secret.name;
    let told = |message: String, label: &str| Problem::new(secret.span.clone(), message, label);
    let text = |text: &Text| {
        let expanded = expand(&text.text, source);
        expanded.map_err(|error| {
            let message = format!("`secrets.{name}` cannot be expanded");
            Problem::new(text.span.clone(), message, error.to_string())
        })
    };
    if secret.every.is_some() && secret.command.is_none() {
        let message = format!("secret `{name}` has `every` and no `command`");
        return Err(told(message, "only a command is run again"));
    }
    match (&secret.env, &secret.file, &secret.command) {
        (Some(env), None, None) => Ok(Origin::Env(env.text.clone())),
        (None, Some(file), None) => Ok(Origin::File(source.directory.join(text(file)?))),
        (None, None, Some(words)) => {
            let words: Vec<_> = words.iter().map(text).collect::<Result<_, _>>()?;
            let Some((program, args)) = words.split_first().filter(|(first, _)| !first.is_empty())
            else {
                let message = format!("secret `{name}` has an empty `command`");
                return Err(told(message, "no program"));
            };
            Ok(Origin::Command(Arc::new(Command {
                program: program_path(program, source.directory),
                args: args.to_vec(),
                directory: source.directory.to_owned(),
                every: secret.every.unwrap_or(EVERY),
            })))
        }
        (None, None, None) => {
            let message = format!("secret `{name}` comes from nowhere");
            let problem = told(message, "one of `env`, `file` and `command`");
            Err(problem.help(format!(
                "or remove [secrets.{name}], and run: bowline secret set {name}"
            )))
        }
        _ => {
            let message = format!("secret `{name}` comes from more than one place");
            Err(told(message, "keep one of `env`, `file` and `command`"))
        }
    }
}

/// Runs the programs that servers need secrets of, all at once rather than one by one.
pub(super) fn warm(file: &File, sources: &Sources) {
    let texts = file.servers.iter().flat_map(texts);
    let texts = texts.chain(of_executors(file));
    sources.warm(texts.flat_map(|text| secrets_in(&text.text)));
}

/// What executors need: credentials of those that are dialled, and what this one fills in.
fn of_executors(file: &File) -> impl Iterator<Item = &Text> {
    let tokens = file.executors.iter().filter_map(|one| one.token.as_ref());
    let held = file.servant.secrets.iter();
    tokens.chain(held.filter_map(|secret| secret.value.as_ref()))
}

/// Returns the names of the secrets that servers need, each with the servers.
pub(super) fn uses(file: &File) -> Vec<(String, String)> {
    let of_executors = of_executors(file).flat_map(|text| secrets_in(&text.text));
    let of_executors = of_executors.map(|name| (name.to_owned(), EXECUTOR.to_owned()));
    let mut uses: Vec<_> = file
        .servers
        .iter()
        .flat_map(|server| {
            let names = texts(server).flat_map(|text| secrets_in(&text.text));
            names.map(|name| (name.to_owned(), server.name.clone()))
        })
        .chain(of_executors)
        .collect();
    uses.sort();
    uses.dedup();
    uses
}

fn texts(server: &Server) -> impl Iterator<Item = &Text> {
    let headers = server.headers.iter().map(|(_, text)| text);
    headers.chain(started(server))
}

/// What a server is started or found with.
fn started(server: &Server) -> impl Iterator<Item = &Text> {
    let single = [&server.command, &server.url, &server.cwd];
    let env = server.env.iter().map(|(_, text)| text);
    single.into_iter().flatten().chain(&server.args).chain(env)
}

/// Returns what is looked at of a server. It is made before the server's entry is read, so that
/// what changes in between is noticed.
pub(super) fn watched(server: &Server, name: &str, source: Source<'_>) -> Watched {
    let ground = Ground::new(source);
    let template = |text: &Text| Template::new(&text.text, &ground);
    let sent = server.headers.iter().map(|(_, text)| text);
    // What an executor fills in changes there, and counts at once.
    let sent = sent.filter(|text| !references(&text.text).any(|one| one.starts_with("executor:")));
    Watched {
        server: name.into(),
        sent: Texts::of(sent.map(template)),
        started: Texts::of(started(server).map(template)),
    }
}

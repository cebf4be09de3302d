//! Programs that can be started with one endpoint of ours beside whatever they have: which, and
//! with which arguments. No argument holds a secret: the client takes it from its environment.

use serde::Serialize;

/// The variable that holds the token of a run. It is one of our own, because a settings file of
/// the user may set any that is in common use.
pub const TOKEN_VARIABLE: &str = "BOWLINE_SESSION_TOKEN";

/// What the endpoint is called in the client where nobody says otherwise.
pub const ENTRY_NAME: &str = "bowline";

/// Characters of that name.
pub const ENTRY_NAME_CHARS_MAX: usize = 32;

/// A program that can be started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Client {
    /// Claude Code.
    Claude,
    /// The Codex command line.
    Codex,
}

/// How a client reaches its endpoint.
#[derive(Clone, Copy, Debug)]
pub struct Entry<'a> {
    /// What it is called there.
    pub name: &'a str,
    /// Where it is.
    pub url: &'a str,
    /// Whether a token goes with every request.
    pub token: Token,
}

/// Whether a token goes with every request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Token {
    /// The one in [`TOKEN_VARIABLE`].
    FromEnvironment,
    /// None.
    None,
}

/// The JSON that Claude is given, its members in the order that people know.
#[derive(Debug, Serialize)]
struct McpConfig<'a> {
    #[serde(rename = "mcpServers")]
    servers: std::collections::BTreeMap<&'a str, McpServer<'a>>,
}

#[derive(Debug, Serialize)]
struct McpServer<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    url: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    headers: Option<Headers>,
}

#[derive(Debug, Serialize)]
struct Headers {
    #[serde(rename = "Authorization")]
    authorization: String,
}

impl Client {
    /// Every client, as it is called on the command line and in the config.
    pub const NAMES: [&'static str; 2] = ["claude", "codex"];

    /// Returns the client of this name.
    #[must_use]
    pub fn of(name: &str) -> Option<Self> {
        match name {
            "claude" => Some(Self::Claude),
            "codex" => Some(Self::Codex),
            _ => None,
        }
    }

    /// Returns its name, which is that of its program as well.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Claude => "claude",
            Self::Codex => "codex",
        }
    }

    /// Returns the command that installs it.
    #[must_use]
    pub const fn installation(self) -> &'static str {
        match self {
            Self::Claude => "npm install -g @anthropic-ai/claude-code",
            Self::Codex => "npm install -g @openai/codex",
        }
    }

    /// Returns the arguments that add an endpoint to those the client has.
    #[must_use]
    pub fn arguments(self, entry: Entry<'_>) -> Vec<String> {
        match self {
            Self::Claude => vec!["--mcp-config".to_owned(), mcp_config(entry)],
            Self::Codex => overrides(entry),
        }
    }

    /// Returns the same before arguments of the user's own, of which the first is `next`.
    #[must_use]
    pub fn arguments_before(self, entry: Entry<'_>, next: Option<&str>) -> Vec<String> {
        match (self, next) {
            // It would take a word that follows for the name of another file.
            (Self::Claude, Some(word)) if !word.starts_with('-') => {
                vec![format!("--mcp-config={}", mcp_config(entry))]
            }
            (Self::Claude | Self::Codex, _) => self.arguments(entry),
        }
    }
}

/// Whether an endpoint can be called this: a bare key of TOML, and part of the names that a model
/// is shown.
#[must_use]
pub fn is_entry_name(name: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
    !name.is_empty()
        && name.len() <= ENTRY_NAME_CHARS_MAX
        && !name.starts_with('-')
        && name.chars().all(plain)
}

fn mcp_config(entry: Entry<'_>) -> String {
    let headers = match entry.token {
        Token::FromEnvironment => Some(Headers {
            authorization: format!("Bearer ${{{TOKEN_VARIABLE}}}"),
        }),
        Token::None => None,
    };
    let server = McpServer {
        kind: "http",
        url: entry.url,
        headers,
    };
    let config = McpConfig {
        servers: [(entry.name, server)].into(),
    };
    // Text and nothing else in it can be written.
    serde_json::to_string(&config).unwrap_or_default()
}

/// Strings of JSON are strings of TOML, as long as they hold no control characters.
fn overrides(entry: Entry<'_>) -> Vec<String> {
    let Entry { name, url, token } = entry;
    let quoted = |text: &str| serde_json::Value::from(text).to_string();
    let mut all = vec![
        "-c".to_owned(),
        format!("mcp_servers.{name}.url={}", quoted(url)),
    ];
    if token == Token::FromEnvironment {
        all.push("-c".to_owned());
        let variable = quoted(TOKEN_VARIABLE);
        all.push(format!(
            "mcp_servers.{name}.bearer_token_env_var={variable}"
        ));
    }
    all
}

/// Returns arguments as one line that a shell reads back as the same arguments.
#[must_use]
pub fn shell_line(arguments: &[String]) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_-./:=@%+,".contains(c);
    let quoted = arguments.iter().map(|argument| {
        if !argument.is_empty() && argument.chars().all(plain) {
            argument.clone()
        } else {
            format!("'{}'", argument.replace('\'', "'\\''"))
        }
    });
    quoted.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENTRY: Entry<'static> = Entry {
        name: "bowline",
        url: "http://127.0.0.1:7331/mcp",
        token: Token::FromEnvironment,
    };

    const JSON: &str = concat!(
        r#"{"mcpServers":{"bowline":{"type":"http","url":"http://127.0.0.1:7331/mcp","#,
        r#""headers":{"Authorization":"Bearer ${BOWLINE_SESSION_TOKEN}"}}}}"#
    );

    #[test]
    fn each_client_is_given_its_own_form_to_the_letter() {
        assert_eq!(Client::Claude.arguments(ENTRY), ["--mcp-config", JSON]);
        assert_eq!(
            Client::Codex.arguments(ENTRY),
            [
                "-c",
                r#"mcp_servers.bowline.url="http://127.0.0.1:7331/mcp""#,
                "-c",
                r#"mcp_servers.bowline.bearer_token_env_var="BOWLINE_SESSION_TOKEN""#,
            ]
        );
        let bare = Entry {
            token: Token::None,
            ..ENTRY
        };
        assert_eq!(Client::Codex.arguments(bare).len(), 2);
        let claude = Client::Claude.arguments(bare).join(" ");
        assert!(!claude.contains("headers"), "{claude}");
        for client in [Client::Claude, Client::Codex] {
            assert_eq!(Client::of(client.name()), Some(client));
            assert!(!client.arguments(ENTRY).join(" ").contains("--strict"));
        }
        let known = Client::NAMES.map(|name| Client::of(name).map(Client::name));
        assert_eq!(known, Client::NAMES.map(Some));
    }

    #[test]
    fn a_word_after_the_configuration_of_claude_is_not_taken_for_another_file() {
        let before = |next| Client::Claude.arguments_before(ENTRY, next);
        assert_eq!(before(Some("mcp")), [format!("--mcp-config={JSON}")]);
        assert_eq!(before(Some("-p")), ["--mcp-config", JSON]);
        assert_eq!(before(None), ["--mcp-config", JSON]);
        assert_eq!(
            Client::Codex.arguments_before(ENTRY, Some("mcp")),
            Client::Codex.arguments(ENTRY)
        );
    }

    #[test]
    fn a_shell_reads_the_line_back_as_the_same_arguments() {
        let odd = ["a b", "it's", "${X}", "", "-c", "x=1"].map(str::to_owned);
        let script = format!("printf '%s\\n' {}", shell_line(&odd));
        let output = std::process::Command::new("sh")
            .args(["-c", &script])
            .output()
            .unwrap();
        let read = String::from_utf8(output.stdout).unwrap();
        assert_eq!(read.lines().collect::<Vec<_>>(), odd);
    }

    #[test]
    fn an_endpoint_is_called_what_both_clients_can_say() {
        for good in ["bowline", "B_2", "0-x"] {
            assert!(is_entry_name(good), "{good}");
        }
        let long = "x".repeat(ENTRY_NAME_CHARS_MAX + 1);
        for bad in ["", "a.b", "a b", "-x", "é", "a\"b", &long] {
            assert!(!is_entry_name(bad), "{bad}");
        }
    }
}

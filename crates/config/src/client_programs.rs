//! Client programs that `bowline run` can start with the gateway's endpoint added to their own,
//! and the arguments to do so. No argument holds a secret: the client reads it from its
//! environment.

use serde::Serialize;

/// The variable with the token of a run. The name is specific to Bowline, because a settings file
/// of the user may set any common name.
pub const TOKEN_VARIABLE: &str = "BOWLINE_SESSION_TOKEN";

/// Default name of the endpoint in the client.
pub const ENDPOINT_NAME: &str = "bowline";

/// Maximum characters of the endpoint name.
pub const ENDPOINT_NAME_CHARS_MAX: usize = 32;

/// A client program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ClientProgram {
    /// Claude Code.
    Claude,
    /// The Codex command line.
    Codex,
}

/// The endpoint passed to a client.
#[derive(Clone, Copy, Debug)]
pub struct ClientEndpoint<'a> {
    /// Name of the endpoint in the client.
    pub name: &'a str,
    /// URL of the endpoint.
    pub url: &'a str,
    /// Credential sent with every request.
    pub token: TokenSource,
}

/// Credential sent with every request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenSource {
    /// The token in [`TOKEN_VARIABLE`].
    FromEnvironment,
    /// None.
    None,
}

/// The `--mcp-config` JSON of Claude Code, members in the customary order.
#[derive(Debug, Serialize)]
struct ClaudeMcpConfig<'a> {
    #[serde(rename = "mcpServers")]
    servers: std::collections::BTreeMap<&'a str, ClaudeMcpServer<'a>>,
}

#[derive(Debug, Serialize)]
struct ClaudeMcpServer<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    url: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    headers: Option<ClaudeHeaders>,
}

#[derive(Debug, Serialize)]
struct ClaudeHeaders {
    #[serde(rename = "Authorization")]
    authorization: String,
}

impl ClientProgram {
    /// All client names, as used on the command line and in the config.
    pub const NAMES: [&'static str; 2] = ["claude", "codex"];

    /// Parses a client name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "claude" => Some(Self::Claude),
            "codex" => Some(Self::Codex),
            _ => None,
        }
    }

    /// Returns the client name, equal to the name of its program.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Claude => "claude",
            Self::Codex => "codex",
        }
    }

    /// Returns the command to install the client.
    #[must_use]
    pub const fn install_command(self) -> &'static str {
        match self {
            Self::Claude => "npm install -g @anthropic-ai/claude-code",
            Self::Codex => "npm install -g @openai/codex",
        }
    }

    /// Returns the arguments to add an endpoint to the client's own ones.
    #[must_use]
    pub fn endpoint_arguments(self, endpoint: ClientEndpoint<'_>) -> Vec<String> {
        match self {
            Self::Claude => vec!["--mcp-config".to_owned(), claude_mcp_config(endpoint)],
            Self::Codex => codex_overrides(endpoint),
        }
    }

    /// Like [`arguments`](Self::endpoint_arguments), placed before user arguments that begin with
    /// `next`.
    #[must_use]
    pub fn arguments_before_user_args(
        self,
        endpoint: ClientEndpoint<'_>,
        next: Option<&str>,
    ) -> Vec<String> {
        match (self, next) {
            // Claude would take a following word for another config file.
            (Self::Claude, Some(word)) if !word.starts_with('-') => {
                vec![format!("--mcp-config={}", claude_mcp_config(endpoint))]
            }
            (Self::Claude | Self::Codex, _) => self.endpoint_arguments(endpoint),
        }
    }
}

/// Returns whether the name is valid for an endpoint: a bare TOML key, and part of the tool names
/// shown to a model.
#[must_use]
pub fn is_endpoint_name(name: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
    !name.is_empty()
        && name.len() <= ENDPOINT_NAME_CHARS_MAX
        && !name.starts_with('-')
        && name.chars().all(plain)
}

fn claude_mcp_config(endpoint: ClientEndpoint<'_>) -> String {
    let headers = match endpoint.token {
        TokenSource::FromEnvironment => Some(ClaudeHeaders {
            authorization: format!("Bearer ${{{TOKEN_VARIABLE}}}"),
        }),
        TokenSource::None => None,
    };
    let server = ClaudeMcpServer {
        kind: "http",
        url: endpoint.url,
        headers,
    };
    let config = ClaudeMcpConfig {
        servers: [(endpoint.name, server)].into(),
    };
    // A config of plain strings always serializes.
    serde_json::to_string(&config).unwrap_or_default()
}

/// Builds Codex overrides. JSON strings without control characters are valid TOML strings.
fn codex_overrides(endpoint: ClientEndpoint<'_>) -> Vec<String> {
    let ClientEndpoint { name, url, token } = endpoint;
    let quoted = |text: &str| serde_json::Value::from(text).to_string();
    let mut arguments = vec![
        "-c".to_owned(),
        format!("mcp_servers.{name}.url={}", quoted(url)),
    ];
    if token == TokenSource::FromEnvironment {
        arguments.push("-c".to_owned());
        let variable = quoted(TOKEN_VARIABLE);
        arguments.push(format!(
            "mcp_servers.{name}.bearer_token_env_var={variable}"
        ));
    }
    arguments
}

/// Quotes arguments as one shell line.
#[must_use]
pub fn quote_shell_line(arguments: &[String]) -> String {
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

    const TEST_ENDPOINT: ClientEndpoint<'static> = ClientEndpoint {
        name: "bowline",
        url: "http://127.0.0.1:7331/mcp",
        token: TokenSource::FromEnvironment,
    };

    const JSON: &str = concat!(
        r#"{"mcpServers":{"bowline":{"type":"http","url":"http://127.0.0.1:7331/mcp","#,
        r#""headers":{"Authorization":"Bearer ${BOWLINE_SESSION_TOKEN}"}}}}"#
    );

    #[test]
    fn each_client_gets_its_exact_arguments() {
        assert_eq!(
            ClientProgram::Claude.endpoint_arguments(TEST_ENDPOINT),
            ["--mcp-config", JSON]
        );
        assert_eq!(
            ClientProgram::Codex.endpoint_arguments(TEST_ENDPOINT),
            [
                "-c",
                r#"mcp_servers.bowline.url="http://127.0.0.1:7331/mcp""#,
                "-c",
                r#"mcp_servers.bowline.bearer_token_env_var="BOWLINE_SESSION_TOKEN""#,
            ]
        );
        let bare = ClientEndpoint {
            token: TokenSource::None,
            ..TEST_ENDPOINT
        };
        assert_eq!(ClientProgram::Codex.endpoint_arguments(bare).len(), 2);
        let claude = ClientProgram::Claude.endpoint_arguments(bare).join(" ");
        assert!(!claude.contains("headers"), "{claude}");
        for client in [ClientProgram::Claude, ClientProgram::Codex] {
            assert_eq!(ClientProgram::from_name(client.name()), Some(client));
            assert!(
                !client
                    .endpoint_arguments(TEST_ENDPOINT)
                    .join(" ")
                    .contains("--strict")
            );
        }
        let known = ClientProgram::NAMES
            .map(|name| ClientProgram::from_name(name).map(ClientProgram::name));
        assert_eq!(known, ClientProgram::NAMES.map(Some));
    }

    #[test]
    fn claude_config_does_not_swallow_next_word() {
        let before = |next| ClientProgram::Claude.arguments_before_user_args(TEST_ENDPOINT, next);
        assert_eq!(before(Some("mcp")), [format!("--mcp-config={JSON}")]);
        assert_eq!(before(Some("-p")), ["--mcp-config", JSON]);
        assert_eq!(before(None), ["--mcp-config", JSON]);
        assert_eq!(
            ClientProgram::Codex.arguments_before_user_args(TEST_ENDPOINT, Some("mcp")),
            ClientProgram::Codex.endpoint_arguments(TEST_ENDPOINT)
        );
    }

    #[test]
    fn shell_line_round_trips_through_sh() {
        let odd = ["a b", "it's", "${X}", "", "-c", "x=1"].map(str::to_owned);
        let script = format!("printf '%s\\n' {}", quote_shell_line(&odd));
        let output = std::process::Command::new("sh")
            .args(["-c", &script])
            .output()
            .unwrap();
        let read = String::from_utf8(output.stdout).unwrap();
        assert_eq!(read.lines().collect::<Vec<_>>(), odd);
    }

    #[test]
    fn endpoint_names_fit_both_clients() {
        for good in ["bowline", "B_2", "0-x"] {
            assert!(is_endpoint_name(good), "{good}");
        }
        let long = "x".repeat(ENDPOINT_NAME_CHARS_MAX + 1);
        for bad in ["", "a.b", "a b", "-x", "é", "a\"b", &long] {
            assert!(!is_endpoint_name(bad), "{bad}");
        }
    }
}

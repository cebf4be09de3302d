//! The arguments of `token` and `session`.

use clap::builder::PossibleValue;
use clap::{Args, Subcommand, ValueEnum};

use bowline_config::TokenLifetime;
use bowline_edge::TokenKind;

/// What to do with tokens.
#[derive(Debug, Subcommand)]
pub enum TokenCommand {
    /// Make a token; it is shown once
    Create(TokenCreateArgs),
    /// List tokens, without their secrets
    Ls,
    /// Replace the owner's token, and end what the old one opened
    RotateOwner,
    /// Narrow a token on every path that it is used on, at once
    Narrow {
        /// ID of a token
        #[arg(value_name = "ID")]
        token: String,
        /// Rules of the config, in place of those that it was narrowed by before
        #[arg(value_name = "CONTEXT", required_unless_present = "clear")]
        context: Vec<String>,
        /// Narrow it no more than when it was made
        #[arg(long, conflicts_with = "context")]
        clear: bool,
    },
    /// Revoke a token, or all of a principal, and end what they opened
    Revoke {
        /// ID of a token or name of a principal
        #[arg(value_name = "ID|PRINCIPAL")]
        token: String,
    },
}

/// What to do with sessions.
#[derive(Debug, Subcommand)]
pub enum SessionCommand {
    /// List sessions, those used last first
    Ls,
    /// Narrow a session, or the token that opened it
    Narrow {
        /// Beginning of the id of a session
        #[arg(value_name = "ID")]
        session: String,
        /// Rules of the config, in place of those that it was narrowed by before
        #[arg(value_name = "CONTEXT", required_unless_present = "clear")]
        context: Vec<String>,
        /// Narrow its token: this session, all others of the token, and what comes without one
        #[arg(long)]
        credential: bool,
        /// Narrow it no more
        #[arg(long, conflicts_with = "context")]
        clear: bool,
    },
    /// End a session, with all it has under way
    End {
        /// Beginning of the id of a session
        #[arg(value_name = "ID")]
        session: String,
    },
}

/// Options of `token create`.
#[derive(Args, Clone, Debug)]
pub struct TokenCreateArgs {
    /// Principal of the token
    #[arg(long, value_name = "NAME")]
    pub principal: String,
    /// Kind of holder
    #[arg(long, value_enum, default_value = "agent", value_name = "KIND")]
    pub kind: TokenKindArg,
    /// What that principal may do; needed unless the config gives it a role
    #[arg(long, value_name = "ROLE")]
    pub role: Option<String>,
    /// How long it lives, such as 12h or 30d, or never [default: `[tokens] lifetime`]
    #[arg(long, value_name = "DURATION", value_parser = parse_token_lifetime)]
    pub expires: Option<TokenLifetime>,
    /// See no more than this profile of the config shows, on every endpoint
    #[arg(long, value_name = "NAME")]
    pub profile: Option<String>,
    /// Narrow it by this rule of the config; may stand several times
    #[arg(long, value_name = "NAME")]
    pub context: Vec<String>,
}

fn parse_token_lifetime(text: &str) -> Result<TokenLifetime, String> {
    let expected = || format!("expected {}", TokenLifetime::EXPECTED);
    TokenLifetime::parse(text).ok_or_else(expected)
}

/// A token kind as an argument.
#[derive(Clone, Copy, Debug)]
pub struct TokenKindArg(pub TokenKind);

impl ValueEnum for TokenKindArg {
    fn value_variants<'a>() -> &'a [Self] {
        const {
            &[
                Self(TokenKind::Agent),
                Self(TokenKind::Executor),
                Self(TokenKind::Auditor),
                Self(TokenKind::Viewer),
            ]
        }
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        let help = match self.0 {
            TokenKind::Agent => {
                "An agent, or a peer of the broker. A token that says no kind is one of these"
            }
            TokenKind::Executor => {
                "An executor. It joins at `/executor`, and neither calls tools nor asks the API"
            }
            TokenKind::Auditor => {
                "A person or program that reads the audit trail and the status, and nothing else"
            }
            TokenKind::Viewer => {
                "A person or program that reads how the gateway and its servers do, and no payload"
            }
        };
        Some(PossibleValue::new(self.0.name()).help(help))
    }
}

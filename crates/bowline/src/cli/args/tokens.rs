//! The words of `token`.

use std::time::Duration;

use clap::{Args, Subcommand};

use super::life;
use crate::tokens::TokenKind;

/// What to do with tokens.
#[derive(Debug, Subcommand)]
pub enum TokenCommand {
    /// Make a token; it is shown once
    Create(NewToken),
    /// List tokens, without their secrets
    Ls,
    /// Replace the owner's token, and end what the old one opened
    RotateOwner,
    /// Revoke a token, or all of a principal, and end what they opened
    Revoke {
        /// ID of a token or name of a principal
        #[arg(value_name = "ID|PRINCIPAL")]
        token: String,
    },
}

/// Options of `token create`.
#[derive(Args, Clone, Debug)]
pub struct NewToken {
    /// Whom it proves
    #[arg(long, value_name = "NAME")]
    pub principal: String,
    /// What its holder is
    #[arg(long, value_enum, default_value_t, value_name = "KIND")]
    pub kind: TokenKind,
    /// What that principal may do; needed unless the config gives it a role
    #[arg(long, value_name = "ROLE")]
    pub role: Option<String>,
    /// How long it lives, such as 12h or 30d
    #[arg(long, value_name = "DURATION", value_parser = life)]
    pub expires: Option<Duration>,
    /// Narrow it by this rule of the config; may stand several times
    #[arg(long, value_name = "NAME")]
    pub context: Vec<String>,
}

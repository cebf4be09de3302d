//! The arguments of `outbox`, `secret`, `pin` and `role`.

use bowline_core::pins::PinKind;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Args, Subcommand};

use super::ToolTarget;

/// What to do with queued calls.
#[derive(Clone, Debug, Subcommand)]
pub enum OutboxCommand {
    /// List calls that wait for their server, and dead letters, the oldest first
    Ls(OutboxListArgs),
    /// Show one of them, with its arguments
    Show {
        /// Its ID
        id: String,
    },
    /// Send one of them at once, a dead letter as well, behind all others of its lane
    Retry {
        /// Its ID
        id: String,
    },
    /// Drop one of them for good; it is printed first, since nothing brings it back
    Drop {
        /// Its ID
        id: String,
    },
}

/// Options of `outbox ls`.
#[derive(Args, Clone, Debug, Default)]
pub struct OutboxListArgs {
    /// Only calls of this server
    #[arg(long, value_name = "NAME")]
    pub server: Option<String>,
    /// Only dead letters
    #[arg(long)]
    pub dead: bool,
}

/// What to do with secrets.
#[derive(Clone, Debug, Subcommand)]
pub enum SecretCommand {
    /// Put a secret away; it is read from stdin, or typed unseen
    Set {
        /// What `${secret:NAME}` calls it
        name: String,
    },
    /// List names, where they come from and who uses them, without values
    Ls,
    /// Take a secret away
    Rm {
        /// Its name
        name: String,
    },
}

/// What to do with pins.
#[derive(Clone, Debug, Subcommand)]
pub enum PinCommand {
    /// List servers with their pins, or the pins of one
    Ls {
        /// Only this server, entry by entry
        server: Option<String>,
    },
    /// Show what changed in a definition, or in all of a server that wait for you
    Diff {
        /// SERVER, SERVER.TOOL, or SERVER.NAME of another kind
        target: ToolTarget,
        /// What NAME is
        #[arg(long, value_parser = pin_kind_parser(), default_value = PinKind::Tool.as_str())]
        kind: PinKind,
    },
    /// Approve a definition as it is now, or all of a server
    Accept {
        /// SERVER, SERVER.TOOL, or SERVER.NAME of another kind
        target: ToolTarget,
        /// What NAME is
        #[arg(long, value_parser = pin_kind_parser(), default_value = PinKind::Tool.as_str())]
        kind: PinKind,
        /// Only if it still has this hash; the hash of before takes the last approval back
        #[arg(long, value_name = "HASH")]
        hash: Option<String>,
    },
}

/// What to ask of roles.
#[derive(Debug, Subcommand)]
pub enum RoleCommand {
    /// Say whether a role may use a tool, and which rule decides; exits 6 when it may not
    Test(RoleTestArgs),
}

/// Options of `role test`.
#[derive(Args, Clone, Debug)]
pub struct RoleTestArgs {
    /// The role, or `owner`
    pub role: String,
    /// SERVER.TOOL, prompt:SERVER.NAME or resource:SERVER.URI
    #[arg(value_name = "TARGET")]
    pub target: String,
    /// Who asks, for conditions that look at it
    #[arg(long, value_name = "NAME")]
    pub principal: Option<String>,
    /// Narrow it by this rule of the config; may stand several times
    #[arg(long, value_name = "NAME")]
    pub context: Vec<String>,
    /// Ask at the endpoint of this profile
    #[arg(long, value_name = "NAME")]
    pub profile: Option<String>,
    /// The arguments of the call, for conditions that look at them
    #[arg(long, value_name = "JSON")]
    pub args: Option<String>,
}

/// Parser for the kind of a pin.
fn pin_kind_parser() -> impl TypedValueParser<Value = PinKind> {
    let words =
        PinKind::ALL.map(|kind| PossibleValue::new(kind.as_str()).help(pin_kind_help(kind)));
    PossibleValuesParser::new(words).try_map(|word| PinKind::parse(&word).ok_or("no kind of a pin"))
}

/// Returns the help of a pin kind.
const fn pin_kind_help(kind: PinKind) -> &'static str {
    match kind {
        PinKind::Tool => "A tool, by its name",
        PinKind::Prompt => "A prompt, by its name",
        PinKind::Resource => "A resource, by its URI",
        PinKind::Template => "A template of resources, by its URI template",
        PinKind::Introduction => "`instructions` or `serverInfo`",
    }
}

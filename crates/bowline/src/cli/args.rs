//! The arguments of the command line.

mod client_args;
mod executor_args;
mod noun_args;
mod search_args;
mod token_args;
mod worker_args;

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};

pub(super) use self::client_args::{ConnectArgs, RunArgs};
pub(super) use self::executor_args::{
    ExecutorAllowArgs, ExecutorCommand, ExecutorJoinArgs, ExecutorListenArgs,
};
pub(super) use self::noun_args::{
    OutboxCommand, OutboxListArgs, PinCommand, RoleCommand, RoleTestArgs, SecretCommand,
};
pub(super) use self::search_args::{RefreshArgs, SearchArgs};
pub(super) use self::token_args::{SessionCommand, TokenCommand, TokenCreateArgs};
pub(super) use self::worker_args::{MailCommand, MailListArgs, WorkerCommand, WorkerJoinArgs};
use bowline_config::duration;

/// The commands in the help, grouped by purpose.
pub(super) const COMMAND_GROUPS: &str = "\
Start
  up        serve the configured servers (foreground)
  stdio     speak MCP over stdin and stdout; starts `up` when none runs
  run       start a coding agent that has the gateway among its servers
  connect   print what a client needs to reach the gateway
Use
  ls        list servers, the tools of one, or one tool's schema
  search    find tools by what they do
  call      call a tool
Watch
  status    one-screen truth about servers and sessions
  logs      what servers wrote to stderr
  audit     who called what, and whether the trail of it is whole
Fix
  check     validate the config file
  trust     let `up` read the bowline.toml of a directory, as it is now
  start     start a server
  stop      stop a server
  restart   stop and start a server
  reload    apply the config file, or start a server anew once its calls ended
  refresh   ask a server, or all that serve, for their tools again
  pin       look at tools whose definitions changed, and accept them
  outbox    look at queued calls, send them anew or drop them
Share
  role      say what a role may do, and by which rule
  token     make, list and revoke tokens of principals
  session   list, narrow and end sessions
  secret    keep the credentials of servers: set, ls, rm
  worker    join a hub, list peers, and look at mailboxes
  executor  perform requests and run servers for a gateway from this network
Dev
  fixture   a test MCP server
  version   print the version";

const HELP_TEMPLATE: &str = "\
{about-with-newline}
{usage-heading} {usage}{after-help}

Options:
{options}";

/// Bowline ties agents to tools.
#[derive(Debug, Parser)]
#[command(
    name = "bowline",
    version,
    about = "Ties agents to tools: hosts, supervises and federates MCP servers.",
    help_template = HELP_TEMPLATE,
    after_help = COMMAND_GROUPS,
    arg_required_else_help = true,
    disable_help_subcommand = true
)]
pub struct CliArgs {
    /// Options of every command.
    #[command(flatten)]
    pub global: GlobalArgs,
    /// What to do.
    #[command(subcommand)]
    pub command: CliCommand,
}

/// Options of every command.
#[derive(Args, Clone, Debug, Default)]
pub struct GlobalArgs {
    /// Print one JSON object instead of text
    #[arg(long, global = true)]
    pub json: bool,
    /// Config file [env: BOWLINE_CONFIG]
    #[arg(short, long, global = true, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// State directory [env: BOWLINE_STATE]
    #[arg(long, global = true, value_name = "DIR")]
    pub state: Option<PathBuf>,
    /// Address of a running gateway [env: BOWLINE_URL]
    #[arg(long, global = true, value_name = "URL")]
    pub url: Option<String>,
    /// File with the token for that gateway [env: BOWLINE_TOKEN_FILE]
    #[arg(long, global = true, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// Send the token to another machine over plain http, where everybody on the way reads it
    #[arg(long, global = true)]
    pub insecure: bool,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum CliCommand {
    /// Serve the configured servers until stopped
    Up(UpArgs),
    /// Speak MCP over stdin and stdout for a client that starts programs
    Stdio {
        /// Only this server, with its own tool names
        #[arg(long, value_name = "NAME")]
        server: Option<String>,
    },
    /// Start a coding agent that has the gateway among its servers, with a token of its own
    Run(RunArgs),
    /// Print what a client needs to reach the gateway
    Connect(ConnectArgs),
    /// List servers, the tools of one, or one tool's schema
    Ls {
        /// SERVER or SERVER.TOOL
        target: Option<ToolTarget>,
        /// Show what definitions cost an agent that is given them, in tokens (about)
        #[arg(long)]
        tokens: bool,
    },
    /// Find tools by what they do
    Search(SearchArgs),
    /// Call a tool
    Call(CallArgs),
    /// Show servers and sessions on one screen
    Status {
        /// Only this server, in detail
        server: Option<String>,
        /// Show it again whenever something happens, until stopped
        #[arg(long, conflicts_with = "server")]
        watch: bool,
    },
    /// Show what servers wrote to stderr
    Logs {
        /// Only this server
        server: Option<String>,
        /// Wait for more
        #[arg(short, long)]
        follow: bool,
        /// How many lines to begin with
        #[arg(short = 'n', long, default_value_t = 200, value_name = "N",
              value_parser = clap::value_parser!(u32).range(1..=10_000))]
        lines: u32,
    },
    /// Show, verify or export the trail of what was called and refused
    Audit {
        /// What to do with it
        #[command(subcommand)]
        command: super::audit_command::AuditCommand,
    },
    /// Validate the config file
    Check,
    /// Let `up` read the bowline.toml of a directory when it is started there
    Trust(TrustArgs),
    /// Start a server
    Start {
        /// Its name
        server: String,
    },
    /// Stop a server
    Stop {
        /// Its name
        server: String,
    },
    /// Stop a server and start it again
    Restart {
        /// Its name
        server: String,
    },
    /// Apply the config file, or start a server anew once its calls ended
    Reload {
        /// Only this server, as it is configured now
        server: Option<String>,
    },
    /// Ask a server, or all that serve, for their lists again
    Refresh(RefreshArgs),
    /// Say what a role may do, and by which rule
    Role {
        /// What to ask
        #[command(subcommand)]
        command: RoleCommand,
    },
    /// Make, list and revoke tokens of principals
    Token {
        /// What to do with them
        #[command(subcommand)]
        command: TokenCommand,
    },
    /// List, narrow and end sessions of clients
    Session {
        /// What to do with them
        #[command(subcommand)]
        command: SessionCommand,
    },
    /// Keep the credentials of servers where no config file shows them
    Secret {
        /// What to do with them
        #[command(subcommand)]
        command: SecretCommand,
    },
    /// Look at tools whose definitions changed, and accept them
    Pin {
        /// What to do
        #[command(subcommand)]
        command: PinCommand,
    },
    /// Look at queued calls, send them anew or drop them
    Outbox {
        /// What to do with them
        #[command(subcommand)]
        command: OutboxCommand,
    },
    /// List peers of the broker, and what waits in mailboxes
    Worker {
        /// What to do
        #[command(subcommand)]
        command: WorkerCommand,
    },
    /// Perform requests and run servers for a gateway from this network
    Executor {
        /// What to do
        #[command(subcommand)]
        command: ExecutorCommand,
    },
    /// Be a test MCP server, the program `bowline-fixture`
    Fixture(PassthroughArgs),
    /// Walk through the MCP server at an address as a client would
    #[command(name = "__visit", hide = true)]
    Visit(ProbeArgs),
    /// Print the version
    Version,
    /// Reap the children of one server
    #[command(name = "__reaper", hide = true)]
    Reaper(PassthroughArgs),
    /// End the token of a run after its process
    #[command(name = "__run-end", hide = true)]
    RunEnd {
        /// The process
        parent: u32,
        /// ID of the token
        token: String,
    },
}

fn parse_lifetime(text: &str) -> Result<Duration, &'static str> {
    duration::parse_duration(text)
        .filter(|lifetime| lifetime.as_secs() > 0)
        .ok_or("expected a duration of at least a second, such as 90s, 12h or 30d")
}

/// Options of `up`.
#[derive(Args, Clone, Debug, Default)]
pub struct UpArgs {
    /// Serve a built-in demo server, without a config file
    #[arg(long)]
    pub demo: bool,
    /// Address to listen on instead of the configured ones; port 0 takes a free one
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub listen: Vec<SocketAddr>,
    /// Let any local process call tools without a token (loopback only)
    #[arg(long)]
    pub insecure_no_auth: bool,
    /// Return when it serves, and let it run without this terminal
    #[arg(long)]
    pub detach: bool,
    /// Started by a client and not by a person: the current directory says nothing
    #[arg(long, hide = true)]
    pub for_client: bool,
    /// Started by `--detach`
    #[arg(long, hide = true)]
    pub detached: bool,
}

/// Options of `trust`.
#[derive(Args, Clone, Debug)]
pub struct TrustArgs {
    /// Directory with a bowline.toml [default: the current one]
    #[arg(value_name = "DIR", conflicts_with = "ls")]
    pub directory: Option<PathBuf>,
    /// List trusted directories
    #[arg(long, conflicts_with = "revoke")]
    pub ls: bool,
    /// Trust the directory no longer
    #[arg(long)]
    pub revoke: bool,
}

/// Arguments parsed by another part of the program.
#[derive(Args, Clone, Debug)]
pub struct PassthroughArgs {
    /// Passed on as they are
    #[arg(
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "ARGS"
    )]
    pub args: Vec<OsString>,
}

/// Options of `__visit`.
#[derive(Args, Clone, Debug)]
pub struct ProbeArgs {
    /// Where the server is
    #[arg(value_name = "URL")]
    pub address: String,
}

/// Options of `call`.
#[derive(Args, Clone, Debug)]
pub struct CallArgs {
    /// SERVER.TOOL
    pub target: ToolTarget,
    /// key=value, typed by the tool's schema, or key:=JSON
    #[arg(value_name = "KEY=VALUE", conflicts_with = "args")]
    pub pairs: Vec<ArgumentPair>,
    /// All arguments as one JSON object, @FILE, or - for stdin
    #[arg(long, value_name = "JSON|@FILE|-")]
    pub args: Option<String>,
    /// Longest wait for the response, such as 30s
    #[arg(long, value_name = "DURATION", value_parser = parse_timeout)]
    pub timeout: Option<Duration>,
    /// Name this call, so that it runs once however often it is repeated with the same key
    #[arg(long, value_name = "KEY")]
    pub key: Option<String>,
}

fn parse_timeout(text: &str) -> Result<Duration, &'static str> {
    duration::parse_duration(text)
        .filter(|duration| !duration.is_zero())
        .ok_or("expected a duration such as 500ms, 30s or 5m")
}

/// A server, or one of its tools. Server names hold no dot, so the first dot separates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolTarget {
    /// Name of the server.
    pub server: String,
    /// Name of the tool, possibly with dots.
    pub tool: Option<String>,
}

impl FromStr for ToolTarget {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (server, tool) = match text.split_once('.') {
            Some((server, tool)) => (server, Some(tool)),
            None => (text, None),
        };
        if server.is_empty() || tool == Some("") {
            return Err("expected SERVER or SERVER.TOOL");
        }
        Ok(Self {
            server: server.to_owned(),
            tool: tool.map(str::to_owned),
        })
    }
}

/// One argument of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArgumentPair {
    /// Name of the argument.
    pub key: String,
    /// The value after the sign.
    pub value: ArgumentValue,
}

/// Form of an argument value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ArgumentValue {
    /// `key=value`: converted according to the schema.
    Typed(String),
    /// `key:=JSON`: used verbatim.
    Json(String),
}

impl FromStr for ArgumentPair {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (key, value) = text
            .split_once('=')
            .ok_or("expected key=value or key:=JSON")?;
        let (key, value) = match key.strip_suffix(':') {
            Some(key) => (key, ArgumentValue::Json(value.to_owned())),
            None => (key, ArgumentValue::Typed(value.to_owned())),
        };
        if key.is_empty() {
            return Err("expected key=value or key:=JSON");
        }
        Ok(Self {
            key: key.to_owned(),
            value,
        })
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    fn parse_words(words: &str) -> Result<CliArgs, clap::Error> {
        CliArgs::try_parse_from(words.split_whitespace())
    }

    #[test]
    fn clap_definition_is_consistent() {
        CliArgs::command().debug_assert();
    }

    #[test]
    fn every_visible_command_is_in_one_group() {
        for command in CliArgs::command()
            .get_subcommands()
            .filter(|command| !command.is_hide_set())
        {
            let line = format!("\n  {} ", command.get_name());
            assert_eq!(
                COMMAND_GROUPS.matches(&line).count(),
                1,
                "{}",
                command.get_name()
            );
        }
        let help = CliArgs::command().render_help().to_string();
        assert!(
            help.contains("\nWatch\n  status") && help.contains("--token-file"),
            "{help}"
        );
        assert!(!help.contains("__reaper"), "{help}");
    }

    #[test]
    fn global_options_work_anywhere() {
        for words in ["bowline --json ls", "bowline ls --json"] {
            assert!(parse_words(words).unwrap().global.json, "{words}");
        }
        let cli =
            parse_words("bowline status --url http://h:1 --token-file t --state s -c c").unwrap();
        assert_eq!(cli.global.url.as_deref(), Some("http://h:1"));
        assert_eq!(cli.global.config, Some("c".into()));
    }

    #[test]
    fn up_parses_its_options() {
        let words = "bowline up --demo --listen 127.0.0.1:0 --listen [::1]:2 --insecure-no-auth";
        let CliCommand::Up(up) = parse_words(words).unwrap().command else {
            panic!("not up")
        };
        assert!(up.demo && up.insecure_no_auth);
        assert_eq!(up.listen.len(), 2);
        assert!(parse_words("bowline up --listen here").is_err());
    }

    #[test]
    fn call_parses_pairs_or_one_object() {
        let words = "bowline call files.read.me path=/a=b n:=[1] --timeout 5s";
        let CliCommand::Call(call) = parse_words(words).unwrap().command else {
            panic!("not call")
        };
        assert_eq!(call.target.server, "files");
        assert_eq!(call.target.tool.as_deref(), Some("read.me"));
        let path = ArgumentPair {
            key: "path".into(),
            value: ArgumentValue::Typed("/a=b".into()),
        };
        let n = ArgumentPair {
            key: "n".into(),
            value: ArgumentValue::Json("[1]".into()),
        };
        assert_eq!(call.pairs, [path, n]);
        assert_eq!(call.timeout, Some(Duration::from_secs(5)));
        for bad in [
            "bowline call",
            "bowline call a.b novalue",
            "bowline call a.b =x",
            "bowline call a.b k=v --args {}",
            "bowline call .b",
            "bowline call a.",
            "bowline call a.b --timeout soon",
        ] {
            assert!(parse_words(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn reaper_arguments_pass_through() {
        let words = "bowline __reaper -- cat -u";
        let CliCommand::Reaper(passed) = parse_words(words).unwrap().command else {
            panic!()
        };
        assert_eq!(passed.args, ["cat", "-u"]);
    }
}

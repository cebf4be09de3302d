//! The arguments of `search` and `refresh`.

use clap::Args;

/// Options of `search`.
#[derive(Args, Clone, Debug)]
pub struct SearchArgs {
    /// What the tool should do, in a few words
    #[arg(required = true, value_name = "WORD")]
    pub(in crate::cli) query: Vec<String>,
    /// How many to show
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u8).range(1..=50))]
    pub(in crate::cli) limit: u8,
}

/// Which server is asked for its lists again.
#[derive(Args, Clone, Debug)]
pub struct RefreshArgs {
    /// Only this server; all that serve where it is left out
    pub server: Option<String>,
}

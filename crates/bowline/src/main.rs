//! The `bowline` binary.
use bowline::{config::Env, edge::door::Auth, up};
use clap::Parser;
#[derive(Parser)]
enum Cmd {
    Up {
        #[arg(long)]
        demo: bool,
        #[arg(long)]
        config: Option<std::path::PathBuf>,
        #[arg(long)]
        state: Option<std::path::PathBuf>,
        #[arg(long)]
        listen: Vec<std::net::SocketAddr>,
        #[arg(long)]
        insecure_no_auth: bool,
        #[arg(long)]
        json: bool,
    },
    Fixture(bowline::fixture::Args),
}
fn main() -> std::process::ExitCode {
    let mut a = std::env::args_os();
    if std::env::args_os().nth(1).as_deref() == Some("__reaper".as_ref()) {
        a.next();
        a.next();
        return bowline_link::reaper::run(a);
    }
    match Cmd::parse() {
        Cmd::Up {
            demo,
            config,
            state,
            listen,
            insecure_no_auth,
            json,
        } => {
            let o = up::Options {
                config,
                state,
                listen,
                servers: if demo {
                    up::Servers::Demo
                } else {
                    up::Servers::Configured
                },
                auth: if insecure_no_auth {
                    Auth::NotForMcp
                } else {
                    Auth::Required
                },
                output: if json {
                    up::Output::Json
                } else {
                    up::Output::Text
                },
            };
            if let Err(e) = up::run(&o, &Env::process(), &mut std::io::stdout()) {
                eprintln!("{e:?}");
                return 1.into();
            }
        }
        Cmd::Fixture(args) => {
            let _ = bowline::fixture::run(args.into(), std::io::stdin(), std::io::stdout());
        }
    }
    0.into()
}

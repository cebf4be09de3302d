//! `connect`: prints the arguments a client needs to reach the gateway. Changes no client file.

use serde_json::json;

use super::CommandContext;
use super::api_client::ApiClient as Api;
use super::args::ConnectArgs;
use super::failure::{CliExit, CliFailure};
use super::gateway_finder::GatewayFinder;
use super::run_command::{check_server_known, endpoint_path, load_config_or_default};
use bowline_config::Config;
use bowline_config::client_programs::{
    ClientEndpoint, TOKEN_VARIABLE, TokenSource, quote_shell_line,
};

pub(super) fn run(args: &ConnectArgs, context: &mut CommandContext) -> Result<CliExit, CliFailure> {
    let config = load_config_or_default(context)?;
    let server = args.server.as_deref();
    let (base, api) = match GatewayFinder::new(context).find_gateway() {
        Ok(daemon) => (daemon.url, Some(Api::new(context)?)),
        // A gateway started later listens on the configured address.
        Err(failure) if failure.code == "not_running" => (configured_url(&config, failure)?, None),
        Err(failure) => return Err(failure),
    };
    if let Some(server) = server {
        check_server_known(server, &config, api.as_ref())?;
    }
    let path = endpoint_path(server, args.profile.as_deref(), &config)?;
    let url = format!("{base}{path}");
    let arguments = args.client.endpoint_arguments(ClientEndpoint {
        name: &args.name,
        url: &url,
        token: TokenSource::FromEnvironment,
    });
    let client = args.client.name();
    let line = quote_shell_line(&arguments);
    let value = json!({
        "v": 1,
        "client": client,
        "url": url,
        "args": arguments,
        "shell": line,
        "variable": TOKEN_VARIABLE,
    });
    context.out.write_result(&value, |out| {
        if args.shell {
            return out.write_line(&line);
        }
        let mut lines = arguments.iter();
        lines.try_for_each(|argument| out.write_line(argument))
    })?;
    context.out.write_note(&format!(
        "the token is read from ${TOKEN_VARIABLE}; make one: bowline token create, or let \
         `bowline run {client} -- ARGS` do all of it"
    ));
    Ok(CliExit::Ok)
}

/// Returns the URL a gateway would listen on, unless the port is dynamic.
fn configured_url(config: &Config, failure: CliFailure) -> Result<String, CliFailure> {
    match config.listen_addresses().first() {
        Some(address) if address.port() != 0 => Ok(format!("http://{address}")),
        Some(_) | None => Err(failure),
    }
}

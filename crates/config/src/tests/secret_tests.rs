//! The secrets section, and servers that need secrets.

use super::*;
use crate::secrets::SecretOrigin;

fn broken_reasons(text: &str, env: &EnvVars) -> Vec<String> {
    let config = parse_toml(text, env).unwrap();
    config
        .broken_servers
        .into_iter()
        .map(|one| one.reason)
        .collect()
}

#[test]
fn unset_secret_breaks_one_server_with_fix() {
    let text = "[servers.a]\nurl = \"https://a.example/\"\n\
        headers = { X-Key = \"${secret:tracker}\" }\n[servers.b]\ncommand = \"b\"\n\
        [servers.c]\ncommand = \"c\"\nenv = { K = \"${secret:other}\" }\n";
    let config = parse_toml(text, &EnvVars::default()).unwrap();
    assert_eq!(config.servers.len(), 1);
    assert_eq!(&*config.servers[0].name, "b");
    assert_eq!(
        broken_reasons(text, &EnvVars::default()),
        [
            "secret `tracker` is not set (in `headers.x-key`); fix: bowline secret set tracker",
            "secret `other` is not set (in `env.K`); fix: bowline secret set other",
        ]
    );
    let watched: Vec<_> = config
        .watched_templates
        .iter()
        .map(|one| &*one.server)
        .collect();
    assert_eq!(watched, ["a", "c"], "they start as soon as it is set");
}

#[test]
fn secret_comes_from_variable_file_or_command() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("key"), "from-file\n").unwrap();
    let text = "[servers.a]\ncommand = \"a\"\n\
        argv_secrets = \"allow\"\nargs = [\"${secret:one}\", \"${secret:two}\", \"${secret:three}\"]\n\
        [secrets.one]\nenv = \"ONE\"\n[secrets.two]\nfile = \"${D}key\"\n\
        [secrets.three]\ncommand = [\"sh\", \"-c\", \"echo ' from-'command; echo more\"]\n\
        every = \"1m\"\n";
    let env = EnvVars::from_pairs([("ONE", "from-env"), ("D", ""), ("PATH", "/usr/bin:/bin")]);
    let config = parse_config(text, &directory.path().join("b.toml"), &env).unwrap();
    assert_eq!(config.broken_servers, []);
    let UpstreamConfig::Child(child) = &config.servers[0].upstream else {
        panic!("a child");
    };
    assert_eq!(child.args, ["from-env", "from-file", "from-command"]);
    let redactor = config.servers[0].secrets.redactor();
    let cleaned = redactor
        .redact_text("from-env from-file from-command")
        .into_owned();
    assert_eq!(cleaned, "‹argument 1› ‹argument 2› ‹argument 3›");
    let named = &config.secrets.config().named;
    let shown: Vec<_> = named.values().map(SecretOrigin::describe).collect();
    assert_eq!(shown[0], "env ONE");
    assert_eq!(shown[1], "command sh");
    assert!(!format!("{named:?}").contains("more"), "{named:?}");
}

#[test]
fn unavailable_secret_reports_reason_only() {
    let text = |table: &str| {
        format!(
            "[servers.a]\ncommand = \"a\"\nargv_secrets = \"allow\"\n\
             args = [\"${{secret:one}}\"]\n[secrets.one]\n{table}\n"
        )
    };
    let env = EnvVars::from_pairs([("PATH", "/usr/bin:/bin")]);
    for (table, reason) in [
        (
            "env = \"ONE\"",
            "secret `one` comes from variable `ONE`, which is not set (in `args`)",
        ),
        (
            "command = [\"sh\", \"-c\", \"echo hunter22; echo no hunter22 >&2; exit 3\"]",
            "`sh` ended with exit status: 3: no ‹its output›",
        ),
        ("command = [\"true\"]", "secret `one`: it printed nothing"),
        (
            "command = [\"no-such-program-here\"]",
            "`no-such-program-here` cannot be started",
        ),
        (
            "command = [\"sh\", \"-c\", \"head -c 70000 /dev/zero | tr '\\\\0' a\"]",
            "`sh` printed what is no text of at most 64 KiB",
        ),
        ("file = \"/no/such/file\"", "`/no/such/file` cannot be read"),
    ] {
        // The command runs in the directory of the config file, so the directory must exist.
        let path = Path::new("/tmp/bowline.toml");
        let config = parse_config(&text(table), path, &env).unwrap();
        assert!(
            config.broken_servers[0].reason.contains(reason),
            "{reason}: {:?}",
            config.broken_servers
        );
    }
}

#[test]
fn secret_command_has_bare_environment() {
    let text = "[servers.a]\ncommand = \"a\"\nargv_secrets = \"allow\"\nargs = [\"${secret:one}\", \"${secret:two}\"]\n\
        [secrets.one]\ncommand = [\"sh\", \"-c\", \"echo x${GATEWAY_KEY:-none}\"]\n\
        [secrets.two]\ncommand = [\"echo\", \"$(id)\", \";\", \"`id`\"]\n";
    // The first `$` is for the shell of the command, not for the config.
    let text = text.replace("${GATEWAY_KEY", "$${GATEWAY_KEY");
    let env = EnvVars::from_pairs([("GATEWAY_KEY", "hunter22"), ("PATH", "/usr/bin:/bin")]);
    let config = parse_config(&text, Path::new("/tmp/bowline.toml"), &env).unwrap();
    let UpstreamConfig::Child(child) = &config.servers[0].upstream else {
        panic!("a child");
    };
    assert_eq!(child.args, ["xnone", "$(id) ; `id`"]);
}

fn assert_report(text: &str, want: &str) {
    let report = parse_toml(text, &EnvVars::default()).unwrap_err();
    assert!(report.contains(want), "{want}: {report}");
}

#[test]
fn invalid_secret_tables_are_refused() {
    for (text, want) in [
        ("[secrets.a]\n", "comes from nowhere"),
        (
            "[secrets.a]\nenv = \"A\"\nfile = \"b\"\n",
            "comes from more than one place",
        ),
        (
            "[secrets.a]\nenv = \"A\"\nevery = \"1m\"\n",
            "has `every` and no `command`",
        ),
        ("[secrets.a]\ncommand = []\n", "has an empty `command`"),
        (
            "[secrets.a]\ncommand = [\"x\"]\nevery = \"1ms\"\n",
            "at least a second",
        ),
        (
            "[secrets.a]\nfile = \"${secret:b}\"\n",
            "a secret cannot be used here",
        ),
        (
            "[secrets.\"../a\"]\nenv = \"A\"\n",
            "secret name `../a` cannot be used",
        ),
        ("[secrets.a]\nfrom = \"A\"\n", "unknown key `from`"),
        ("[secret_store]\nkind = \"vault\"\n", "expected one of"),
        (
            "[servers.a]\ncommand = \"a\"\nargs = [\"${secret:../x}\"]\n",
            "names no secret",
        ),
    ] {
        assert_report(text, want);
    }
}

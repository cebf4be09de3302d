//! The policy keys.

use bowline_core::budget::{BudgetRule, CallAllowance, RateRule};
use bowline_core::call::{ContextSet, EndpointScope, FeatureKind, Principal, Role};
use bowline_core::policy::{DefaultAction, ExposeMode, FeaturePattern, PolicyTarget, ToolExposure};

use super::*;
use bowline_host::conditions::CelLanguage;

const TOML: &str = r#"
[gateway]
expose = "auto"
favourites = ["files.read_*"]
[policy]
default = "allow"
[roles.reviewer]
allow = ["files.read_*", "prompt:files.*"]
deny = ["files.read_key"]
when = [{ on = "files.read_*", if = "args.path.startsWith('/srv/')" }]
budget = { calls = 500, per = "1h" }
rate = { calls = 5, per = "1s", burst = 20 }
[roles.nobody]
[principals."ci.build"]
role = "reviewer"
[context.no-writes]
hide = ["files.write_*"]
[profiles.small]
allow = ["files.*"]
deny = ["files.write_*"]
[servers.files]
command = "a"
"#;

const JSON: &str = r#"{"x-bowline": {
  "gateway": {"expose": "auto", "favourites": ["files.read_*"]},
  "policy": {"default": "allow"},
  "roles": {"reviewer": {"allow": ["files.read_*", "prompt:files.*"], "deny": ["files.read_key"],
      "when": [{"on": "files.read_*", "if": "args.path.startsWith('/srv/')"}],
      "budget": {"calls": 500, "per": "1h"}, "rate": {"calls": 5, "per": "1s", "burst": 20}},
    "nobody": {}},
  "principals": {"ci.build": {"role": "reviewer"}},
  "context": {"no-writes": {"hide": ["files.write_*"]}},
  "profiles": {"small": {"allow": ["files.*"], "deny": ["files.write_*"]}}
}, "mcpServers": {"Files": {"command": "a"}}}"#;

fn parse_patterns(texts: &[&str]) -> Vec<FeaturePattern> {
    let all = texts.iter();
    all.map(|text| FeaturePattern::parse(text).unwrap())
        .collect()
}

#[test]
fn policy_keys_parse_from_both_syntaxes() {
    let config = parse_toml(TOML, &EnvVars::default()).unwrap();
    let seconds = Duration::from_secs;
    let reviewer = RoleConfig {
        allow: parse_patterns(&["files.read_*", "prompt:files.*"]),
        deny: parse_patterns(&["files.read_key"]),
        when: vec![WhenConfig {
            on: FeaturePattern::parse("files.read_*").unwrap(),
            condition: Arc::new(
                CelLanguage::default()
                    .parse_condition("args.path.startsWith('/srv/')")
                    .unwrap(),
            ),
        }],
        allowance: CallAllowance {
            budget: Some(BudgetRule {
                calls: 500,
                per: seconds(3_600),
            }),
            rate: Some(RateRule {
                calls: 5,
                per: seconds(1),
                burst: 20,
            }),
        },
    };
    let small = ProfileConfig {
        allow: parse_patterns(&["files.*"]),
        deny: parse_patterns(&["files.write_*"]),
    };
    let expected = PolicyConfig {
        default_action: DefaultAction::Allow,
        roles: [
            ("reviewer".into(), reviewer),
            ("nobody".into(), RoleConfig::default()),
        ]
        .into(),
        principals: [("ci.build".into(), "reviewer".into())].into(),
        peers: BTreeMap::new(),
        executors: BTreeMap::new(),
        server_executors: [].into(),
        token_lifetime: TokenLifetime::default(),
        contexts: [("no-writes".into(), parse_patterns(&["files.write_*"]))].into(),
        profiles: [("small".into(), small)].into(),
        allowlist: None,
        exposure: ToolExposure {
            expose: ExposeMode::Auto,
            favourites: parse_patterns(&["files.read_*"]),
        },
    };
    assert_eq!(config.policy, expected);
    assert_eq!(parse_json(JSON).unwrap().policy, expected);
    assert_eq!(config.warnings, []);
}

#[test]
fn parsed_policy_decides_as_written() {
    let policy = parse_toml(TOML, &EnvVars::default())
        .unwrap()
        .policy
        .compile();
    let rule = |who: &Principal, scope: &EndpointScope, kind, name| {
        let thing = PolicyTarget {
            kind,
            server: "files",
            name,
            arguments: None,
        };
        let ruling = policy.decide(who, scope, thing);
        (ruling.is_allowed(), ruling.rule_path())
    };
    let ci = Principal::new("ci.build", Role::Named("other".into()));
    let hidden = ci.with_contexts(&ContextSet::new(["no-writes"]));
    let (all, small) = (EndpointScope::All, EndpointScope::Profile("small".into()));
    let (tool, prompt) = (FeatureKind::Tool, FeatureKind::Prompt);
    let owner = Principal::new("owner", Role::Owner);
    let nobody = Principal::new("x", Role::Named("nobody".into()));
    for (who, scope, kind, name, expected) in [
        (&ci, &all, tool, "read_a", (true, "roles.reviewer.allow")),
        (&ci, &all, tool, "read_key", (false, "roles.reviewer.deny")),
        (&ci, &all, prompt, "any", (true, "roles.reviewer.allow")),
        (
            &ci,
            &all,
            FeatureKind::Resource,
            "read_a",
            (false, "roles.reviewer.allow"),
        ),
        (&hidden, &all, tool, "write_a", (false, "context.no-writes")),
        (&owner, &small, tool, "write_a", (false, "profiles.small")),
        (&owner, &small, tool, "read_a", (true, "owner")),
        (&nobody, &all, tool, "read_a", (false, "roles.nobody.allow")),
    ] {
        let (allows, by) = expected;
        assert_eq!(
            rule(who, scope, kind, name),
            (allows, by.to_owned()),
            "{name}"
        );
    }
    let unknown = Principal::new("x", Role::Named("unheard-of".into()));
    assert_eq!(
        rule(&unknown, &all, tool, "write_a"),
        (true, "policy.default".to_owned())
    );
    assert_eq!(policy.allowance(&ci).unwrap().1.budget.unwrap().calls, 500);
}

#[test]
fn invalid_rule_is_refused_with_position() {
    assert_eq!(
        parse_toml(
            "[roles.reviewer]\n[principals.ci]\nrole = \"reviewr\"\n",
            &EnvVars::default()
        )
        .unwrap_err(),
        "\
error[config]: principal `ci` has role `reviewr`, which is not defined
 --> /etc/b/bowline.toml:3:8
  |
3 | role = \"reviewr\"
  |        ^^^^^^^^^ did you mean `reviewer`?
  |
  = help: define it: [roles.reviewr] allow = [...]"
    );
    assert_eq!(
        parse_toml("[roles.r]\nallow = [\"files.a\", \"tools:x.y\"]\n", &EnvVars::default()).unwrap_err(),
        "\
error[config]: `tools:x.y` names nothing
 --> /etc/b/bowline.toml:2:21
  |
2 | allow = [\"files.a\", \"tools:x.y\"]
  |                     ^^^^^^^^^^^ it begins with an unknown kind; there are `tool:`, `prompt:` and \
`resource:`
  |
  = help: write \"server.tool\", \"server.get_*\" or \"prompt:server.*\""
    );
}

#[test]
fn invalid_condition_is_shown_with_position() {
    assert_eq!(
        parse_toml(
            "[roles.r]\nwhen = [{ on = \"files.a\", if = \"arg.x == 1\" }]\n",
            &EnvVars::default()
        )
        .unwrap_err(),
        "\
error[config]: `if` is no condition
 --> /etc/b/bowline.toml:2:32
  |
2 | when = [{ on = \"files.a\", if = \"arg.x == 1\" }]
  |                                ^^^^^^^^^^^^ nothing is called `arg`, did you mean `args`; there \
are args, principal, role, server, tool
  |
  = help: for instance if = \"args.path.startsWith('/srv/')\""
    );
}

#[test]
fn every_policy_key_is_checked() {
    for (text, message) in [
        (
            "[roles.r]\nwhen = [{ on = \"a.b\" }]\n",
            "`when` has no `if`",
        ),
        (
            "[roles.r]\nwhen = [{ if = \"true\" }]\n",
            "`when` has no `on`",
        ),
        (
            "[roles.r]\nwhen = [{ on = \"\", if = \"true\" }]\n",
            "`` names nothing",
        ),
        ("[roles.r]\nwhen = [3]\n", "`when` must be a table"),
        ("[roles.r]\nwhen = {}\n", "`when` must be a list such as"),
        (
            "[principals.owner]\nrole = \"r\"\n",
            "`owner` cannot be given rules",
        ),
        ("[roles.owner]\n", "`owner` cannot be given rules"),
        ("[roles.\"a b\"]\n", "role name `a b` cannot be used"),
        (
            "[principals.\"a@b\"]\n",
            "principal name `a@b` cannot be used",
        ),
        ("[profiles.A]\n", "profile name `A` cannot be used"),
        ("[principals.ci]\n", "`ci` has no `role`"),
        ("[context.c]\n", "`c` has no `hide`"),
        (
            "[context.c]\nhides = []\n",
            "unknown key `hides` in [context.c]",
        ),
        (
            "[policy]\ndefault = \"alow\"\n",
            "`default` cannot be \"alow\"",
        ),
        (
            "[roles.r]\nbudget = { calls = 3 }\n",
            "`budget` has no `per`",
        ),
        (
            "[roles.r]\nbudget = { calls = 0, per = \"1h\" }\n",
            "from 1 to 1000000000",
        ),
        (
            "[roles.r]\nrate = { calls = 1, per = \"0s\" }\n",
            "`per` must be a duration",
        ),
        (
            "[roles.r]\nrate = { calls = 1, per = \"1s\", bust = 2 }\n",
            "[roles.r.rate]",
        ),
        (
            "[roles.r]\nallow = \"files.*\"\n",
            "`allow` must be a list of strings",
        ),
        ("roles = 3\n", "`roles` must be a table"),
    ] {
        let report = parse_toml(text, &EnvVars::default()).unwrap_err();
        assert!(report.contains(message), "{text}: {report}");
    }
}

#[test]
fn policy_lists_are_bounded() {
    let many = format!("[roles.r]\nallow = [{}]\n", "\"a.b\",".repeat(1_025));
    let report = parse_toml(&many, &EnvVars::default()).unwrap_err();
    assert!(report.contains("more than 1024"), "{report}");
    let roles: String = (0..4_097).map(|n| format!("[roles.r{n}]\n")).collect();
    let report = parse_toml(&roles, &EnvVars::default()).unwrap_err();
    assert!(report.contains("`roles` has too many entries"), "{report}");
}

#[test]
fn unknown_server_pattern_causes_warning() {
    let text = "[servers.files]\ncommand = \"a\"\n[servers.gone]\ncommand = \"${MISSING}\"\n\
        [roles.r]\nallow = [\"flies.read\", \"gone.x\", \"*.y\"]\ndeny = [\"other.z\"]\n";
    let config = parse_toml(text, &EnvVars::default()).unwrap();
    let told: Vec<_> = config
        .warnings
        .iter()
        .map(|warning| {
            (
                warning.position.map(|at| (at.line, at.column)),
                warning.message.as_str(),
            )
        })
        .collect();
    assert_eq!(
        told,
        [
            (
                Some((6, 10)),
                "`flies.read` in `roles.r.allow` names server `flies`, which is not configured; \
                 did you mean `files`?"
            ),
            (
                Some((7, 9)),
                "`other.z` in `roles.r.deny` names server `other`, which is not configured"
            ),
        ]
    );
    assert_eq!(config.policy.roles["r"].allow.len(), 3);
}

#[test]
fn unreadable_allowlist_refuses_the_file() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("bowline.toml");
    let text = "[policy]\nallowlist = \"list.json\"\n";
    let load = || parse_config(text, &path, &EnvVars::default());
    let refused = || load().unwrap_err().report();
    assert!(refused().contains("bowline.toml:2:13"), "{}", refused());
    assert!(refused().contains("No such file"), "{}", refused());
    let list = directory.path().join("list.json");
    std::fs::write(&list, "{\"schemaVersion\":2}").unwrap();
    assert!(
        refused().contains("its schemaVersion is 2"),
        "{}",
        refused()
    );
    let off = r#"{"schemaVersion":1,"items":[
        {"server":"files","kind":"tool","name":"write","enabled":false}]}"#;
    std::fs::write(&list, off).unwrap();
    let policy = load().unwrap().policy.compile();
    let owner = Principal::new("owner", Role::Owner);
    let allows = |name| {
        let thing = PolicyTarget {
            kind: FeatureKind::Tool,
            server: "files",
            name,
            arguments: None,
        };
        policy
            .decide(&owner, &EndpointScope::All, thing)
            .is_allowed()
    };
    assert!(!allows("write") && allows("read"));
}

#[test]
fn sec_68_shared_process_of_principals_is_warned_of() {
    let text = |isolation: &str, second: &str| {
        format!(
            "[servers.files]\ncommand = \"files\"\n{isolation}[roles.r]\nallow = [\"files.*\"]\n\
             [principals.ann]\nrole = \"r\"\n{second}"
        )
    };
    let bob = "[principals.bob]\nrole = \"r\"\n";
    let warnings = |text: &str| {
        let config = parse_toml(text, &EnvVars::default()).unwrap();
        let shown = config.warnings.iter().map(|one| one.message.clone());
        shown.collect::<Vec<_>>().join("\n")
    };
    let warned = warnings(&text("", bob));
    assert!(warned.contains("all 2 principals"), "{warned}");
    assert!(warned.contains("files"), "{warned}");
    assert_eq!(warnings(&text("", "")), "");
    for isolation in ["principal", "session", "shared"] {
        let said = format!("isolation = \"{isolation}\"\n");
        assert_eq!(warnings(&text(&said, bob)), "");
    }
}

#[test]
fn token_lifetime_parses() {
    let days = |days: u64| Duration::from_secs(days * 24 * 3_600);
    for (text, expected) in [
        ("", Some(days(90))),
        ("[tokens]\nlifetime = \"30d\"", Some(days(30))),
        ("[tokens]\nlifetime = \"never\"", None),
    ] {
        let policy = parse_toml(text, &EnvVars::default()).unwrap().policy;
        assert_eq!(policy.token_lifetime.duration(), expected, "{text}");
    }
    for wrong in ["\"0s\"", "\"500ms\"", "\"off\"", "90"] {
        let text = format!("[tokens]\nlifetime = {wrong}");
        assert!(parse_toml(&text, &EnvVars::default()).is_err(), "{wrong}");
    }
}

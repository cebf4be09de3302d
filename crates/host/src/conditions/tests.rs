//! Conditions and their arguments.

use super::*;

fn parse_ok(text: &str) -> CelCondition {
    CelLanguage::default()
        .parse_condition(text)
        .unwrap_or_else(|fault| panic!("{text}: {fault}"))
}

fn condition_input(arguments: &[u8]) -> ConditionInput<'_> {
    ConditionInput {
        principal: "ci",
        role: Some("reviewer"),
        server: "files",
        name: "read",
        arguments,
    }
}

fn evaluate(text: &str, arguments: &str) -> Result<bool, String> {
    let holds = parse_ok(text).evaluate(
        &condition_input(arguments.as_bytes()),
        EvaluationEffort::Full,
    );
    holds.map_err(|why| why.to_string())
}

#[test]
fn condition_reads_arguments_and_principal() {
    for (text, arguments, holds) in [
        (
            "args.path.startsWith('/srv/')",
            r#"{"path":"/srv/a"}"#,
            true,
        ),
        (
            "args.path.startsWith('/srv/')",
            r#"{"path":"/etc/a"}"#,
            false,
        ),
        (
            "args.path.matches('^/srv/[a-z]+$')",
            r#"{"path":"/srv/a"}"#,
            true,
        ),
        (
            "!args.path.contains('..')",
            r#"{"path":"/srv/../etc"}"#,
            false,
        ),
        ("args.n <= 10 && args.n >= -3", r#"{"n":-3}"#, true),
        ("args.n <= 10", r#"{"n":10.5}"#, false),
        ("args.n + 1 == 4", r#"{"n":3}"#, true),
        ("args.n > 10", r#"{"n":18446744073709551615}"#, true),
        ("args.kind in ['a', 'b']", r#"{"kind":"b"}"#, true),
        (
            "args.tags.all(tag, tag.size() < 3)",
            r#"{"tags":["a","bb"]}"#,
            true,
        ),
        (
            "args.tags.exists(tag, tag == 'x')",
            r#"{"tags":["a"]}"#,
            false,
        ),
        ("!has(args.force) || !args.force", "{}", true),
        (
            "!has(args.force) || !args.force",
            r#"{"force":true}"#,
            false,
        ),
        ("args.at.x == 1", r#"{"at":{"x":1}}"#, true),
        ("args['odd key'] == null", r#"{"odd key":null}"#, true),
        ("principal == 'ci' && role == 'reviewer'", "{}", true),
        ("server + '.' + tool == 'files.read'", "{}", true),
        ("size(args) == 0", "{}", true),
        (
            "type(args.n) == int && dyn(args.n) == 3",
            r#"{"n":3}"#,
            true,
        ),
        (
            "int('3') == 3 && uint(3) == 3u && double(3) == 3.0 && bool('true')",
            "{}",
            true,
        ),
        (
            "string(3) == '3' && bytes('a') == b'a' && 'ab'.endsWith('b')",
            "{}",
            true,
        ),
    ] {
        assert_eq!(evaluate(text, arguments), Ok(holds), "{text} {arguments}");
    }
}

#[test]
fn undecided_reason_hides_argument_values() {
    let long = format!(
        r#"{{"path":"{}"}}"#,
        "secret".repeat(ARGUMENTS_BYTES_MAX / 6)
    );
    let deep = format!("{{\"a\":{}{}}}", "[".repeat(100), "]".repeat(100));
    for (text, arguments, why) in [
        (
            "args.path == 'x'",
            "{}",
            "an argument that it asks for is missing",
        ),
        (
            "args.n < 3",
            r#"{"n":"secret"}"#,
            "an argument has another type",
        ),
        ("args.n", r#"{"n":3}"#, "it is a int"),
        ("args.n", r#"{"n":"secret"}"#, "it is a string"),
        ("args", "{}", "it is a map"),
        ("args.l[3] == 1", r#"{"l":[1]}"#, "a list is too short"),
        ("1 / args.n == 1", r#"{"n":0}"#, "it cannot be reckoned"),
        (
            "args.n + 1 > 0",
            r#"{"n":9223372036854775807}"#,
            "it cannot be reckoned",
        ),
        ("true", "[]", "the arguments cannot be read"),
        ("true", "", "the arguments cannot be read"),
        ("true", "{\"a\":1,\"a\":2}", "the arguments cannot be read"),
        (
            "true",
            r#"{"o":{"a":1,"\u0061":2}}"#,
            "the arguments cannot be read",
        ),
        ("true", r#"{"n":1e999}"#, "the arguments cannot be read"),
        ("true", "{\"a\":\"\u{1}\"}", "the arguments cannot be read"),
        ("true", &long, "the arguments are longer than 65536 bytes"),
        ("true", &deep, "the arguments cannot be read"),
        (
            "args.p.matches('a')",
            r#"{"p":1}"#,
            "an argument has another type",
        ),
    ] {
        assert_eq!(evaluate(text, arguments), Err(why.to_owned()), "{text}");
    }
    let not_text = parse_ok("true").evaluate(
        &condition_input(b"{\"a\":\"\xff\"}"),
        EvaluationEffort::Full,
    );
    assert_eq!(
        not_text,
        Err(undecided_because("the arguments cannot be read"))
    );
}

#[test]
fn sec_60_condition_refuses_names_that_fold_alike() {
    for text in [
        "args.path.startsWith('/srv/')",
        "args['path'].startsWith('/srv/')",
        "!has(args.path) || args.path.startsWith('/srv/')",
        "!('path' in args) || args.path.startsWith('/srv/')",
        "!args.exists(k, k == 'path') || args['pa' + 'th'].startsWith('/srv/')",
        "args.mode == 'Path' || !has(args.path)",
    ] {
        for arguments in [
            r#"{"path":"/srv/a","mode":"Path","Path":"/etc"}"#,
            r#"{"mode":"Path","Path":"/etc"}"#,
            r#"{"mode":"Path","\u0050ATH":"/etc"}"#,
            r#"{"mode":"Path","path":"/srv/a","in":[{"PATH":"/etc"}]}"#,
            r#"{"mode":"Path","path":"/srv/a","x":{"s":1,"\u017f":2}}"#,
        ] {
            let found = evaluate(text, arguments);
            assert!(
                found.is_err_and(|why| why.contains("case")),
                "{text} {arguments}"
            );
        }
    }
    let free = r#"{"path":"/srv/a","Headers":{"Accept":"x"}}"#;
    assert_eq!(evaluate("args.path.startsWith('/srv/')", free), Ok(true));
}

#[test]
fn invalid_condition_reports_reason() {
    let fault = |text: &str| {
        CelLanguage::default()
            .parse_condition(text)
            .unwrap_err()
            .to_string()
    };
    assert_eq!(fault("  "), "it is empty");
    assert_eq!(fault(&"1".repeat(1_025)), "it is longer than 1024 bytes");
    assert!(
        fault("args.path ==").starts_with("Syntax error"),
        "{}",
        fault("args.path ==")
    );
    assert_eq!(
        fault("arg.path == 'x'"),
        "nothing is called `arg`, did you mean `args`; there are args, principal, role, server, tool"
    );
    assert_eq!(
        fault("args.a.all(x, y)"),
        "nothing is called `y`; there are args, principal, role, server, tool"
    );
    assert_eq!(
        fault("args.path.startWith('x')"),
        "there is no function `startWith`, did you mean `startsWith`"
    );
    assert_eq!(
        fault("args.a.all(x, args.b.all(y, args.c.all(z, z == 1)))"),
        "more than 2 loops stand in each other"
    );
    let literal = "the pattern of `matches` must be written out as a text, such as '^[a-z]+$'";
    for text in [
        "args.p.matches(args.q)",
        "matches(args.p, args.q)",
        "args.p.matches('a' + role)",
        "args.l.all(x, x.matches(x))",
        "args.p.matches(1)",
        "args.p.matches()",
    ] {
        assert_eq!(fault(text), literal, "{text}");
    }
    assert_eq!(
        fault("args.p.matches('(')"),
        "`(` is no pattern: unclosed group"
    );
    assert_eq!(
        fault("args.p.matches('(x{1000}){1000}')"),
        "the pattern `(x{1000}){1000}` takes more than 10 MiB when it is compiled"
    );
}

/// Builds a JSON object with `count` texts of `bytes` bytes under `a`.
fn text_arguments(count: usize, bytes: usize) -> String {
    let texts: Vec<_> = (0..count).map(|n| format!("\"{n:0>bytes$}\"")).collect();
    format!(r#"{{"a":[{}]}}"#, texts.join(","))
}

fn estimated_cost(text: &str, arguments: &str) -> u64 {
    let condition = parse_ok(text);
    let args = serde_json::from_str(arguments).unwrap();
    cost::estimate_cost(condition.program.expression(), &args, &condition.patterns)
}

#[test]
fn evaluation_is_bounded_by_its_estimated_cost() {
    let ones = |count: usize| format!(r#"{{"a":[{}]}}"#, vec!["1"; count].join(","));
    let once = "args.a.all(x, x == 1)";
    assert_eq!(evaluate(once, &ones(30_000)), Ok(true));
    let twice = "args.a.all(x, args.a.all(y, x == y))";
    assert_eq!(evaluate(twice, &ones(300)), Ok(true));
    let refused = parse_ok(twice).evaluate(
        &condition_input(ones(2_000).as_bytes()),
        EvaluationEffort::Full,
    );
    let cost = estimated_cost(twice, &ones(2_000));
    let cost_max = COST_MAX;
    assert_eq!(refused, Err(ConditionError::TooCostly { cost, cost_max }));
    for (text, arguments, least, most) in [
        (
            "args.path.startsWith('/srv/')",
            r#"{"path":"/srv/a"}"#,
            1,
            20,
        ),
        (
            "args.a.all(x, args.a.all(y, x.contains(y)))",
            &text_arguments(999, 4),
            5_000_000,
            COST_MAX,
        ),
        (
            r"args.a.all(x, x.matches('^\\w{1,100}$'))",
            &text_arguments(3_000, 4),
            QUICK_COST_MAX,
            COST_MAX,
        ),
        // Every iteration reads the whole text.
        (
            "args.a.all(x, args.t.contains(x))",
            &format!(r#"{{"t":"{}","a":["b","c","d","e"]}}"#, "a".repeat(60_000)),
            4 * 60_000 / cost::SCANNED_BYTES,
            COST_MAX,
        ),
        // The result of a loop is as large as the sum of its iterations.
        (
            "args.a.map(x, args.a.map(y, args.t + x)).size() == 1",
            &format!(r#"{{"t":"{}","a":{:?}}}"#, "a".repeat(30_000), vec![1; 300]),
            COST_MAX,
            u64::MAX,
        ),
        (
            "args.a.all(x, x.all(y, y in x))",
            &format!(r#"{{"a":[{:?},{:?}]}}"#, vec![1; 9_000], [0; 0]),
            COST_MAX,
            u64::MAX,
        ),
    ] {
        let cost = estimated_cost(text, arguments);
        assert!((least..=most).contains(&cost), "{text}: {cost}");
    }
}

#[test]
fn quick_evaluations_do_little_work() {
    let quick = |text: &str, arguments: &str| {
        parse_ok(text).evaluate(
            &condition_input(arguments.as_bytes()),
            EvaluationEffort::Quick,
        )
    };
    assert_eq!(
        quick("args.a.all(x, x != '')", &text_arguments(20, 4)),
        Ok(true)
    );
    let long = text_arguments(QUICK_ARGUMENTS_BYTES_MAX / 4, 4);
    for (text, arguments) in [
        (
            "args.a.all(x, x.matches('^[0-9]+$'))",
            &text_arguments(400, 4),
        ),
        (
            "args.a.all(x, args.a.all(y, x == y))",
            &text_arguments(100, 4),
        ),
        ("true", &long),
    ] {
        assert_eq!(
            quick(text, arguments),
            Err(ConditionError::NeedsFullEffort),
            "{text}"
        );
    }
    // A condition refused at any effort is refused at once.
    let longest = text_arguments(ARGUMENTS_BYTES_MAX / 4, 4);
    assert!(matches!(
        quick("true", &longest),
        Err(ConditionError::Failed(_))
    ));
}

/// Stack size of a runtime thread.
const STACK_BYTES: usize = 2 * 1024 * 1024;

#[test]
fn longest_conditions_fit_the_stack() {
    let towers = [
        ("(", "1", ")"),
        ("[", "1", "]"),
        ("!", "true", ""),
        ("-", "1", ""),
        ("- ", "1", ""),
        ("1+", "1", ""),
        ("true&&", "true", ""),
        ("true?true:", "true", ""),
        ("{1:", "1", "}"),
        ("args.a[", "1", "]"),
        ("size(", "args", ")"),
        ("", "args", ".a"),
        ("", "args", "[0]"),
        ("", "[1]", ".map(x,x)"),
        ("1==", "1", ""),
        ("'a'+", "'a'", ""),
        ("\"", "", ""),
        ("\\", "", ""),
        ("", "args", ".all(x,"),
        ("has(", "args.a", ")"),
    ];
    let thread = std::thread::Builder::new().stack_size(STACK_BYTES);
    let looked = thread.spawn(move || {
        for (before, middle, after) in towers {
            let most = (CONDITION_BYTES_MAX - middle.len()) / (before.len() + after.len()).max(1);
            for count in [1, 10, 40, 100, most] {
                let text = [before.repeat(count), middle.to_owned(), after.repeat(count)].concat();
                if let Ok(condition) = CelLanguage::default().parse_condition(&text) {
                    let _decided = condition
                        .evaluate(&condition_input(b"{\"a\":[1]}"), EvaluationEffort::Full);
                }
            }
        }
    });
    looked.unwrap().join().unwrap();
}

#[test]
fn ten_thousand_malformed_conditions_never_panic() {
    const SEEDS: [&str; 6] = [
        "args.path.startsWith('/srv/') && !args.path.contains('..')",
        "args.tags.all(tag, tag in ['a', \"b\", r'c']) || size(args) > 0u",
        "has(args.n) ? args.n * -2.5e3 < 10 : b'\\x00' == bytes('a')",
        "{'a': [1, 2].map(x, x + 1)}['a'].exists_one(y, y == 0x1F)",
        "args['k'].matches('^[a-z]{1,3}$') && type(args) == map",
        "\"\\u00e9\\n\" + '''x''' == string(1) /* c */ // d",
    ];
    const LETTERS: &[u8] = b"()[]{}.,:?!&|<>=+-*/%'\"\\ 0x1u_\n\xc3\xa9rbe";
    let seed = 0xce1;
    let mut random = fastrand::Rng::with_seed(seed);
    let language = CelLanguage::default();
    let thread = std::thread::Builder::new().stack_size(STACK_BYTES);
    let rounds = thread.spawn(move || {
        let mut good = 0;
        for _ in 0..10_000 {
            let mut bytes = SEEDS[random.usize(..SEEDS.len())].as_bytes().to_vec();
            for _ in 0..random.usize(1..5) {
                let at = random.usize(..bytes.len());
                match random.u8(..4) {
                    0 => bytes[at] = LETTERS[random.usize(..LETTERS.len())],
                    1 if bytes.len() > 1 => {
                        bytes.remove(at);
                    }
                    2 => bytes.insert(at, LETTERS[random.usize(..LETTERS.len())]),
                    _ => bytes.truncate(at.max(1)),
                }
            }
            let text = String::from_utf8_lossy(&bytes);
            if let Ok(condition) = language.parse_condition(&text) {
                good += 1;
                let _decided = condition.evaluate(
                    &condition_input(b"{\"path\":\"/srv/a\",\"tags\":[\"a\"],\"n\":3}"),
                    EvaluationEffort::Full,
                );
            }
        }
        good
    });
    assert!(rounds.unwrap().join().unwrap() > 100, "seed {seed}");
}

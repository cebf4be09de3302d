//! Conditions and the arguments they are asked about.

use super::*;

fn read(text: &str) -> Cel {
    Language::default()
        .read(text)
        .unwrap_or_else(|fault| panic!("{text}: {fault}"))
}

fn facts(arguments: &[u8]) -> Facts<'_> {
    Facts {
        principal: "ci",
        role: Some("reviewer"),
        server: "files",
        name: "read",
        arguments,
    }
}

fn asked(text: &str, arguments: &str) -> Result<bool, String> {
    let holds = read(text).holds(&facts(arguments.as_bytes()));
    holds.map_err(|why| why.to_string())
}

#[test]
fn a_condition_looks_at_arguments_and_at_who_asks() {
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
        assert_eq!(asked(text, arguments), Ok(holds), "{text} {arguments}");
    }
}

#[test]
fn what_cannot_be_decided_says_why_and_not_what_the_arguments_hold() {
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
            "args.p.matches(args.q)",
            r#"{"p":"a","q":"("}"#,
            "it fails on these arguments",
        ),
    ] {
        assert_eq!(asked(text, arguments), Err(why.to_owned()), "{text}");
    }
    let not_text = read("true").holds(&facts(b"{\"a\":\"\xff\"}"));
    assert_eq!(not_text, Err(undecided("the arguments cannot be read")));
}

#[test]
fn a_text_that_is_no_condition_says_why() {
    let fault = |text: &str| Language::default().read(text).unwrap_err().to_string();
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
}

#[test]
fn loops_take_no_more_steps_than_they_may() {
    let list = |count: usize| format!(r#"{{"a":[{}]}}"#, vec!["1"; count].join(","));
    let once = "args.a.all(x, x == 1)";
    assert_eq!(asked(once, &list(30_000)), Ok(true));
    let twice = "args.a.all(x, args.a.all(y, x == y))";
    assert_eq!(asked(twice, &list(300)), Ok(true));
    let many = Err("the arguments hold too many values".to_owned());
    assert_eq!(asked(twice, &list(1_001)), many);
}

/// A thread of the runtime has no more.
const STACK_BYTES: usize = 2 * 1024 * 1024;

#[test]
fn the_longest_conditions_neither_panic_nor_use_up_the_stack() {
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
                if let Ok(condition) = Language::default().read(&text) {
                    let _decided = condition.holds(&facts(b"{\"a\":[1]}"));
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
    let language = Language::default();
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
            if let Ok(condition) = language.read(&text) {
                good += 1;
                let _decided =
                    condition.holds(&facts(b"{\"path\":\"/srv/a\",\"tags\":[\"a\"],\"n\":3}"));
            }
        }
        good
    });
    assert!(rounds.unwrap().join().unwrap() > 100, "seed {seed}");
}

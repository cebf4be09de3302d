//! The whole list of what must not be reached by accident, against rules of every form.

use core::net::{Ipv4Addr, Ipv6Addr};

use super::*;

/// What must be denied unless it is named: base and length, told apart by version.
const FORBIDDEN: [(&str, u32); 37] = [
    ("127.0.0.0", 8),
    ("0.0.0.0", 8),
    ("10.0.0.0", 8),
    ("172.16.0.0", 12),
    ("192.168.0.0", 16),
    ("100.64.0.0", 10),
    ("169.254.0.0", 16),
    ("192.0.0.0", 24),
    ("192.0.2.0", 24),
    ("192.88.99.0", 24),
    ("198.18.0.0", 15),
    ("198.51.100.0", 24),
    ("203.0.113.0", 24),
    ("224.0.0.0", 4),
    ("240.0.0.0", 4),
    ("255.255.255.255", 32),
    ("168.63.129.16", 32),
    ("::1", 128),
    ("::", 128),
    ("::", 96),
    ("::ffff:127.0.0.0", 104),
    ("::ffff:10.0.0.0", 104),
    ("::ffff:192.168.0.0", 112),
    ("::ffff:169.254.0.0", 112),
    ("::ffff:0:0:0", 96),
    ("64:ff9b::", 96),
    ("64:ff9b:1::", 48),
    ("100::", 64),
    ("2001::", 32),
    ("2001:20::", 28),
    ("2001:db8::", 32),
    ("2002::", 16),
    ("3fff::", 20),
    ("fc00::", 7),
    ("fe80::", 10),
    ("fec0::", 10),
    ("ff00::", 8),
];

/// Rules that mean the public.
const BROAD: [&str; 8] = [
    "0.0.0.0/0:*",
    "[::/0]:*",
    "0.0.0.0/1:*",
    "128.0.0.0/1:*",
    "[::]/1:*",
    "8000::/1:*",
    "inside.example:*",
    "*.example:*",
];

const PORTS: [u16; 4] = [1, 80, 443, 65_535];

fn egress(rules: &[&str]) -> Egress {
    Egress::parse(rules.iter().copied()).unwrap()
}

fn host(text: &str) -> Host {
    Host::parse(text).unwrap()
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// Any address that begins as this one does.
fn any_within(base: &str, len: u32, random: &mut fastrand::Rng) -> IpAddr {
    match ip(base) {
        IpAddr::V4(base) => {
            let free = u32::MAX.checked_shr(len).unwrap_or(0);
            Ipv4Addr::from_bits(base.to_bits() | random.u32(..) & free).into()
        }
        IpAddr::V6(base) => {
            let free = u128::MAX.checked_shr(len).unwrap_or(0);
            Ipv6Addr::from_bits(base.to_bits() | random.u128(..) & free).into()
        }
    }
}

/// The first and the last address, and some between.
fn some_within(base: &str, len: u32, random: &mut fastrand::Rng) -> Vec<IpAddr> {
    let first = ip(base);
    let last = match first {
        IpAddr::V4(base) => {
            let free = u32::MAX.checked_shr(len).unwrap_or(0);
            Ipv4Addr::from_bits(base.to_bits() | free).into()
        }
        IpAddr::V6(base) => {
            let free = u128::MAX.checked_shr(len).unwrap_or(0);
            Ipv6Addr::from_bits(base.to_bits() | free).into()
        }
    };
    let mut all = vec![first, last];
    all.extend(std::iter::repeat_with(|| any_within(base, len, random)).take(200));
    all
}

#[test]
fn no_special_address_is_reached_by_a_rule_that_does_not_mean_it() {
    let mut random = fastrand::Rng::with_seed(20);
    let broad = egress(&BROAD);
    for (base, len) in FORBIDDEN {
        for address in some_within(base, len, &mut random) {
            for who in [
                Host::Address(net::plain(address)),
                host("inside.example"),
                host("deep.under.example"),
                Host::Local,
            ] {
                for port in PORTS {
                    let permitted = broad.permits(&who, address, port);
                    assert!(!permitted, "{address} of {base}/{len} as {who}:{port}");
                }
            }
            assert!(is_special(address), "{address}");
        }
    }
}

#[test]
fn a_special_address_is_reached_by_a_rule_that_names_it_at_its_port_only() {
    let mut random = fastrand::Rng::with_seed(21);
    for (base, len) in FORBIDDEN {
        for address in some_within(base, len, &mut random) {
            let denied = Denied::address(host("inside.example"), address, 443);
            let remedy = denied.remedy().unwrap().to_string();
            let exact = egress(&[&remedy]);
            for who in [Host::Address(net::plain(address)), host("inside.example")] {
                assert!(exact.permits(&who, address, 443), "{remedy}");
                assert!(!exact.permits(&who, address, 80), "{remedy}");
            }
            let other = any_within(base, len, &mut random);
            let same = net::plain(other) == net::plain(address);
            assert_eq!(exact.permits(&host("x.example"), other, 443), same);
        }
    }
}

#[test]
fn a_range_within_a_special_one_reaches_what_it_covers() {
    for (rule, inside, outside) in [
        ("10.0.0.0/8:443", "10.9.8.7", "11.0.0.1"),
        ("10.0.0.0/8:443", "::ffff:10.9.8.7", "::ffff:11.0.0.1"),
        ("10.1.0.0/16:443", "10.1.2.3", "10.2.0.1"),
        ("127.0.0.0/8:443", "127.1.2.3", "::1"),
        ("fd00::/8:443", "fd12::1", "fc00::1"),
        ("[fd00::/8]:443", "fd12::1", "fe80::1"),
        ("[fd00::]/8:443", "fd12::1", "2606:4700::1"),
        ("[::ffff:10.0.0.0/104]:443", "10.3.4.5", "172.16.0.1"),
        ("localhost:443", "127.0.0.1", "127.0.0.2"),
        ("localhost:443", "::1", "::2"),
        ("localhost:443", "::ffff:127.0.0.1", "10.0.0.1"),
        ("64:ff9b::/96:443", "64:ff9b::8.8.8.8", "64:ff9b::10.0.0.1"),
        (
            "[64:ff9b::10.0.0.0/104]:443",
            "64:ff9b::10.0.0.1",
            "64:ff9b::8.8.8.8",
        ),
        ("[2002::/16]:443", "2002:808:808::1", "2002:a00:1::1"),
        ("169.254.0.0/16:443", "169.254.1.1", "169.254.169.254"),
        ("169.254.169.254:443", "169.254.169.254", "169.254.1.1"),
        ("fd00::/8:443", "fd00::1", "fd00:ec2::254"),
        ("100.64.0.0/10:443", "100.100.0.1", "100.100.100.200"),
    ] {
        let egress = egress(&[rule]);
        let named = host("any.example");
        assert!(egress.permits(&named, ip(inside), 443), "{rule} {inside}");
        assert!(
            !egress.permits(&named, ip(outside), 443),
            "{rule} {outside}"
        );
        assert!(!egress.permits(&named, ip(inside), 80), "{rule} {inside}");
    }
}

#[test]
fn a_range_that_is_wider_than_a_special_one_does_not_reach_into_it() {
    let wide = [
        "10.0.0.0/7:*",
        "172.0.0.0/8:*",
        "192.168.0.0/15:*",
        "126.0.0.0/7:*",
    ];
    let wide = egress(&[&wide[..], &["[fc00::/6]:*", "[fe00::/8]:*", "[::/8]:*"][..]].concat());
    let named = host("any.example");
    for special in [
        "10.0.0.1",
        "172.16.0.1",
        "192.168.0.1",
        "127.0.0.1",
        "fd00::1",
        "fe80::1",
    ] {
        assert!(!wide.permits(&named, ip(special), 1), "{special}");
    }
    assert!(!wide.permits(&named, ip("::1"), 1));
    for public in [
        "11.0.0.1",
        "172.15.0.1",
        "172.32.0.1",
        "192.169.0.1",
        "126.0.0.1",
    ] {
        assert!(wide.permits(&named, ip(public), 1), "{public}");
    }
}

#[test]
fn a_name_reaches_public_addresses_at_its_port() {
    let egress = egress(&["Tracker.Example.:443", "*.svc.example:*"]);
    let public = ip("93.184.215.14");
    for (name, port, want) in [
        ("tracker.example", 443, true),
        ("TRACKER.example.", 443, true),
        ("tracker.example", 80, false),
        ("sub.tracker.example", 443, false),
        ("mytracker.example", 443, false),
        ("a.svc.example", 1, true),
        ("a.b.svc.example", 2, true),
        ("svc.example", 443, false),
        ("evilsvc.example", 443, false),
        ("tracker.example.evil.example", 443, false),
        ("93.184.215.14", 443, false),
    ] {
        let host = host(name);
        assert_eq!(egress.permits(&host, public, port), want, "{name}:{port}");
        assert_eq!(egress.may(&host, port), want, "{name}:{port}");
    }
    let named = host("tracker.example");
    assert!(egress.permits(&named, ip("2606:4700::6810:84e5"), 443));
    assert!(egress.permits(&named, ip("::ffff:93.184.215.14"), 443));
    assert!(!egress.permits(&named, ip("10.0.0.1"), 443));
}

#[test]
fn nothing_is_allowed_by_default() {
    let mut random = fastrand::Rng::with_seed(1);
    for egress in [Egress::none(), Egress::default(), egress(&[])] {
        for _ in 0..1_000 {
            let address = IpAddr::from(random.u128(..).to_be_bytes());
            let who = Host::Address(address);
            assert!(!egress.permits(&who, address, random.u16(..)));
            assert!(!egress.may(&host("tracker.example"), random.u16(..)));
        }
    }
}

#[test]
fn hosts_that_others_may_read_otherwise_are_none() {
    for odd in [
        "2130706433",
        "0x7f.1",
        "127.1",
        "127.0.1",
        "0177.0.0.1",
        "017700000001",
        "0x7f000001",
        "0X7F000001",
        "127.0.0.1.2",
        "1.2.3",
        "10.0.0.010",
        "256.1.1.1",
        "a.1",
        "a.0x1f",
        "127.0.0.0x1",
        "",
        ".",
        "..",
        "a..b",
        ".a",
        "-a",
        "a-",
        "a b",
        "a%2eb",
        "ex\u{e4}mple.com",
        "\u{ff11}27.0.0.1",
        "127.0.0.1%00.example",
        "[::1",
        "::1]",
        "[::1%eth0]",
        "fe80::1%1",
        "[127.0.0.1]",
        "[]",
        "a:80",
        "user@host",
        "a/b",
        "a\\b",
        "a\0b",
        "0x",
        "0.0.0.0.",
        "x.example..",
    ] {
        let read = Host::parse(odd);
        let plain = matches!(read, Some(Host::Address(address)) if is_special(address));
        assert!(read.is_none() || plain, "{odd:?} is {read:?}");
    }
    let long = ["a".repeat(63).as_str(); 4].join(".");
    assert_eq!(Host::parse(&long), None);
    assert_eq!(Host::parse(&"a".repeat(64)), None);
}

#[test]
fn hosts_are_read_in_one_form() {
    for (text, want) in [
        ("localhost", Host::Local),
        ("localhost.", Host::Local),
        ("LOCALHOST", Host::Local),
        ("127.0.0.1", Host::Address(ip("127.0.0.1"))),
        ("127.0.0.1.", Host::Address(ip("127.0.0.1"))),
        ("[::1]", Host::Address(ip("::1"))),
        ("[0:0:0:0:0:0:0:1]", Host::Address(ip("::1"))),
        ("[::ffff:7f00:1]", Host::Address(ip("127.0.0.1"))),
        ("[::ffff:127.0.0.1]", Host::Address(ip("127.0.0.1"))),
        ("::ffff:7f00:1", Host::Address(ip("127.0.0.1"))),
        ("Tracker.Example.", Host::Name("tracker.example".into())),
        ("my_db-1", Host::Name("my_db-1".into())),
        ("1.example", Host::Name("1.example".into())),
        (
            "xn--bcher-kva.example",
            Host::Name("xn--bcher-kva.example".into()),
        ),
        ("localhost.example", Host::Name("localhost.example".into())),
        ("a.localhost", Host::Name("a.localhost".into())),
    ] {
        assert_eq!(Host::parse(text), Some(want), "{text}");
    }
}

#[test]
fn no_text_at_all_is_read_as_a_host_that_the_system_reads_otherwise() {
    let mut random = fastrand::Rng::with_seed(3);
    let pieces = [
        "127", "0", "1", "x", "7f", ".", ":", "[", "]", "::", "ffff", "a", "-", "%", "0x", "@",
    ];
    for _ in 0..50_000 {
        let count = random.usize(1..9);
        let any = || *random.choice(&pieces).unwrap();
        let text: String = std::iter::repeat_with(any).take(count).collect();
        let Some(host) = Host::parse(&text) else {
            continue;
        };
        // What is shown is read as the same again.
        assert_eq!(
            Host::parse(&host.to_string()),
            Some(host.clone()),
            "{text:?}"
        );
        if let Host::Name(name) = &host {
            let last = name.rsplit('.').next().unwrap();
            let number = match last.strip_prefix("0x") {
                Some(hex) => hex.is_empty() || u128::from_str_radix(hex, 16).is_ok(),
                None => last.parse::<u128>().is_ok(),
            };
            assert!(!number, "{text:?}");
            assert!(name.parse::<IpAddr>().is_err(), "{text:?}");
        }
    }
}

#[test]
fn rules_are_read_and_shown_in_their_plainest_form() {
    for (text, want) in [
        ("tracker.example:443", "tracker.example:443"),
        (" Tracker.Example.:443 ", "tracker.example:443"),
        ("*.Tracker.example:*", "*.tracker.example:*"),
        ("db:5432", "db:5432"),
        ("10.1.2.3:5432", "10.1.2.3:5432"),
        ("10.1.2.3/32:5432", "10.1.2.3:5432"),
        ("10.0.0.0/8:*", "10.0.0.0/8:*"),
        ("0.0.0.0/0:443", "0.0.0.0/0:443"),
        ("[fd00::1]:80", "[fd00::1]:80"),
        ("[FD00:0::/8]:80", "[fd00::/8]:80"),
        ("[fd00::]/8:80", "[fd00::/8]:80"),
        ("fd00::/8:80", "[fd00::/8]:80"),
        ("[::ffff:10.0.0.1]:80", "10.0.0.1:80"),
        ("localhost.:8080", "localhost:8080"),
    ] {
        let rule = Rule::parse(text).unwrap();
        assert_eq!(rule.to_string(), want, "{text}");
        assert_eq!(want.parse::<Rule>(), Ok(rule), "{text}");
    }
}

#[test]
fn what_is_no_rule_says_why() {
    for (text, want) in [
        ("tracker.example", RuleError::Port),
        ("", RuleError::Port),
        ("tracker.example:", RuleError::Port),
        ("tracker.example:0", RuleError::Port),
        ("tracker.example:65536", RuleError::Port),
        ("tracker.example:+80", RuleError::Port),
        ("tracker.example:http", RuleError::Port),
        ("https://tracker.example:443", RuleError::Url),
        ("tracker.example:443/mcp", RuleError::Url),
        ("fd00::1:443", RuleError::Brackets),
        ("::1:80", RuleError::Brackets),
        ("10.1.2.3/8:80", RuleError::Range),
        ("10.0.0.0/33:80", RuleError::Range),
        ("10.0.0.0/+8:80", RuleError::Range),
        ("10.0.0.0/:80", RuleError::Range),
        ("10/8:80", RuleError::Range),
        ("[fd00::1/8]:80", RuleError::Range),
        ("[::ffff:0:0/95]:80", RuleError::Range),
        ("[fe80::1%eth0]:80", RuleError::Range),
        ("[10.0.0.1]:80", RuleError::Host),
        ("[fd00::1:80", RuleError::Host),
        ("*:443", RuleError::Host),
        ("*.:443", RuleError::Host),
        ("a.*.example:443", RuleError::Host),
        ("*.localhost:443", RuleError::Host),
        ("127.1:80", RuleError::Host),
        ("2130706433:80", RuleError::Host),
        ("0x7f.1:80", RuleError::Host),
        (":80", RuleError::Host),
        ("a b:80", RuleError::Host),
    ] {
        assert_eq!(Rule::parse(text), Err(want), "{text:?}");
    }
    let many = std::iter::repeat_n("a.example:1", RULES_MAX + 1);
    assert_eq!(Egress::parse(many), Err(RuleError::TooMany));
}

#[test]
fn what_is_denied_is_shown_alike_to_who_asked_and_with_its_remedy_to_who_may_allow_it() {
    let named = || host("tracker.example");
    for (denied, what, remedy) in [
        (Denied::odd(80), "an odd host, port 80", None),
        (
            Denied::host(named(), 443),
            "tracker.example:443",
            Some("tracker.example:443"),
        ),
        (
            Denied::address(named(), ip("93.184.215.14"), 443),
            "tracker.example:443 (93.184.215.14)",
            Some("tracker.example:443"),
        ),
        (
            Denied::address(named(), ip("::ffff:10.0.0.1"), 443),
            "tracker.example:443 (10.0.0.1)",
            Some("10.0.0.1:443"),
        ),
        (
            Denied::address(host("[fd00::1]"), ip("fd00::1"), 80),
            "[fd00::1]:80",
            Some("[fd00::1]:80"),
        ),
        (
            Denied::address(Host::Local, ip("127.0.0.1"), 80),
            "localhost:80",
            Some("localhost:80"),
        ),
    ] {
        assert_eq!(denied.to_string(), "the destination is not allowed");
        assert_eq!(denied.what().to_string(), what);
        let rule = denied.remedy().map(|rule| rule.to_string());
        assert_eq!(rule.as_deref(), remedy);
    }
}

#[test]
fn a_name_is_looked_up_only_where_an_address_could_be_allowed() {
    let name = host("tracker.example");
    for (rules, want) in [
        (&["tracker.example:443"][..], true),
        (&["tracker.example:80"][..], false),
        (&["other.example:443"][..], false),
        (&["10.0.0.0/8:443"][..], true),
        (&["10.0.0.0/8:80"][..], false),
        (&["localhost:443"][..], true),
    ] {
        assert_eq!(egress(rules).may(&name, 443), want, "{rules:?}");
    }
    assert!(egress(&["10.0.0.1:443"]).may(&host("10.0.0.1"), 443));
    assert!(!egress(&["0.0.0.0/0:443"]).may(&host("10.0.0.1"), 443));
    assert!(egress(&["127.0.0.1:80"]).may(&Host::Local, 80));
    assert!(!egress(&["10.0.0.0/8:80"]).may(&Host::Local, 80));
}

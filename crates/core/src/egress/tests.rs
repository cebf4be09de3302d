//! Special addresses against rules of every form.

mod egress_parsing;

use core::net::{Ipv4Addr, Ipv6Addr};

use super::*;

/// Ranges denied by default: base and prefix length.
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

/// Rules for public addresses.
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

fn allowlist(rules: &[&str]) -> EgressAllowlist {
    EgressAllowlist::parse(rules.iter().copied()).unwrap()
}

fn host(text: &str) -> EgressHost {
    EgressHost::parse(text).unwrap()
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// Returns a random address of the range.
fn random_address(base: &str, len: u32, random: &mut fastrand::Rng) -> IpAddr {
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

/// Returns the first, the last and some random addresses of the range.
fn sample_addresses(base: &str, len: u32, random: &mut fastrand::Rng) -> Vec<IpAddr> {
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
    all.extend(std::iter::repeat_with(|| random_address(base, len, random)).take(200));
    all
}

#[test]
fn broad_rule_reaches_no_special_address() {
    let mut random = fastrand::Rng::with_seed(20);
    let broad = allowlist(&BROAD);
    for (base, len) in FORBIDDEN {
        for address in sample_addresses(base, len, &mut random) {
            for who in [
                EgressHost::Address(ip_range::to_canonical(address)),
                host("inside.example"),
                host("deep.under.example"),
                EgressHost::Local,
            ] {
                for port in PORTS {
                    let permitted = broad.permits_address(&who, address, port);
                    assert!(!permitted, "{address} of {base}/{len} as {who}:{port}");
                }
            }
            assert!(is_special_address(address), "{address}");
        }
    }
}

#[test]
fn exact_rule_reaches_special_address_at_port() {
    let mut random = fastrand::Rng::with_seed(21);
    for (base, len) in FORBIDDEN {
        for address in sample_addresses(base, len, &mut random) {
            let denied = DeniedDestination::for_address(host("inside.example"), address, 443);
            let remedy = denied.remedy_rule().unwrap().to_string();
            let exact = allowlist(&[&remedy]);
            for who in [
                EgressHost::Address(ip_range::to_canonical(address)),
                host("inside.example"),
            ] {
                assert!(exact.permits_address(&who, address, 443), "{remedy}");
                assert!(!exact.permits_address(&who, address, 80), "{remedy}");
            }
            let other = random_address(base, len, &mut random);
            let same = ip_range::to_canonical(other) == ip_range::to_canonical(address);
            assert_eq!(exact.permits_address(&host("x.example"), other, 443), same);
        }
    }
}

#[test]
fn range_inside_special_range_reaches_its_addresses() {
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
        let egress = allowlist(&[rule]);
        let named = host("any.example");
        assert!(
            egress.permits_address(&named, ip(inside), 443),
            "{rule} {inside}"
        );
        assert!(
            !egress.permits_address(&named, ip(outside), 443),
            "{rule} {outside}"
        );
        assert!(
            !egress.permits_address(&named, ip(inside), 80),
            "{rule} {inside}"
        );
    }
}

#[test]
fn wider_range_does_not_reach_special_range() {
    let wide = [
        "10.0.0.0/7:*",
        "172.0.0.0/8:*",
        "192.168.0.0/15:*",
        "126.0.0.0/7:*",
    ];
    let wide = allowlist(&[&wide[..], &["[fc00::/6]:*", "[fe00::/8]:*", "[::/8]:*"][..]].concat());
    let named = host("any.example");
    for special in [
        "10.0.0.1",
        "172.16.0.1",
        "192.168.0.1",
        "127.0.0.1",
        "fd00::1",
        "fe80::1",
    ] {
        assert!(!wide.permits_address(&named, ip(special), 1), "{special}");
    }
    assert!(!wide.permits_address(&named, ip("::1"), 1));
    for public in [
        "11.0.0.1",
        "172.15.0.1",
        "172.32.0.1",
        "192.169.0.1",
        "126.0.0.1",
    ] {
        assert!(wide.permits_address(&named, ip(public), 1), "{public}");
    }
}

#[test]
fn host_name_reaches_public_addresses_at_port() {
    let egress = allowlist(&["Tracker.Example.:443", "*.svc.example:*"]);
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
        assert_eq!(
            egress.permits_address(&host, public, port),
            want,
            "{name}:{port}"
        );
        assert_eq!(egress.may_reach(&host, port), want, "{name}:{port}");
    }
    let named = host("tracker.example");
    assert!(egress.permits_address(&named, ip("2606:4700::6810:84e5"), 443));
    assert!(egress.permits_address(&named, ip("::ffff:93.184.215.14"), 443));
    assert!(!egress.permits_address(&named, ip("10.0.0.1"), 443));
}

#[test]
fn nothing_is_allowed_by_default() {
    let mut random = fastrand::Rng::with_seed(1);
    for egress in [
        EgressAllowlist::deny_all(),
        EgressAllowlist::default(),
        allowlist(&[]),
    ] {
        for _ in 0..1_000 {
            let address = IpAddr::from(random.u128(..).to_be_bytes());
            let who = EgressHost::Address(address);
            assert!(!egress.permits_address(&who, address, random.u16(..)));
            assert!(!egress.may_reach(&host("tracker.example"), random.u16(..)));
        }
    }
}

#[test]
fn denial_hides_target_and_names_remedy() {
    let named = || host("tracker.example");
    for (denied, what, remedy) in [
        (
            DeniedDestination::for_invalid_host(80),
            "an odd host, port 80",
            None,
        ),
        (
            DeniedDestination::for_host(named(), 443),
            "tracker.example:443",
            Some("tracker.example:443"),
        ),
        (
            DeniedDestination::for_address(named(), ip("93.184.215.14"), 443),
            "tracker.example:443 (93.184.215.14)",
            Some("tracker.example:443"),
        ),
        (
            DeniedDestination::for_address(named(), ip("::ffff:10.0.0.1"), 443),
            "tracker.example:443 (10.0.0.1)",
            Some("10.0.0.1:443"),
        ),
        (
            DeniedDestination::for_address(host("[fd00::1]"), ip("fd00::1"), 80),
            "[fd00::1]:80",
            Some("[fd00::1]:80"),
        ),
        (
            DeniedDestination::for_address(EgressHost::Local, ip("127.0.0.1"), 80),
            "localhost:80",
            Some("localhost:80"),
        ),
    ] {
        assert_eq!(denied.to_string(), "the destination is not allowed");
        assert_eq!(denied.detail().to_string(), what);
        let rule = denied.remedy_rule().map(|rule| rule.to_string());
        assert_eq!(rule.as_deref(), remedy);
    }
}

#[test]
fn name_resolves_only_if_address_could_match() {
    let name = host("tracker.example");
    for (rules, want) in [
        (&["tracker.example:443"][..], true),
        (&["tracker.example:80"][..], false),
        (&["other.example:443"][..], false),
        (&["10.0.0.0/8:443"][..], true),
        (&["10.0.0.0/8:80"][..], false),
        (&["localhost:443"][..], true),
    ] {
        assert_eq!(allowlist(rules).may_reach(&name, 443), want, "{rules:?}");
    }
    assert!(allowlist(&["10.0.0.1:443"]).may_reach(&host("10.0.0.1"), 443));
    assert!(!allowlist(&["0.0.0.0/0:443"]).may_reach(&host("10.0.0.1"), 443));
    assert!(allowlist(&["127.0.0.1:80"]).may_reach(&EgressHost::Local, 80));
    assert!(!allowlist(&["10.0.0.0/8:80"]).may_reach(&EgressHost::Local, 80));
}

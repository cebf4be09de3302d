//! The rules again, in the simplest form.

use bowline_core::call::{EndpointScope, FeatureKind, Principal, Role};

use crate::rules::RuleSet;

/// True if `principal` may see and use an item at an endpoint.
pub(crate) fn allows(
    rules: &RuleSet,
    principal: &Principal,
    scope: &EndpointScope,
    kind: FeatureKind,
    server: &str,
    name: &str,
) -> bool {
    let role: Option<String> = match rules
        .assigned
        .iter()
        .find(|(who, _)| **who == *principal.name)
    {
        Some((_, role)) => Some(role.clone()),
        None => match &principal.role {
            Role::Named(role) => Some(role.to_string()),
            _ => None,
        },
    };
    let all = match principal.role {
        Role::Owner | Role::OwnersAgent => true,
        Role::AnonymousLocal => role.is_none(),
        Role::Named(_) | Role::None => false,
    };
    let defined = role.and_then(|role| rules.roles.iter().find(|one| one.0 == role));
    let unnarrowed = principal.contexts.names().is_empty()
        && !matches!(scope, EndpointScope::Profile(_))
        && rules.switched.is_none();
    if unnarrowed && (all || (defined.is_none() && rules.default_allows)) {
        return true;
    }
    let mut names = vec![name.to_owned()];
    if kind == FeatureKind::Resource {
        match normalized_uri(name) {
            Some(other) => names.push(other),
            None => return false,
        }
    }
    names.iter().all(|name| {
        let is =
            |pattern: &String, grants: bool| pattern_covers(pattern, grants, kind, server, name);
        let any = |patterns: &[String], grants: bool| patterns.iter().any(|one| is(one, grants));
        for context in principal.contexts.names() {
            match rules
                .contexts
                .iter()
                .find(|(known, _)| **known == **context)
            {
                Some((_, hide)) if !any(hide, false) => {}
                _ => return false,
            }
        }
        if let EndpointScope::Profile(profile) = scope {
            match rules.profiles.iter().find(|one| *one.0 == **profile) {
                Some((_, allow, deny)) if any(allow, true) && !any(deny, false) => {}
                _ => return false,
            }
        }
        if let Some((default, items)) = &rules.switched {
            let said = items
                .iter()
                .rev()
                .find(|item| item.0 == kind && item.1 == server && item.2 == *name);
            if !said.map_or(*default, |item| item.3) {
                return false;
            }
        }
        match defined {
            _ if all => true,
            None => rules.default_allows,
            Some((_, allow, deny)) => any(allow, true) && !any(deny, false),
        }
    })
}

/// True if a pattern covers an item; without a kind, a granting pattern covers tools.
fn pattern_covers(
    pattern: &str,
    grants: bool,
    kind: FeatureKind,
    server: &str,
    name: &str,
) -> bool {
    let (said, rest) = match pattern {
        _ if pattern.starts_with("tool:") => (Some(FeatureKind::Tool), &pattern[5..]),
        _ if pattern.starts_with("prompt:") => (Some(FeatureKind::Prompt), &pattern[7..]),
        _ if pattern.starts_with("resource:") => (Some(FeatureKind::Resource), &pattern[9..]),
        _ => (None, pattern),
    };
    let kind_fits = match said {
        Some(said) => said == kind,
        None => !grants || kind == FeatureKind::Tool,
    };
    let at = rest.find('.');
    let (its_server, its_name) = at.map_or((rest, "*"), |at| (&rest[..at], &rest[at + 1..]));
    kind_fits
        && glob_matches(its_server.as_bytes(), server.as_bytes())
        && glob_matches(its_name.as_bytes(), name.as_bytes())
}

fn glob_matches(glob: &[u8], text: &[u8]) -> bool {
    match glob {
        [] => text.is_empty(),
        [b'*', rest @ ..] => (0..=text.len()).any(|from| glob_matches(rest, &text[from..])),
        [one, rest @ ..] => text.first() == Some(one) && glob_matches(rest, &text[1..]),
    }
}

/// The single alternative spelling of a URI in this test; `None` if it leaves the root.
fn normalized_uri(uri: &str) -> Option<String> {
    if uri.contains("/../") {
        return None;
    }
    let plain = uri.replace("%73", "s").replace("FILE:", "file:");
    Some(plain.replace("file:////", "file:///"))
}

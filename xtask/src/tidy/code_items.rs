//! Types and functions of scrubbed Rust code, for the naming rules.

/// A type definition.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TypeDefinition<'a> {
    pub(super) name: &'a str,
    /// 0-based.
    pub(super) line: usize,
}

/// A function signature.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct FunctionSignature<'a> {
    pub(super) name: &'a str,
    /// 0-based.
    pub(super) line: usize,
    pub(super) parameters: Vec<Parameter<'a>>,
    /// Return type; `None` without `->`.
    pub(super) result: Option<&'a str>,
    /// Whether a test attribute precedes the function.
    pub(super) is_test: bool,
}

/// A function parameter; receivers without a type are left out.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Parameter<'a> {
    pub(super) pattern: &'a str,
    pub(super) kind: &'a str,
}

/// Returns the type definitions, without associated types, which are indented.
pub(super) fn type_definitions(code: &str) -> Vec<TypeDefinition<'_>> {
    let lines = code.lines().enumerate();
    lines
        .filter_map(|(line, text)| {
            let name = type_name(text)?;
            Some(TypeDefinition { name, line })
        })
        .collect()
}

fn type_name(line: &str) -> Option<&str> {
    let is_indented = line.starts_with([' ', '\t']);
    let rest = skip_visibility(line.trim_start());
    let rest = rest.strip_prefix("unsafe ").unwrap_or(rest);
    let (keyword, rest) = rest.split_once(' ')?;
    let defines_type = match keyword {
        "struct" | "enum" | "trait" | "union" => true,
        "type" => !is_indented,
        _ => false,
    };
    let name = first_word(rest.trim_start());
    (defines_type && name.starts_with(|c: char| c.is_ascii_uppercase())).then_some(name)
}

/// Returns the functions with a name and a parameter list.
pub(super) fn function_signatures(code: &str) -> Vec<FunctionSignature<'_>> {
    let mut found = Vec::new();
    let mut previous_end = 0;
    for (at, keyword) in code.match_indices("fn ") {
        let (before, after) = code.split_at(at);
        if before.chars().next_back().is_some_and(is_word_char) {
            continue;
        }
        let rest = after.get(keyword.len()..).unwrap_or_default();
        let Some(mut signature) = parse_signature(rest.trim_start()) else {
            continue;
        };
        signature.line = before.matches('\n').count();
        // Attributes of a function follow the previous function.
        let between = code.get(previous_end..at).unwrap_or_default();
        signature.is_test = between.lines().any(is_test_attribute);
        previous_end = at;
        found.push(signature);
    }
    found
}

/// Parses `name<T>(a: A) -> B {`; the caller sets position and attributes.
fn parse_signature(text: &str) -> Option<FunctionSignature<'_>> {
    let name = first_word(text);
    let mut rest = text.get(name.len()..)?.trim_start();
    if rest.starts_with('<') {
        rest = rest.get(group_end(rest)?..)?.trim_start();
    }
    if name.is_empty() || !rest.starts_with('(') {
        return None;
    }
    let end = group_end(rest)?;
    let inside = rest.get(1..end.checked_sub(1)?)?;
    let parameters = split_top_level(inside, ',');
    let parameters = parameters.into_iter().filter_map(parse_parameter).collect();
    let after = rest.get(end..)?.trim_start();
    Some(FunctionSignature {
        name,
        line: 0,
        parameters,
        result: after.strip_prefix("->").map(result_type),
        is_test: false,
    })
}

/// Returns the text up to the body, the semicolon or the `where` clause.
fn result_type(text: &str) -> &str {
    let end = top_level(text).find(|(at, c)| {
        let is_where = *c == 'w'
            && text
                .get(*at..)
                .is_some_and(|rest| first_word(rest) == "where")
            && !text
                .get(..*at)
                .is_some_and(|head| head.ends_with(is_word_char));
        matches!(c, '{' | ';') || is_where
    });
    let end = end.map_or(text.len(), |(at, _)| at);
    text.get(..end).unwrap_or_default().trim()
}

fn parse_parameter(text: &str) -> Option<Parameter<'_>> {
    let mut text = text.trim();
    while let Some(attribute) = text.strip_prefix('#') {
        text = attribute.get(group_end(attribute)?..)?.trim_start();
    }
    // The first colon ends the pattern, unless the pattern is a path such as `x::Y(z)`.
    let colons = top_level(text).filter(|(_, c)| *c == ':');
    let halves = |at: usize| Some((text.get(..at)?, text.get(at + 1..)?));
    let (pattern, kind) = colons
        .filter_map(|(at, _)| halves(at))
        .find(|(pattern, kind)| !pattern.ends_with(':') && !kind.starts_with(':'))?;
    Some(Parameter {
        pattern: pattern.trim(),
        kind: kind.trim(),
    })
}

/// Returns whether a pattern or type is a tuple, or a reference to one.
pub(super) fn is_tuple(text: &str) -> bool {
    let text = skip_reference(text);
    let inside = text
        .strip_prefix('(')
        .and_then(|rest| rest.get(..group_end(text)?.checked_sub(2)?));
    inside.is_some_and(|inside| split_top_level(inside, ',').len() > 1)
}

/// `&'a mut (A, B)` -> `(A, B)`
fn skip_reference(text: &str) -> &str {
    let mut text = text.trim_start();
    while let Some(rest) = text.strip_prefix('&') {
        text = rest.trim_start();
        if let Some(lifetime) = text.strip_prefix('\'') {
            let name = first_word(lifetime);
            text = lifetime.get(name.len()..).unwrap_or_default().trim_start();
        }
        text = text.strip_prefix("mut ").unwrap_or(text).trim_start();
    }
    text
}

/// Returns the parts between separators outside of any brackets.
fn split_top_level(text: &str, separator: char) -> Vec<&str> {
    let mut parts = Vec::new();
    let mut start = 0;
    for (at, _) in top_level(text).filter(|(_, c)| *c == separator) {
        parts.extend(text.get(start..at));
        start = at + separator.len_utf8();
    }
    parts.extend(text.get(start..));
    parts
}

/// Returns the characters outside of any brackets, opening brackets included.
fn top_level(text: &str) -> impl Iterator<Item = (usize, char)> + '_ {
    let mut depth = 0_usize;
    let mut last = ' ';
    text.char_indices().filter(move |(_, c)| {
        let is_outside = depth == 0;
        depth = next_depth(depth, last, *c);
        last = *c;
        is_outside
    })
}

/// Returns the end of the bracketed group at the start of the text.
fn group_end(text: &str) -> Option<usize> {
    let mut depth = 0_usize;
    let mut last = ' ';
    for (at, c) in text.char_indices() {
        depth = next_depth(depth, last, c);
        last = c;
        if depth == 0 {
            return Some(at + c.len_utf8());
        }
    }
    None
}

/// Returns the bracket depth after `c`; the `>` of `->` and `=>` closes nothing.
fn next_depth(depth: usize, last: char, c: char) -> usize {
    match c {
        '(' | '[' | '{' | '<' => depth + 1,
        '>' if last == '-' || last == '=' => depth,
        ')' | ']' | '}' | '>' => depth.saturating_sub(1),
        _ => depth,
    }
}

fn is_test_attribute(line: &str) -> bool {
    let line = line.trim_start();
    ["#[test]", "#[tokio::test]", "#[tokio::test("]
        .iter()
        .any(|attribute| line.starts_with(attribute))
}

fn skip_visibility(line: &str) -> &str {
    let Some(rest) = line.strip_prefix("pub") else {
        return line;
    };
    let rest = match rest.starts_with('(') {
        true => group_end(rest).and_then(|end| rest.get(end..)),
        false => Some(rest),
    };
    rest.and_then(|rest| rest.strip_prefix(' ')).unwrap_or(line)
}

fn first_word(text: &str) -> &str {
    text.split(|c: char| !is_word_char(c))
        .next()
        .unwrap_or_default()
}

pub(super) fn is_word_char(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

#[cfg(test)]
mod tests {
    use super::*;

    fn signature(code: &str) -> FunctionSignature<'_> {
        function_signatures(code).into_iter().next().unwrap()
    }

    fn parameters(code: &str) -> Vec<(&str, &str)> {
        let parameters = signature(code).parameters.into_iter();
        parameters.map(|one| (one.pattern, one.kind)).collect()
    }

    #[test]
    fn types_of_every_kind_are_found() {
        let code =
            "pub struct A;\npub(in crate::x) enum B {}\n    unsafe trait C {}\ntype D = u8;\n";
        let names: Vec<&str> = type_definitions(code).iter().map(|one| one.name).collect();
        assert_eq!(names, ["A", "B", "C", "D"]);
        assert_eq!(type_definitions(code)[2].line, 2);
    }

    #[test]
    fn associated_types_and_values_are_no_definitions() {
        let code = "impl X for Y {\n    type Error = u8;\n}\nlet type_name = 1;\nstructure A\n";
        assert_eq!(type_definitions(code), []);
    }

    #[test]
    fn parameters_are_split_across_lines_and_generics() {
        let code = "fn f<T: Fn(A, B) -> C, const N: usize>(\n    &mut self,\n    mut a: Map<A, B>,\n    \
                    b: impl Fn(A) -> (B, C),\n    #[cfg(unix)] c: x::Y,\n) -> D\nwhere T: E {}";
        assert_eq!(
            parameters(code),
            [
                ("mut a", "Map<A, B>"),
                ("b", "impl Fn(A) -> (B, C)"),
                ("c", "x::Y")
            ]
        );
        assert_eq!(signature(code).result, Some("D"));
        assert_eq!(
            signature("fn f(a: [u8; 4]) -> [u8; 2];").result,
            Some("[u8; 2]")
        );
        assert_eq!(signature("fn f() {}").result, None);
    }

    #[test]
    fn function_pointers_and_closures_are_no_functions() {
        let code = "type F = fn(A) -> B;\nlet g = |(a, b): (A, B)| a;\nlet not_fn = 1;\n";
        assert_eq!(function_signatures(code), []);
    }

    #[test]
    fn test_attribute_marks_next_function_only() {
        let code =
            "#[tokio::test(flavor = \"\")]\nasync fn a() {}\nfn b() {}\n#[test]\nfn c() {}\n";
        let tests: Vec<bool> = function_signatures(code)
            .iter()
            .map(|one| one.is_test)
            .collect();
        assert_eq!(tests, [true, false, true]);
    }

    #[test]
    fn tuple_needs_a_comma_at_top_level() {
        for tuple in [
            "(A, B)",
            "&(A, B)",
            "&'a mut (A, B<C, D>)",
            "(a, _)",
            "(A,)",
        ] {
            assert!(is_tuple(tuple), "{tuple}");
        }
        for other in [
            "()",
            "&(dyn A + B)",
            "(Fn(A, B))",
            "&[(A, B)]",
            "A<(B, C)>",
            "a",
        ] {
            assert!(!is_tuple(other), "{other}");
        }
    }
}

//! Warns about names in policy rules unknown to the named server. Such rules stay in force: the
//! server may add the tool later.

use bowline_core::call::FeatureKind;
use bowline_core::policy::FeaturePattern;
use bowline_host::catalog::{Catalog, ListKind, ServerCatalog};

use crate::{ConfigWarning, PatternMention};
use bowline_core::suggest::nearest_match;

/// Warns about each pattern for a single feature that is missing from the lists of the named
/// server.
pub(crate) fn find_unmatched_rules(
    mentions: &[PatternMention],
    catalog: &Catalog,
) -> Vec<ConfigWarning> {
    let warnings = mentions.iter().filter_map(|mention| {
        let (pattern, rule) = (&mention.pattern, &mention.rule);
        let (server, name) = (pattern.server()?, pattern.name()?);
        let offer = catalog.server(server)?;
        let kinds = searched_lists(pattern);
        if kinds.iter().any(|kind| has_feature(offer, *kind, name)) {
            return None;
        }
        let tools = offer.tools.iter().map(|tool| &*tool.route.name);
        let suggestion = nearest_match(name, tools);
        let suggestion = suggestion.map_or_else(String::new, |suggestion| {
            format!("; did you mean `{suggestion}`?")
        });
        let message =
            format!("`{pattern}` in `{rule}` names what `{server}` does not have{suggestion}");
        Some(ConfigWarning {
            position: Some(mention.position),
            message,
        })
    });
    warnings.collect()
}

/// Returns the lists to search. A pattern without a kind may match any list. Servers do not list
/// every resource, so an URI never counts as unmatched.
fn searched_lists(pattern: &FeaturePattern) -> &'static [ListKind] {
    match pattern.kind() {
        Some(FeatureKind::Tool) => &[ListKind::Tools],
        Some(FeatureKind::Prompt) => &[ListKind::Prompts],
        Some(FeatureKind::Resource | FeatureKind::Task) => &[ListKind::Resources],
        None => &ListKind::ALL,
    }
}

fn has_feature(offer: &ServerCatalog, kind: ListKind, name: &str) -> bool {
    let is_uri = matches!(kind, ListKind::Resources | ListKind::Templates) && name.contains(':');
    is_uri || offer.list(kind).route(name).is_some()
}

//! Names in the rules that no server has told of. They stay in force: a tool may come later.

use bowline_core::call::Kind;
use bowline_core::policy::Pattern;
use bowline_host::catalog::{Catalog, ListKind, Offer};

use crate::config::suggest::nearest;
use crate::config::{Mention, Warning};

/// Tells of each pattern that names one thing of a server which has told what it has, and does
/// not have it.
pub(crate) fn of(mentions: &[Mention], catalog: &Catalog) -> Vec<Warning> {
    let strangers = mentions.iter().filter_map(|mention| {
        let (pattern, rule) = (&mention.pattern, &mention.rule);
        let (server, name) = (pattern.server()?, pattern.name()?);
        let offer = catalog.offer(server)?;
        let kinds = kinds_of(pattern);
        if kinds.iter().any(|kind| has(offer, *kind, name)) {
            return None;
        }
        let tools = offer.tools.iter().map(|tool| &*tool.route.name);
        let near = nearest(name, tools);
        let near = near.map_or_else(String::new, |near| format!("; did you mean `{near}`?"));
        let message = format!("`{pattern}` in `{rule}` names what `{server}` does not have{near}");
        Some(Warning {
            place: Some(mention.place),
            message,
        })
    });
    strangers.collect()
}

/// Without a kind it may be meant for anything; resources are not all listed, so no URI is a
/// stranger.
fn kinds_of(pattern: &Pattern) -> &'static [ListKind] {
    match pattern.kind() {
        Some(Kind::Tool) => &[ListKind::Tools],
        Some(Kind::Prompt) => &[ListKind::Prompts],
        Some(Kind::Resource | Kind::Task) => &[ListKind::Resources],
        None => &ListKind::ALL,
    }
}

fn has(offer: &Offer, kind: ListKind, name: &str) -> bool {
    let unknowable =
        matches!(kind, ListKind::Resources | ListKind::Templates) && name.contains(':');
    unknowable || offer.shelf(kind).route(name).is_some()
}

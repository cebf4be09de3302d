//! The outline of a schema: how its parts lead to each other, so that one that would never end,
//! or take for ever, is known before it is used.

use std::collections::HashMap;

use serde_json::{Map, Value};

use super::schema::Refused;

/// How deep a schema may be nested.
const DEPTH_MAX: usize = 64;

/// Values of a schema.
const VALUES_MAX: usize = 10_000;

/// References in a schema.
const REFERENCES_MAX: usize = 64;

/// Patterns in a schema, and bytes of each.
const PATTERNS_MAX: usize = 32;
const PATTERN_BYTES_MAX: usize = 1_024;

/// References that lead back to a part that is under way.
const RETURNS_MAX: usize = 8;

/// Parts of a schema once each reference is replaced by what it refers to.
const PARTS_MAX: usize = 20_000;

/// The longest way through a schema.
const LONGEST_MAX: usize = 256;

/// Dialects in which a part applies as this file says.
const DIALECTS: [&str; 4] = [
    "https://json-schema.org/draft/2020-12/schema",
    "https://json-schema.org/draft/2019-09/schema",
    "http://json-schema.org/draft-07/schema",
    "http://json-schema.org/draft-06/schema",
];

/// What looking at a value by a schema can come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Outline {
    /// Parts, each counted as often as there are ways to it.
    pub(super) parts: usize,
    /// Parts on the longest way that stays at one value.
    pub(super) longest: usize,
    /// References that lead back, for values inside the value.
    pub(super) returns: usize,
}

/// Reads a schema that is not nested too deep.
pub(super) fn read_limited(text: &[u8]) -> Option<Value> {
    let value: Value = serde_json::from_slice(text).ok()?;
    depth_within(&value, DEPTH_MAX).then_some(value)
}

fn depth_within(value: &Value, left: usize) -> bool {
    let Some(left) = left.checked_sub(1) else {
        return false;
    };
    match value {
        Value::Array(items) => items.iter().all(|item| depth_within(item, left)),
        Value::Object(members) => members.values().all(|member| depth_within(member, left)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => true,
    }
}

impl Outline {
    pub(super) fn of(schema: &Value) -> Result<Self, Refused> {
        let mut graph = Graph::default();
        graph.walk(schema, "", Role::Schema)?;
        graph.link()?;
        // Ways that stay at one value must end.
        let order = graph.order(false).ok_or(Refused::Endless)?;
        let staying = graph.measure(&order, false);
        let (parts, longest, returns) = match graph.order(true) {
            Some(order) => {
                let all = graph.measure(&order, true);
                (all.0, all.1, 0)
            }
            None => (
                staying.0.saturating_mul(graph.edges.len()),
                staying.1,
                graph.returns(),
            ),
        };
        if staying.0 > PARTS_MAX || longest > LONGEST_MAX || returns > RETURNS_MAX {
            return Err(Refused::TooMany);
        }
        if returns == 0 && parts > PARTS_MAX {
            return Err(Refused::TooMany);
        }
        Ok(Self {
            parts: parts.min(PARTS_MAX),
            longest,
            returns,
        })
    }
}

/// What a value of the schema document is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    Schema,
    /// Names to schemas.
    Names,
    /// A list of schemas.
    List,
}

/// How a part leads to another.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Leads {
    /// Both look at the same value.
    Stays,
    /// The other looks at values inside.
    Descends,
    /// It is only written there.
    Holds,
}

#[derive(Default)]
struct Graph {
    /// Each part, and where it leads.
    edges: Vec<Vec<(usize, Leads)>>,
    /// Parts by their JSON pointer.
    places: HashMap<String, usize>,
    /// Parts that refer to a place.
    references: Vec<(usize, String)>,
    patterns: usize,
    values: usize,
}

impl Graph {
    fn walk(&mut self, value: &Value, place: &str, role: Role) -> Result<usize, Refused> {
        self.values += 1;
        if self.values > VALUES_MAX {
            return Err(Refused::TooMany);
        }
        let own = self.edges.len();
        self.edges.push(Vec::new());
        self.places.insert(place.to_owned(), own);
        match (value, role) {
            (Value::Object(members), Role::Schema) => self.schema(members, own, place)?,
            (Value::Object(members), Role::Names) => {
                for (name, member) in members {
                    let to = self.walk(member, &join(place, name), Role::Schema)?;
                    self.lead(own, to, Leads::Stays);
                }
            }
            (Value::Array(items), Role::List | Role::Schema) => {
                for (nth, item) in items.iter().enumerate() {
                    let to = self.walk(item, &join(place, &nth.to_string()), Role::Schema)?;
                    self.lead(own, to, Leads::Stays);
                }
            }
            _ => {}
        }
        Ok(own)
    }

    fn schema(
        &mut self,
        members: &Map<String, Value>,
        own: usize,
        place: &str,
    ) -> Result<(), Refused> {
        for (key, member) in members {
            let (role, leads) = match key.as_str() {
                "$ref" => {
                    self.refer(own, member)?;
                    continue;
                }
                // Where these lead depends on the way by which one came.
                "$dynamicRef" | "$recursiveRef" => return Err(Refused::Remote),
                "$id" | "$anchor" | "$dynamicAnchor" if !place.is_empty() => {
                    return Err(Refused::Remote);
                }
                "$schema" => {
                    dialect(member)?;
                    continue;
                }
                "pattern" => {
                    self.pattern(member.as_str().unwrap_or_default())?;
                    continue;
                }
                "patternProperties" => {
                    for pattern in member.as_object().into_iter().flat_map(Map::keys) {
                        self.pattern(pattern)?;
                    }
                    (Role::Names, Leads::Descends)
                }
                "properties" => (Role::Names, Leads::Descends),
                "items"
                | "prefixItems"
                | "additionalItems"
                | "unevaluatedItems"
                | "contains"
                | "additionalProperties"
                | "unevaluatedProperties"
                | "propertyNames" => (Role::Schema, Leads::Descends),
                "$defs" | "definitions" => (Role::Names, Leads::Holds),
                "dependentSchemas" | "dependencies" => (Role::Names, Leads::Stays),
                "allOf" | "anyOf" | "oneOf" => (Role::List, Leads::Stays),
                "not" | "if" | "then" | "else" => (Role::Schema, Leads::Stays),
                _ => {
                    self.count(member)?;
                    continue;
                }
            };
            let to = self.walk(member, &join(place, key), role)?;
            self.lead(own, to, leads);
        }
        Ok(())
    }

    /// Counts values that are no parts: they cost memory all the same.
    fn count(&mut self, value: &Value) -> Result<(), Refused> {
        self.values += 1;
        if self.values > VALUES_MAX {
            return Err(Refused::TooMany);
        }
        match value {
            Value::Array(items) => items.iter().try_for_each(|item| self.count(item)),
            Value::Object(members) => members.values().try_for_each(|one| self.count(one)),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => Ok(()),
        }
    }

    fn refer(&mut self, own: usize, to: &Value) -> Result<(), Refused> {
        let to = to.as_str().and_then(|to| to.strip_prefix('#'));
        let to = to.ok_or(Refused::Remote)?;
        if self.references.len() >= REFERENCES_MAX {
            return Err(Refused::TooMany);
        }
        self.references.push((own, to.to_owned()));
        Ok(())
    }

    fn pattern(&mut self, pattern: &str) -> Result<(), Refused> {
        self.patterns += 1;
        if self.patterns > PATTERNS_MAX || pattern.len() > PATTERN_BYTES_MAX {
            return Err(Refused::TooMany);
        }
        Ok(())
    }

    fn lead(&mut self, from: usize, to: usize, leads: Leads) {
        if leads != Leads::Holds
            && let Some(edges) = self.edges.get_mut(from)
        {
            edges.push((to, leads));
        }
    }

    /// Replaces places by the parts that are there.
    fn link(&mut self) -> Result<(), Refused> {
        for (from, place) in std::mem::take(&mut self.references) {
            let to = self.places.get(&place).copied().ok_or(Refused::Dangling)?;
            self.lead(from, to, Leads::Stays);
            self.references.push((from, place));
        }
        Ok(())
    }

    fn ways(&self, from: usize, inside: bool) -> impl Iterator<Item = usize> + '_ {
        let edges = self.edges.get(from).into_iter().flatten();
        let edges = edges.filter(move |(_, leads)| inside || *leads == Leads::Stays);
        edges.map(|(to, _)| *to)
    }

    /// Returns all parts so that each comes before those it leads to; `None` where there is a
    /// circle.
    fn order(&self, inside: bool) -> Option<Vec<usize>> {
        let order = self.peel(inside);
        (order.len() == self.edges.len()).then_some(order)
    }

    /// The same of those parts that no circle leads to.
    fn peel(&self, inside: bool) -> Vec<usize> {
        let mut leading = vec![0_usize; self.edges.len()];
        for to in (0..self.edges.len()).flat_map(|from| self.ways(from, inside)) {
            if let Some(count) = leading.get_mut(to) {
                *count += 1;
            }
        }
        let counts = leading.iter().enumerate();
        let mut ready: Vec<usize> = counts.filter(|one| *one.1 == 0).map(|one| one.0).collect();
        let mut order = Vec::with_capacity(self.edges.len());
        while let Some(from) = ready.pop() {
            order.push(from);
            for to in self.ways(from, inside) {
                if let Some(count) = leading.get_mut(to) {
                    *count -= 1;
                    if *count == 0 {
                        ready.push(to);
                    }
                }
            }
        }
        order
    }

    /// Returns the most parts that any part comes to, each counted as often as there are ways to
    /// it, and the longest way.
    fn measure(&self, order: &[usize], inside: bool) -> (usize, usize) {
        let mut sizes = vec![(1_usize, 1_usize); self.edges.len()];
        let mut most = (1, 1);
        for from in order.iter().rev() {
            let mut size = (1_usize, 1_usize);
            for to in self.ways(*from, inside) {
                let (parts, longest) = sizes.get(to).copied().unwrap_or((1, 1));
                size = (size.0.saturating_add(parts), size.1.max(longest + 1));
            }
            if let Some(own) = sizes.get_mut(*from) {
                *own = size;
            }
            most = (most.0.max(size.0), most.1.max(size.1));
        }
        most
    }

    /// Returns how many references lead to parts of circles, or to what circles lead to.
    fn returns(&self) -> usize {
        let free: std::collections::HashSet<usize> = self.peel(true).into_iter().collect();
        let bound = |(from, place): &&(usize, String)| {
            let to = self.places.get(place);
            !free.contains(from) && to.is_some_and(|to| !free.contains(to))
        };
        self.references.iter().filter(bound).count()
    }
}

fn dialect(said: &Value) -> Result<(), Refused> {
    let said = said.as_str().unwrap_or_default().trim_end_matches('#');
    if DIALECTS.contains(&said) {
        Ok(())
    } else {
        Err(Refused::Dialect)
    }
}

/// Adds a part to a JSON pointer, as references write it.
fn join(place: &str, key: &str) -> String {
    format!("{place}/{}", key.replace('~', "~0").replace('/', "~1"))
}

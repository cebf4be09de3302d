//! Reference graph of a schema: detects infinite recursion and excessive cost before use.

use std::collections::HashMap;

use serde_json::{Map, Value};

use super::compiled_schema::SchemaError;

/// Maximum nesting depth of a schema.
const DEPTH_MAX: usize = 64;

/// Maximum number of values in a schema.
const VALUES_MAX: usize = 10_000;

/// Maximum number of references.
const REFERENCES_MAX: usize = 64;

/// Maximum number of patterns, and bytes of each.
const PATTERNS_MAX: usize = 32;
const PATTERN_BYTES_MAX: usize = 1_024;

/// Maximum number of references into recursive parts.
const RECURSIVE_REFERENCES_MAX: usize = 8;

/// Maximum number of parts with all references expanded.
const PARTS_MAX: usize = 20_000;

/// Maximum path length through a schema.
const PATH_LENGTH_MAX: usize = 256;

/// Dialects with the keyword semantics used here.
const DIALECTS: [&str; 4] = [
    "https://json-schema.org/draft/2020-12/schema",
    "https://json-schema.org/draft/2019-09/schema",
    "http://json-schema.org/draft-07/schema",
    "http://json-schema.org/draft-06/schema",
];

/// Cost measures of a validation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SchemaOutline {
    /// Parts, counted once per path.
    pub(super) parts: usize,
    /// Parts on the longest path within a single value.
    pub(super) longest: usize,
    /// Recursive references, relevant for nested values.
    pub(super) recursive_references: usize,
}

/// Parses a schema within the depth limit.
pub(super) fn parse_limited(text: &[u8]) -> Option<Value> {
    let value: Value = serde_json::from_slice(text).ok()?;
    is_within_depth(&value, DEPTH_MAX).then_some(value)
}

fn is_within_depth(value: &Value, left: usize) -> bool {
    let Some(left) = left.checked_sub(1) else {
        return false;
    };
    match value {
        Value::Array(items) => items.iter().all(|item| is_within_depth(item, left)),
        Value::Object(members) => members.values().all(|member| is_within_depth(member, left)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => true,
    }
}

impl SchemaOutline {
    pub(super) fn from_schema(schema: &Value) -> Result<Self, SchemaError> {
        let mut graph = SchemaGraph::default();
        graph.add_node(schema, "", SchemaNode::Schema)?;
        graph.resolve_references()?;
        // Paths within a single value must be finite.
        let order = graph.topological_order(false).ok_or(SchemaError::Endless)?;
        let staying = graph.measure_cost(&order, false);
        let (parts, longest, returns) = match graph.topological_order(true) {
            Some(order) => {
                let all = graph.measure_cost(&order, true);
                (all.0, all.1, 0)
            }
            None => (
                staying.0.saturating_mul(graph.edges.len()),
                staying.1,
                graph.count_recursive_references(),
            ),
        };
        if staying.0 > PARTS_MAX || longest > PATH_LENGTH_MAX || returns > RECURSIVE_REFERENCES_MAX
        {
            return Err(SchemaError::TooMany);
        }
        if returns == 0 && parts > PARTS_MAX {
            return Err(SchemaError::TooMany);
        }
        Ok(Self {
            parts: parts.min(PARTS_MAX),
            longest,
            recursive_references: returns,
        })
    }
}

/// Kind of a node in the schema document.
#[derive(Clone, Copy, PartialEq, Eq)]
enum SchemaNode {
    Schema,
    /// Map from name to schema.
    SchemaMap,
    /// List of schemas.
    SchemaList,
}

/// Kind of an edge between parts.
#[derive(Clone, Copy, PartialEq, Eq)]
enum SchemaEdge {
    /// Both parts apply to the same value.
    SameValue,
    /// The target applies to nested values.
    NestedValue,
    /// Definition only; not applied.
    Definition,
}

#[derive(Default)]
struct SchemaGraph {
    /// Outgoing edges of each part.
    edges: Vec<Vec<(usize, SchemaEdge)>>,
    /// Parts by JSON pointer.
    pointers: HashMap<String, usize>,
    /// Source part and target pointer of each reference.
    references: Vec<(usize, String)>,
    patterns: usize,
    values: usize,
}

impl SchemaGraph {
    fn add_node(
        &mut self,
        value: &Value,
        pointer: &str,
        role: SchemaNode,
    ) -> Result<usize, SchemaError> {
        self.values += 1;
        if self.values > VALUES_MAX {
            return Err(SchemaError::TooMany);
        }
        let own = self.edges.len();
        self.edges.push(Vec::new());
        self.pointers.insert(pointer.to_owned(), own);
        match (value, role) {
            (Value::Object(members), SchemaNode::Schema) => {
                self.add_schema(members, own, pointer)?
            }
            (Value::Object(members), SchemaNode::SchemaMap) => {
                for (name, member) in members {
                    let to =
                        self.add_node(member, &append_pointer(pointer, name), SchemaNode::Schema)?;
                    self.add_edge(own, to, SchemaEdge::SameValue);
                }
            }
            (Value::Array(items), SchemaNode::SchemaList | SchemaNode::Schema) => {
                for (nth, item) in items.iter().enumerate() {
                    let to = self.add_node(
                        item,
                        &append_pointer(pointer, &nth.to_string()),
                        SchemaNode::Schema,
                    )?;
                    self.add_edge(own, to, SchemaEdge::SameValue);
                }
            }
            _ => {}
        }
        Ok(own)
    }

    fn add_schema(
        &mut self,
        members: &Map<String, Value>,
        own: usize,
        pointer: &str,
    ) -> Result<(), SchemaError> {
        for (key, member) in members {
            let (role, leads) = match key.as_str() {
                "$ref" => {
                    self.add_reference(own, member)?;
                    continue;
                }
                // The target of a dynamic reference depends on the path taken.
                "$dynamicRef" | "$recursiveRef" => return Err(SchemaError::Remote),
                "$id" | "$anchor" | "$dynamicAnchor" if !pointer.is_empty() => {
                    return Err(SchemaError::Remote);
                }
                "$schema" => {
                    check_dialect(member)?;
                    continue;
                }
                "pattern" => {
                    self.add_pattern(member.as_str().unwrap_or_default())?;
                    continue;
                }
                "patternProperties" => {
                    for pattern in member.as_object().into_iter().flat_map(Map::keys) {
                        self.add_pattern(pattern)?;
                    }
                    (SchemaNode::SchemaMap, SchemaEdge::NestedValue)
                }
                "properties" => (SchemaNode::SchemaMap, SchemaEdge::NestedValue),
                "items"
                | "prefixItems"
                | "additionalItems"
                | "unevaluatedItems"
                | "contains"
                | "additionalProperties"
                | "unevaluatedProperties"
                | "propertyNames" => (SchemaNode::Schema, SchemaEdge::NestedValue),
                "$defs" | "definitions" => (SchemaNode::SchemaMap, SchemaEdge::Definition),
                "dependentSchemas" | "dependencies" => {
                    (SchemaNode::SchemaMap, SchemaEdge::SameValue)
                }
                "allOf" | "anyOf" | "oneOf" => (SchemaNode::SchemaList, SchemaEdge::SameValue),
                "not" | "if" | "then" | "else" => (SchemaNode::Schema, SchemaEdge::SameValue),
                _ => {
                    self.count_values(member)?;
                    continue;
                }
            };
            let to = self.add_node(member, &append_pointer(pointer, key), role)?;
            self.add_edge(own, to, leads);
        }
        Ok(())
    }

    /// Counts values outside schema parts: they cost memory too.
    fn count_values(&mut self, value: &Value) -> Result<(), SchemaError> {
        self.values += 1;
        if self.values > VALUES_MAX {
            return Err(SchemaError::TooMany);
        }
        match value {
            Value::Array(items) => items.iter().try_for_each(|item| self.count_values(item)),
            Value::Object(members) => members.values().try_for_each(|one| self.count_values(one)),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => Ok(()),
        }
    }

    fn add_reference(&mut self, own: usize, to: &Value) -> Result<(), SchemaError> {
        let to = to.as_str().and_then(|to| to.strip_prefix('#'));
        let to = to.ok_or(SchemaError::Remote)?;
        if self.references.len() >= REFERENCES_MAX {
            return Err(SchemaError::TooMany);
        }
        self.references.push((own, to.to_owned()));
        Ok(())
    }

    fn add_pattern(&mut self, pattern: &str) -> Result<(), SchemaError> {
        self.patterns += 1;
        if self.patterns > PATTERNS_MAX || pattern.len() > PATTERN_BYTES_MAX {
            return Err(SchemaError::TooMany);
        }
        Ok(())
    }

    fn add_edge(&mut self, from: usize, to: usize, leads: SchemaEdge) {
        if leads != SchemaEdge::Definition
            && let Some(edges) = self.edges.get_mut(from)
        {
            edges.push((to, leads));
        }
    }

    /// Resolves reference pointers to parts.
    fn resolve_references(&mut self) -> Result<(), SchemaError> {
        for (from, place) in std::mem::take(&mut self.references) {
            let to = self
                .pointers
                .get(&place)
                .copied()
                .ok_or(SchemaError::Dangling)?;
            self.add_edge(from, to, SchemaEdge::SameValue);
            self.references.push((from, place));
        }
        Ok(())
    }

    fn targets(&self, from: usize, inside: bool) -> impl Iterator<Item = usize> + '_ {
        let edges = self.edges.get(from).into_iter().flatten();
        let edges = edges.filter(move |(_, leads)| inside || *leads == SchemaEdge::SameValue);
        edges.map(|(to, _)| *to)
    }

    /// Returns a topological order of all parts; `None` if the graph has a cycle.
    fn topological_order(&self, inside: bool) -> Option<Vec<usize>> {
        let order = self.peel_acyclic(inside);
        (order.len() == self.edges.len()).then_some(order)
    }

    /// Returns a topological order of the parts not reachable from a cycle.
    fn peel_acyclic(&self, inside: bool) -> Vec<usize> {
        let mut leading = vec![0_usize; self.edges.len()];
        for to in (0..self.edges.len()).flat_map(|from| self.targets(from, inside)) {
            if let Some(count) = leading.get_mut(to) {
                *count += 1;
            }
        }
        let counts = leading.iter().enumerate();
        let mut ready: Vec<usize> = counts.filter(|one| *one.1 == 0).map(|one| one.0).collect();
        let mut order = Vec::with_capacity(self.edges.len());
        while let Some(from) = ready.pop() {
            order.push(from);
            for to in self.targets(from, inside) {
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

    /// Returns the maximum number of parts below a part, counted once per path, and the longest
    /// path.
    fn measure_cost(&self, order: &[usize], inside: bool) -> (usize, usize) {
        let mut sizes = vec![(1_usize, 1_usize); self.edges.len()];
        let mut most = (1, 1);
        for from in order.iter().rev() {
            let mut size = (1_usize, 1_usize);
            for to in self.targets(*from, inside) {
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

    /// Counts references within or below cycles.
    fn count_recursive_references(&self) -> usize {
        let free: std::collections::HashSet<usize> = self.peel_acyclic(true).into_iter().collect();
        let bound = |(from, pointer): &&(usize, String)| {
            let to = self.pointers.get(pointer);
            !free.contains(from) && to.is_some_and(|to| !free.contains(to))
        };
        self.references.iter().filter(bound).count()
    }
}

fn check_dialect(dialect: &Value) -> Result<(), SchemaError> {
    let dialect = dialect.as_str().unwrap_or_default().trim_end_matches('#');
    if DIALECTS.contains(&dialect) {
        Ok(())
    } else {
        Err(SchemaError::Dialect)
    }
}

/// Appends a segment to a JSON pointer, escaped as in references.
fn append_pointer(pointer: &str, key: &str) -> String {
    format!("{pointer}/{}", key.replace('~', "~0").replace('/', "~1"))
}

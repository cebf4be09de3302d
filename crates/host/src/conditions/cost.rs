//! Estimates the cost of evaluating a condition on given arguments, before the evaluation.
//!
//! The estimate is an upper bound from the syntax tree and the sizes of the arguments: a loop costs
//! the loop body for every item, and a function costs the bytes read.

use cel::IdedExpr;
use cel::common::ast::{CallExpr, ComprehensionExpr, EntryExpr, Expr, LiteralValue, operators};
use serde_json::Value;

use super::patterns::{CompiledPatterns, MATCHES_FUNCTION};

/// Bytes of text scanned per unit of work.
pub(super) const SCANNED_BYTES: u64 = 64;

/// Bytes of lists and maps visited per unit of work.
const VISITED_BYTES: u64 = 8;

/// Units of work of a loop iteration besides the body.
const ITERATION_COST: u64 = 3;

/// Fixed cost of a match, in scanned chunks.
const MATCH_CHUNKS: u64 = 16;

/// Assumed bytes of a scalar value.
const SCALAR_BYTES: u64 = 8;

/// Assumed maximum bytes of the variables besides the arguments.
const VARIABLE_BYTES_MAX: u64 = 1_024;

/// Returns an upper bound for the cost of evaluating `expression`.
pub(super) fn estimate_cost(
    expression: &IdedExpr,
    args: &Value,
    patterns: &CompiledPatterns,
) -> u64 {
    let mut estimator = CostEstimator {
        args: ValueSize::from_json(args),
        patterns,
        loop_variables: Vec::new(),
    };
    estimator.visit_node(expression).0
}

/// Upper bounds for the size of a value before its evaluation.
#[derive(Clone, Copy, Debug)]
struct ValueSize<'e> {
    /// Maximum bytes of the whole value.
    bytes: u64,
    /// Maximum items visited by a loop.
    items: u64,
    /// Maximum bytes of one item.
    item_bytes: u64,
    /// Whether no item is a collection.
    is_flat: bool,
    /// The value itself, for a part of the arguments.
    json: Option<&'e Value>,
}

impl<'e> ValueSize<'e> {
    const SCALAR: Self = Self::scalar(SCALAR_BYTES);

    /// Size of a text or any other scalar.
    const fn scalar(bytes: u64) -> Self {
        Self {
            bytes,
            items: 0,
            item_bytes: 0,
            is_flat: true,
            json: None,
        }
    }

    /// Size of a value with known bytes but unknown structure.
    const fn unknown(bytes: u64) -> Self {
        Self {
            bytes,
            items: bytes,
            item_bytes: bytes,
            is_flat: false,
            json: None,
        }
    }

    fn from_json(json: &'e Value) -> Self {
        let (items, item_bytes, is_flat) = match json {
            Value::Array(items) => {
                let largest = items.iter().map(value_bytes).max();
                (
                    len_u64(items.len()),
                    largest.unwrap_or(0),
                    items.iter().all(is_scalar),
                )
            }
            Value::Object(object) => {
                let longest = object.keys().map(|key| len_u64(key.len())).max();
                (len_u64(object.len()), longest.unwrap_or(0), false)
            }
            _ => (0, 0, true),
        };
        Self {
            bytes: value_bytes(json),
            items,
            item_bytes,
            is_flat,
            json: Some(json),
        }
    }

    /// Size of a member or item. The outer `None` means unknown before the evaluation, the inner
    /// `None` means absent, which ends the evaluation.
    fn part_size(self, known_part: Option<Option<&'e Value>>) -> Self {
        match known_part {
            Some(Some(part)) => Self::from_json(part),
            Some(None) => Self::SCALAR,
            None => Self::unknown(self.bytes),
        }
    }

    /// Size of any item, as seen by a loop.
    const fn item_size(self) -> Self {
        if self.is_flat {
            return Self::scalar(self.item_bytes);
        }
        Self::unknown(self.item_bytes)
    }

    /// Cost of reading the whole value.
    const fn read_cost(self) -> u64 {
        let is_text = self.is_flat && self.items == 0;
        self.bytes
            / if is_text {
                SCANNED_BYTES
            } else {
                VISITED_BYTES
            }
    }

    /// Component-wise maximum.
    fn component_max(self, other: Self) -> Self {
        Self {
            bytes: self.bytes.max(other.bytes),
            items: self.items.max(other.items),
            item_bytes: self.item_bytes.max(other.item_bytes),
            is_flat: self.is_flat && other.is_flat,
            json: None,
        }
    }

    /// Size of a concatenation.
    fn concat_size(self, other: Self) -> Self {
        Self {
            bytes: self.bytes.saturating_add(other.bytes),
            items: self.items.saturating_add(other.items),
            ..self.component_max(other)
        }
    }
}

fn len_u64(len: usize) -> u64 {
    u64::try_from(len).unwrap_or(u64::MAX)
}

const fn is_scalar(json: &Value) -> bool {
    !matches!(json, Value::Array(_) | Value::Object(_))
}

/// Returns the bytes of a value including nested values.
fn value_bytes(json: &Value) -> u64 {
    match json {
        Value::Null | Value::Bool(_) | Value::Number(_) => SCALAR_BYTES,
        // At least 1, so a value never has more items than bytes.
        Value::String(text) => len_u64(text.len()) + 1,
        Value::Array(items) => items.iter().map(value_bytes).sum::<u64>() + SCALAR_BYTES,
        Value::Object(object) => {
            let members = object.iter();
            let bytes: u64 = members
                .map(|(key, member)| len_u64(key.len()) + value_bytes(member))
                .sum();
            bytes + SCALAR_BYTES
        }
    }
}

struct CostEstimator<'e> {
    args: ValueSize<'e>,
    patterns: &'e CompiledPatterns,
    /// Variables of the enclosing loops.
    loop_variables: Vec<(&'e str, ValueSize<'e>)>,
}

impl<'e> CostEstimator<'e> {
    /// Returns the cost of a node and the size of the node's value.
    fn visit_node(&mut self, node: &'e IdedExpr) -> (u64, ValueSize<'e>) {
        match &node.expr {
            Expr::Unspecified => (1, ValueSize::SCALAR),
            Expr::Literal(literal) => (1, literal_size(literal)),
            Expr::Ident(name) => (1, self.variable_size(name)),
            Expr::Call(call) => self.visit_call(call),
            Expr::Comprehension(all) => self.visit_comprehension(all),
            Expr::Select(select) => {
                let (cost, operand) = self.visit_node(&select.operand);
                if select.test {
                    return (cost.saturating_add(2), ValueSize::SCALAR);
                }
                let part = operand.json.map(|json| json.get(&select.field));
                (cost.saturating_add(2), operand.part_size(part))
            }
            Expr::List(list) => self.visit_elements(list.elements.iter()),
            Expr::Map(map) => self.visit_elements(
                map.entries
                    .iter()
                    .flat_map(|entry| entry_parts(&entry.expr)),
            ),
            Expr::Struct(operand) => self.visit_elements(
                operand
                    .entries
                    .iter()
                    .flat_map(|entry| entry_parts(&entry.expr)),
            ),
        }
    }

    fn variable_size(&self, name: &str) -> ValueSize<'e> {
        let bound = self
            .loop_variables
            .iter()
            .rev()
            .find(|(bound, _)| *bound == name);
        match (bound, name) {
            (Some((_, size)), _) => *size,
            (None, "args") => self.args,
            (None, _) => ValueSize::scalar(VARIABLE_BYTES_MAX),
        }
    }

    /// Cost and size of a list or map literal.
    fn visit_elements(
        &mut self,
        elements: impl Iterator<Item = &'e IdedExpr>,
    ) -> (u64, ValueSize<'e>) {
        let mut all = ValueSize::scalar(SCALAR_BYTES);
        let mut total = 1_u64;
        for element in elements {
            let (cost, size) = self.visit_node(element);
            total = total.saturating_add(cost).saturating_add(size.read_cost());
            all = ValueSize {
                bytes: all.bytes.saturating_add(size.bytes),
                items: all.items.saturating_add(1),
                item_bytes: all.item_bytes.max(size.bytes),
                is_flat: all.is_flat && size.is_flat && size.items == 0,
                json: None,
            };
        }
        (total, all)
    }

    fn visit_call(&mut self, call: &'e CallExpr) -> (u64, ValueSize<'e>) {
        let mut total = 1_u64;
        let (mut first, mut second) = (ValueSize::SCALAR, ValueSize::SCALAR);
        let operands = call.target.as_deref().into_iter().chain(&call.args);
        for (index, operand) in operands.enumerate() {
            let (cost, size) = self.visit_node(operand);
            total = total.saturating_add(cost);
            match index {
                0 => first = size,
                1 => second = size,
                // The last branch of `a ? b : c`, or an extra argument.
                _ => second = second.component_max(size),
            }
        }
        let shorter = first.read_cost().min(second.read_cost());
        let both = first.read_cost().saturating_add(second.read_cost());
        let (cost, size) = match call.func_name.as_str() {
            operators::CONDITIONAL => (0, second),
            operators::INDEX => (1, first.part_size(literal_index(first, call))),
            operators::ADD => (both, first.concat_size(second)),
            operators::EQUALS | operators::NOT_EQUALS => (shorter, ValueSize::SCALAR),
            operators::IN => (second.read_cost(), ValueSize::SCALAR),
            "dyn" => (0, first),
            "string" | "bytes" => (first.read_cost(), ValueSize::scalar(first.bytes.max(32))),
            "contains" => (both, ValueSize::SCALAR),
            "startsWith" | "endsWith" => (shorter, ValueSize::SCALAR),
            MATCHES_FUNCTION => (self.match_cost(call, first), ValueSize::SCALAR),
            operators::LOGICAL_AND
            | operators::LOGICAL_OR
            | operators::LOGICAL_NOT
            | operators::NOT_STRICTLY_FALSE
            | "type" => (0, ValueSize::SCALAR),
            _ => (both, ValueSize::SCALAR),
        };
        (total.saturating_add(cost), size)
    }

    fn match_cost(&self, call: &CallExpr, text: ValueSize<'_>) -> u64 {
        let weight = match call.args.last().map(|pattern| &pattern.expr) {
            Some(Expr::Literal(LiteralValue::String(text))) => {
                self.patterns.pattern_weight(text.inner())
            }
            _ => 1,
        };
        let chunks = (text.bytes / SCANNED_BYTES).saturating_add(MATCH_CHUNKS);
        chunks.saturating_mul(weight)
    }

    fn visit_comprehension(&mut self, loop_expr: &'e ComprehensionExpr) -> (u64, ValueSize<'e>) {
        let (range_cost, range) = self.visit_node(&loop_expr.iter_range);
        let (init_cost, init) = self.visit_node(&loop_expr.accu_init);
        let outside = self.loop_variables.len();
        self.loop_variables
            .push((&loop_expr.iter_var, range.item_size()));
        if let Some(second) = &loop_expr.iter_var2 {
            self.loop_variables.push((second, range.item_size()));
        }
        self.loop_variables.push((&loop_expr.accu_var, init));
        let (cond_cost, _) = self.visit_node(&loop_expr.loop_cond);
        // One iteration adds its result for an empty accumulator: `accu + [item]` appends in
        // place, so the accumulator is read once and not in every iteration.
        let (step_cost, grown) = self.visit_node(&loop_expr.loop_step);
        let accu = ValueSize {
            bytes: grown.bytes.saturating_mul(range.items.max(1)),
            items: grown.items.saturating_mul(range.items.max(1)),
            json: None,
            ..grown
        };
        self.loop_variables.pop();
        self.loop_variables.push((&loop_expr.accu_var, accu));
        let (result_cost, result) = self.visit_node(&loop_expr.result);
        self.loop_variables.truncate(outside);
        let iteration_cost = ITERATION_COST
            .saturating_add(range.item_size().read_cost())
            .saturating_add(cond_cost)
            .saturating_add(step_cost);
        let cost = iteration_cost
            .saturating_mul(range.items)
            .saturating_add(range_cost)
            .saturating_add(init_cost)
            .saturating_add(result_cost)
            .saturating_add(accu.read_cost());
        (cost, result)
    }
}

/// Returns the part of the arguments selected by a literal index.
fn literal_index<'e>(size: ValueSize<'e>, call: &CallExpr) -> Option<Option<&'e Value>> {
    let Expr::Literal(index) = &call.args.last()?.expr else {
        return None;
    };
    let json = size.json?;
    match index {
        LiteralValue::String(key) => Some(json.get(key.inner())),
        LiteralValue::Int(at) => {
            let at = usize::try_from(*at.inner()).ok();
            Some(at.and_then(|at| json.get(at)))
        }
        _ => None,
    }
}

fn entry_parts(entry: &EntryExpr) -> impl Iterator<Item = &IdedExpr> {
    let (first, second) = match entry {
        EntryExpr::StructField(field) => (&field.value, None),
        EntryExpr::MapEntry(pair) => (&pair.key, Some(&pair.value)),
    };
    std::iter::once(first).chain(second)
}

fn literal_size<'e>(literal: &LiteralValue) -> ValueSize<'e> {
    match literal {
        LiteralValue::String(text) => ValueSize::scalar(len_u64(text.inner().len())),
        LiteralValue::Bytes(bytes) => ValueSize::scalar(len_u64(bytes.inner().len())),
        LiteralValue::Boolean(_)
        | LiteralValue::Double(_)
        | LiteralValue::Int(_)
        | LiteralValue::Null
        | LiteralValue::UInt(_) => ValueSize::SCALAR,
    }
}

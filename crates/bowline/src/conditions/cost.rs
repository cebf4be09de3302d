//! Estimates what the evaluation of a condition costs on given arguments, before it begins.
//!
//! The estimate is an upper bound by the syntax tree and by the sizes of the arguments: a loop
//! costs as much as its body for every item, and a function as much as the bytes it looks at.

use cel::IdedExpr;
use cel::common::ast::{CallExpr, ComprehensionExpr, EntryExpr, Expr, LiteralValue, operators};
use serde_json::Value;

use super::patterns::{MATCHES, Patterns};

/// Bytes of a text that are scanned for one unit of work.
pub(super) const SCANNED_BYTES: u64 = 64;

/// Bytes of lists and maps that are looked at for one unit of work.
const VISITED_BYTES: u64 = 8;

/// Units of work that one turn of a loop takes beside its body.
const TURN_COST: u64 = 3;

/// Stretches that every match costs beside those of its text.
const MATCH_STRETCHES: u64 = 16;

/// Bytes of a value that is neither a text nor made of others.
const SCALAR_BYTES: u64 = 8;

/// Bytes of the names that a condition may look at beside the arguments.
const NAME_BYTES_MAX: u64 = 1_024;

/// Returns the units of work that the evaluation of `expression` takes at most.
pub(super) fn estimate(expression: &IdedExpr, args: &Value, patterns: &Patterns) -> u64 {
    let mut estimator = Estimator {
        args: Size::of(args),
        patterns,
        bound: Vec::new(),
    };
    estimator.visit(expression).0
}

/// What is known of a value before it exists.
#[derive(Clone, Copy, Debug)]
struct Size<'e> {
    /// Bytes of all of it, at most.
    bytes: u64,
    /// Items that a loop over it visits, at most.
    items: u64,
    /// Bytes of one item, at most.
    item_bytes: u64,
    /// Whether no item is made of others.
    is_flat: bool,
    /// The value itself, where it is a part of the arguments.
    json: Option<&'e Value>,
}

impl<'e> Size<'e> {
    const SCALAR: Self = Self::text(SCALAR_BYTES);

    /// A text, or anything that holds no other values.
    const fn text(bytes: u64) -> Self {
        Self {
            bytes,
            items: 0,
            item_bytes: 0,
            is_flat: true,
            json: None,
        }
    }

    /// Something of which nothing but its bytes is known.
    const fn unknown(bytes: u64) -> Self {
        Self {
            bytes,
            items: bytes,
            item_bytes: bytes,
            is_flat: false,
            json: None,
        }
    }

    fn of(json: &'e Value) -> Self {
        let (items, item_bytes, is_flat) = match json {
            Value::Array(items) => {
                let largest = items.iter().map(weigh).max();
                (
                    count(items.len()),
                    largest.unwrap_or(0),
                    items.iter().all(is_flat),
                )
            }
            Value::Object(object) => {
                let longest = object.keys().map(|key| count(key.len())).max();
                (count(object.len()), longest.unwrap_or(0), false)
            }
            _ => (0, 0, true),
        };
        Self {
            bytes: weigh(json),
            items,
            item_bytes,
            is_flat,
            json: Some(json),
        }
    }

    /// A member or an item. The outer `None` is one that is not known before the evaluation, the
    /// inner one is one that is not there, which ends the evaluation.
    fn part(self, known: Option<Option<&'e Value>>) -> Self {
        match known {
            Some(Some(part)) => Self::of(part),
            Some(None) => Self::SCALAR,
            None => Self::unknown(self.bytes),
        }
    }

    /// Any item of it, as a loop sees it.
    const fn item(self) -> Self {
        if self.is_flat {
            return Self::text(self.item_bytes);
        }
        Self::unknown(self.item_bytes)
    }

    /// What it costs to look at all of it.
    const fn look(self) -> u64 {
        let is_text = self.is_flat && self.items == 0;
        self.bytes
            / if is_text {
                SCANNED_BYTES
            } else {
                VISITED_BYTES
            }
    }

    /// The larger of two in every way.
    fn max(self, other: Self) -> Self {
        Self {
            bytes: self.bytes.max(other.bytes),
            items: self.items.max(other.items),
            item_bytes: self.item_bytes.max(other.item_bytes),
            is_flat: self.is_flat && other.is_flat,
            json: None,
        }
    }

    /// Both, one after the other.
    fn plus(self, other: Self) -> Self {
        Self {
            bytes: self.bytes.saturating_add(other.bytes),
            items: self.items.saturating_add(other.items),
            ..self.max(other)
        }
    }
}

fn count(len: usize) -> u64 {
    u64::try_from(len).unwrap_or(u64::MAX)
}

const fn is_flat(json: &Value) -> bool {
    !matches!(json, Value::Array(_) | Value::Object(_))
}

/// Bytes of a value with all it holds.
fn weigh(json: &Value) -> u64 {
    match json {
        Value::Null | Value::Bool(_) | Value::Number(_) => SCALAR_BYTES,
        // No value weighs nothing, so that there are never more items than bytes.
        Value::String(text) => count(text.len()) + 1,
        Value::Array(items) => items.iter().map(weigh).sum::<u64>() + SCALAR_BYTES,
        Value::Object(object) => {
            let members = object.iter();
            let bytes: u64 = members
                .map(|(key, member)| count(key.len()) + weigh(member))
                .sum();
            bytes + SCALAR_BYTES
        }
    }
}

struct Estimator<'e> {
    args: Size<'e>,
    patterns: &'e Patterns,
    /// The variables of the loops that are open.
    bound: Vec<(&'e str, Size<'e>)>,
}

impl<'e> Estimator<'e> {
    /// Returns what a node costs, and how large its value is.
    fn visit(&mut self, node: &'e IdedExpr) -> (u64, Size<'e>) {
        match &node.expr {
            Expr::Unspecified => (1, Size::SCALAR),
            Expr::Literal(literal) => (1, literal_size(literal)),
            Expr::Ident(name) => (1, self.variable(name)),
            Expr::Call(call) => self.call(call),
            Expr::Comprehension(all) => self.comprehension(all),
            Expr::Select(select) => {
                let (cost, of) = self.visit(&select.operand);
                if select.test {
                    return (cost.saturating_add(2), Size::SCALAR);
                }
                let part = of.json.map(|json| json.get(&select.field));
                (cost.saturating_add(2), of.part(part))
            }
            Expr::List(list) => self.collect(list.elements.iter()),
            Expr::Map(map) => self.collect(map.entries.iter().flat_map(|entry| parts(&entry.expr))),
            Expr::Struct(of) => {
                self.collect(of.entries.iter().flat_map(|entry| parts(&entry.expr)))
            }
        }
    }

    fn variable(&self, name: &str) -> Size<'e> {
        let bound = self.bound.iter().rev().find(|(bound, _)| *bound == name);
        match (bound, name) {
            (Some((_, size)), _) => *size,
            (None, "args") => self.args,
            (None, _) => Size::text(NAME_BYTES_MAX),
        }
    }

    /// A list or a map that is written out.
    fn collect(&mut self, elements: impl Iterator<Item = &'e IdedExpr>) -> (u64, Size<'e>) {
        let mut all = Size::text(SCALAR_BYTES);
        let mut total = 1_u64;
        for element in elements {
            let (cost, size) = self.visit(element);
            total = total.saturating_add(cost).saturating_add(size.look());
            all = Size {
                bytes: all.bytes.saturating_add(size.bytes),
                items: all.items.saturating_add(1),
                item_bytes: all.item_bytes.max(size.bytes),
                is_flat: all.is_flat && size.is_flat && size.items == 0,
                json: None,
            };
        }
        (total, all)
    }

    fn call(&mut self, call: &'e CallExpr) -> (u64, Size<'e>) {
        let mut total = 1_u64;
        let (mut first, mut second) = (Size::SCALAR, Size::SCALAR);
        let operands = call.target.as_deref().into_iter().chain(&call.args);
        for (index, operand) in operands.enumerate() {
            let (cost, size) = self.visit(operand);
            total = total.saturating_add(cost);
            match index {
                0 => first = size,
                1 => second = size,
                // The last branch of `a ? b : c`, or an argument too many.
                _ => second = second.max(size),
            }
        }
        let shorter = first.look().min(second.look());
        let both = first.look().saturating_add(second.look());
        let (cost, size) = match call.func_name.as_str() {
            operators::CONDITIONAL => (0, second),
            operators::INDEX => (1, first.part(indexed(first, call))),
            operators::ADD => (both, first.plus(second)),
            operators::EQUALS | operators::NOT_EQUALS => (shorter, Size::SCALAR),
            operators::IN => (second.look(), Size::SCALAR),
            "dyn" => (0, first),
            "string" | "bytes" => (first.look(), Size::text(first.bytes.max(32))),
            "contains" => (both, Size::SCALAR),
            "startsWith" | "endsWith" => (shorter, Size::SCALAR),
            MATCHES => (self.match_cost(call, first), Size::SCALAR),
            operators::LOGICAL_AND
            | operators::LOGICAL_OR
            | operators::LOGICAL_NOT
            | operators::NOT_STRICTLY_FALSE
            | "type" => (0, Size::SCALAR),
            _ => (both, Size::SCALAR),
        };
        (total.saturating_add(cost), size)
    }

    fn match_cost(&self, call: &CallExpr, text: Size<'_>) -> u64 {
        let weight = match call.args.last().map(|pattern| &pattern.expr) {
            Some(Expr::Literal(LiteralValue::String(text))) => self.patterns.weight(text.inner()),
            _ => 1,
        };
        let stretches = (text.bytes / SCANNED_BYTES).saturating_add(MATCH_STRETCHES);
        stretches.saturating_mul(weight)
    }

    fn comprehension(&mut self, all: &'e ComprehensionExpr) -> (u64, Size<'e>) {
        let (range_cost, range) = self.visit(&all.iter_range);
        let (init_cost, init) = self.visit(&all.accu_init);
        let outside = self.bound.len();
        self.bound.push((&all.iter_var, range.item()));
        if let Some(second) = &all.iter_var2 {
            self.bound.push((second, range.item()));
        }
        self.bound.push((&all.accu_var, init));
        let (cond_cost, _) = self.visit(&all.loop_cond);
        // What one turn adds to the result is what it makes of an empty one: `accu + [item]`
        // appends in place, so that the result is looked at once and not at every turn.
        let (step_cost, grown) = self.visit(&all.loop_step);
        let accu = Size {
            bytes: grown.bytes.saturating_mul(range.items.max(1)),
            items: grown.items.saturating_mul(range.items.max(1)),
            json: None,
            ..grown
        };
        self.bound.pop();
        self.bound.push((&all.accu_var, accu));
        let (result_cost, result) = self.visit(&all.result);
        self.bound.truncate(outside);
        let turn = TURN_COST
            .saturating_add(range.item().look())
            .saturating_add(cond_cost)
            .saturating_add(step_cost);
        let cost = turn
            .saturating_mul(range.items)
            .saturating_add(range_cost)
            .saturating_add(init_cost)
            .saturating_add(result_cost)
            .saturating_add(accu.look());
        (cost, result)
    }
}

/// The part of the arguments that an index which is written out names.
fn indexed<'e>(of: Size<'e>, call: &CallExpr) -> Option<Option<&'e Value>> {
    let Expr::Literal(index) = &call.args.last()?.expr else {
        return None;
    };
    let json = of.json?;
    match index {
        LiteralValue::String(key) => Some(json.get(key.inner())),
        LiteralValue::Int(at) => {
            let at = usize::try_from(*at.inner()).ok();
            Some(at.and_then(|at| json.get(at)))
        }
        _ => None,
    }
}

fn parts(entry: &EntryExpr) -> impl Iterator<Item = &IdedExpr> {
    let (first, second) = match entry {
        EntryExpr::StructField(field) => (&field.value, None),
        EntryExpr::MapEntry(pair) => (&pair.key, Some(&pair.value)),
    };
    std::iter::once(first).chain(second)
}

fn literal_size<'e>(literal: &LiteralValue) -> Size<'e> {
    match literal {
        LiteralValue::String(text) => Size::text(count(text.inner().len())),
        LiteralValue::Bytes(bytes) => Size::text(count(bytes.inner().len())),
        LiteralValue::Boolean(_)
        | LiteralValue::Double(_)
        | LiteralValue::Int(_)
        | LiteralValue::Null
        | LiteralValue::UInt(_) => Size::SCALAR,
    }
}

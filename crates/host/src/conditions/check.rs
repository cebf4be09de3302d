//! Validates the syntax tree of a condition: names, functions, loop depth and patterns.

use bowline_wire::case_fold::QueriedNames;
use cel::IdedExpr;
use cel::common::ast::{CallExpr, EntryExpr, Expr, LiteralValue, operators};

use super::patterns::{CompiledPatterns, MATCHES_FUNCTION};
use super::{ConditionParseError, KNOWN_FUNCTIONS, KNOWN_TYPES, KNOWN_VARIABLES, LOOPS_MAX};
use bowline_core::suggest::nearest_match;

/// Result of walking a condition's syntax tree.
#[derive(Debug, Default)]
pub(super) struct ConditionCheck {
    /// Variables of the enclosing loops.
    loop_variables: Vec<String>,
    /// The first error.
    first_error: Option<ConditionParseError>,
    /// Maximum loop depth.
    loop_depth: u32,
    patterns: CompiledPatterns,
    /// Member names, and string literals that may be member names.
    names: QueriedNames,
}

impl ConditionCheck {
    /// Visits a node at this loop depth.
    pub(super) fn visit_node(&mut self, node: &IdedExpr, depth: u32) {
        self.loop_depth = self.loop_depth.max(depth);
        match &node.expr {
            Expr::Literal(LiteralValue::String(text)) => self.names.add_possible_name(text.inner()),
            Expr::Unspecified | Expr::Literal(_) => {}
            Expr::Ident(name) => self.check_variable(name),
            Expr::Call(call) => {
                self.check_function(&call.func_name);
                self.record_member(call);
                if call.func_name == MATCHES_FUNCTION {
                    self.compile_pattern(call);
                }
                for part in call.target.as_deref().into_iter().chain(&call.args) {
                    self.visit_node(part, depth);
                }
            }
            Expr::Comprehension(comprehension) => {
                self.visit_node(&comprehension.iter_range, depth);
                self.visit_node(&comprehension.accu_init, depth);
                let outside = self.loop_variables.len();
                self.loop_variables.push(comprehension.iter_var.clone());
                self.loop_variables.extend(comprehension.iter_var2.clone());
                self.loop_variables.push(comprehension.accu_var.clone());
                for inner in [
                    &comprehension.loop_cond,
                    &comprehension.loop_step,
                    &comprehension.result,
                ] {
                    self.visit_node(inner, depth + 1);
                }
                self.loop_variables.truncate(outside);
            }
            Expr::List(list) => {
                for element in &list.elements {
                    self.visit_node(element, depth);
                }
            }
            Expr::Map(map) => map
                .entries
                .iter()
                .for_each(|entry| self.visit_entry(&entry.expr, depth)),
            Expr::Select(select) => {
                self.names.add_name(&select.field);
                self.visit_node(&select.operand, depth);
            }
            Expr::Struct(fields) => {
                let entries = fields.entries.iter();
                entries.for_each(|entry| self.visit_entry(&entry.expr, depth));
            }
        }
    }

    /// Returns the compiled patterns and the queried names, or the first error.
    pub(super) fn into_parts(
        self,
    ) -> Result<(CompiledPatterns, QueriedNames), ConditionParseError> {
        match self.first_error {
            Some(fault) => Err(fault),
            None if self.loop_depth > LOOPS_MAX => Err(ConditionParseError::TooManyLoops),
            None => Ok((self.patterns, self.names)),
        }
    }

    fn visit_entry(&mut self, entry: &EntryExpr, depth: u32) {
        match entry {
            EntryExpr::StructField(field) => self.visit_node(&field.value, depth),
            EntryExpr::MapEntry(pair) => {
                self.visit_node(&pair.key, depth);
                self.visit_node(&pair.value, depth);
            }
        }
    }

    /// Records `args['path']` and `'path' in args` as member access, like `args.path`.
    fn record_member(&mut self, call: &CallExpr) {
        let ((operators::INDEX, [_, name]) | (operators::IN, [name, _])) =
            (call.func_name.as_str(), call.args.as_slice())
        else {
            return;
        };
        if let Expr::Literal(LiteralValue::String(name)) = &name.expr {
            self.names.add_name(name.inner());
        }
    }

    fn check_variable(&mut self, name: &str) {
        let is_known = KNOWN_VARIABLES.contains(&name) || KNOWN_TYPES.contains(&name);
        if !is_known && !self.loop_variables.iter().any(|bound| bound == name) {
            let near = nearest_match(name, KNOWN_VARIABLES).map(str::to_owned);
            let name = name.to_owned();
            self.first_error
                .get_or_insert(ConditionParseError::UnknownName { name, near });
        }
    }

    /// Checks a function name. Operators are functions with non-alphanumeric names.
    fn check_function(&mut self, name: &str) {
        let is_operator = !name.bytes().all(|byte| byte.is_ascii_alphanumeric());
        if !is_operator && !KNOWN_FUNCTIONS.contains(&name) {
            let near = nearest_match(name, KNOWN_FUNCTIONS).map(str::to_owned);
            let name = name.to_owned();
            self.first_error
                .get_or_insert(ConditionParseError::UnknownFunction { name, near });
        }
    }

    /// Compiles the literal pattern of a `matches` call. A pattern from arguments would be compiled
    /// at every evaluation, at a cost controlled by the caller.
    fn compile_pattern(&mut self, call: &CallExpr) {
        let pattern = call.args.last().map(|argument| &argument.expr);
        let compiled = match pattern {
            Some(Expr::Literal(LiteralValue::String(pattern))) => {
                self.patterns.compile_pattern(pattern.inner())
            }
            _ => Err(ConditionParseError::PatternNotLiteral),
        };
        if let Err(fault) = compiled {
            self.first_error.get_or_insert(fault);
        }
    }
}

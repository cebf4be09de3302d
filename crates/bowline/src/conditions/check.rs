//! Checks the syntax tree of a condition when it is read: names, functions, loops and patterns.

use bowline_wire::fold::Names;
use cel::IdedExpr;
use cel::common::ast::{CallExpr, EntryExpr, Expr, LiteralValue, operators};

use super::patterns::{MATCHES, Patterns};
use super::{FUNCTIONS, Fault, LOOPS_MAX, TYPES, VARIABLES};
use crate::config::suggest::nearest;

/// What is known of a condition before it is evaluated.
#[derive(Debug, Default)]
pub(super) struct Check {
    /// The variables of the loops that are open.
    bound: Vec<String>,
    /// The first fault.
    fault: Option<Fault>,
    /// How deep loops stand in each other.
    loops: u32,
    patterns: Patterns,
    /// The names of members, and texts that may be some.
    names: Names,
}

impl Check {
    /// Visits a node that stands in so many loops.
    pub(super) fn visit(&mut self, node: &IdedExpr, loops: u32) {
        self.loops = self.loops.max(loops);
        match &node.expr {
            Expr::Literal(LiteralValue::String(text)) => self.names.perhaps(text.inner()),
            Expr::Unspecified | Expr::Literal(_) => {}
            Expr::Ident(name) => self.name(name),
            Expr::Call(call) => {
                self.function(&call.func_name);
                self.member(call);
                if call.func_name == MATCHES {
                    self.pattern(call);
                }
                for part in call.target.as_deref().into_iter().chain(&call.args) {
                    self.visit(part, loops);
                }
            }
            Expr::Comprehension(all) => {
                self.visit(&all.iter_range, loops);
                self.visit(&all.accu_init, loops);
                let outside = self.bound.len();
                self.bound.push(all.iter_var.clone());
                self.bound.extend(all.iter_var2.clone());
                self.bound.push(all.accu_var.clone());
                for inner in [&all.loop_cond, &all.loop_step, &all.result] {
                    self.visit(inner, loops + 1);
                }
                self.bound.truncate(outside);
            }
            Expr::List(list) => {
                for element in &list.elements {
                    self.visit(element, loops);
                }
            }
            Expr::Map(map) => map
                .entries
                .iter()
                .for_each(|entry| self.entry(&entry.expr, loops)),
            Expr::Select(select) => {
                self.names.ask(&select.field);
                self.visit(&select.operand, loops);
            }
            Expr::Struct(fields) => {
                let entries = fields.entries.iter();
                entries.for_each(|entry| self.entry(&entry.expr, loops));
            }
        }
    }

    /// Returns the compiled patterns of a condition without fault, and the names it asks for.
    pub(super) fn finish(self) -> Result<(Patterns, Names), Fault> {
        match self.fault {
            Some(fault) => Err(fault),
            None if self.loops > LOOPS_MAX => Err(Fault::TooManyLoops),
            None => Ok((self.patterns, self.names)),
        }
    }

    fn entry(&mut self, entry: &EntryExpr, loops: u32) {
        match entry {
            EntryExpr::StructField(field) => self.visit(&field.value, loops),
            EntryExpr::MapEntry(pair) => {
                self.visit(&pair.key, loops);
                self.visit(&pair.value, loops);
            }
        }
    }

    /// `args['path']` and `'path' in args` ask for a member as `args.path` does.
    fn member(&mut self, call: &CallExpr) {
        let ((operators::INDEX, [_, name]) | (operators::IN, [name, _])) =
            (call.func_name.as_str(), call.args.as_slice())
        else {
            return;
        };
        if let Expr::Literal(LiteralValue::String(name)) = &name.expr {
            self.names.ask(name.inner());
        }
    }

    fn name(&mut self, name: &str) {
        let given = VARIABLES.contains(&name) || TYPES.contains(&name);
        if !given && !self.bound.iter().any(|bound| bound == name) {
            let near = nearest(name, VARIABLES).map(str::to_owned);
            let name = name.to_owned();
            self.fault.get_or_insert(Fault::UnknownName { name, near });
        }
    }

    /// Operators are functions whose names hold signs.
    fn function(&mut self, name: &str) {
        let is_operator = !name.bytes().all(|byte| byte.is_ascii_alphanumeric());
        if !is_operator && !FUNCTIONS.contains(&name) {
            let near = nearest(name, FUNCTIONS).map(str::to_owned);
            let name = name.to_owned();
            self.fault
                .get_or_insert(Fault::UnknownFunction { name, near });
        }
    }

    /// Compiles the pattern of a call of `matches`. One that arguments decide would be compiled at
    /// every evaluation, at a cost that arguments decide.
    fn pattern(&mut self, call: &CallExpr) {
        let pattern = call.args.last().map(|argument| &argument.expr);
        let compiled = match pattern {
            Some(Expr::Literal(LiteralValue::String(pattern))) => {
                self.patterns.compile(pattern.inner())
            }
            _ => Err(Fault::PatternNotLiteral),
        };
        if let Err(fault) = compiled {
            self.fault.get_or_insert(fault);
        }
    }
}

//! Reads a dump of callgrind: the code of which source files ran, and how often functions of a
//! file were entered.

use std::collections::{BTreeMap, HashMap};

/// What one round executed of each source file of the workspace.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct CallProfile {
    /// By path below the workspace root, such as `crates/host/src/callpath.rs`.
    pub(super) files: BTreeMap<String, FileCost>,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct FileCost {
    pub(super) instructions: u64,
    /// Calls of functions in the file.
    pub(super) entries: u64,
}

/// Position in a dump: names are written once and referred to by number afterwards.
#[derive(Debug, Default)]
struct DumpReader<'a> {
    names: HashMap<&'a str, &'a str>,
    profile: CallProfile,
    /// File of the lines that follow.
    file: Option<String>,
    /// Line of the last cost; lines are relative to the one before.
    line: u64,
    /// File of the function that the next `calls=` line calls; the same file if `None`.
    called_file: Option<Option<String>>,
    /// The next line has the cost of a call, which its own lines contain already.
    skips_cost: bool,
}

impl CallProfile {
    /// Reads a dump with line numbers and one event, instructions.
    pub(super) fn from_dump(text: &str) -> Self {
        let mut reader = DumpReader::default();
        text.lines().for_each(|line| reader.read_line(line));
        reader.profile
    }
}

impl<'a> DumpReader<'a> {
    fn read_line(&mut self, line: &'a str) {
        let starts_with_cost = line.starts_with(|c: char| c.is_ascii_digit() || "+-*".contains(c));
        if starts_with_cost {
            return self.read_cost(line);
        }
        match line.split_once('=') {
            // `fi` and `fe` mark code that was inlined from another file, and its end.
            Some(("fl" | "fi" | "fe", name)) => self.file = self.workspace_path(name),
            Some(("cfl" | "cfi", name)) => self.called_file = Some(self.workspace_path(name)),
            Some(("calls", counts)) => {
                let count = counts.split_whitespace().next().unwrap_or_default();
                let called = self.called_file.take().unwrap_or_else(|| self.file.clone());
                if let Some(file) = called {
                    self.profile.cost_mut(&file).entries += count.parse::<u64>().unwrap_or(0);
                }
                self.skips_cost = true;
            }
            _ => {}
        }
    }

    /// Reads a line number and a cost. The compiler writes code of line 0, such as drop glue, and
    /// files the code under the root of a crate.
    fn read_cost(&mut self, line: &str) {
        let mut words = line.split_whitespace();
        let position = words.next().unwrap_or_default();
        let number = position.trim_start_matches(['+', '-', '*']).parse();
        let number = number.unwrap_or(0);
        self.line = match position.chars().next() {
            Some('+') => self.line + number,
            Some('-') => self.line.saturating_sub(number),
            Some('*') => self.line,
            _ => number,
        };
        let cost = words.next().and_then(|cost| cost.parse::<u64>().ok());
        if !std::mem::take(&mut self.skips_cost)
            && self.line > 0
            && let Some(file) = &self.file
        {
            self.profile.cost_mut(file).instructions += cost.unwrap_or(0);
        }
    }

    /// Resolves `(12) name` or `(12)`; `None` for files outside the workspace.
    fn workspace_path(&mut self, name: &'a str) -> Option<String> {
        let (number, name) = name.split_once(')').unwrap_or((name, ""));
        let name = match name.trim() {
            "" => self.names.get(number).copied()?,
            name => {
                self.names.insert(number, name);
                name
            }
        };
        let at = name.rfind("crates/")?;
        let (folder, path) = name.split_at_checked(at)?;
        let is_foreign = folder.contains("/registry/") || folder.starts_with("/rustc/");
        let is_source = path.split('/').nth(2) == Some("src");
        (is_source && !is_foreign).then(|| path.to_owned())
    }
}

impl CallProfile {
    fn cost_mut(&mut self, path: &str) -> &mut FileCost {
        self.files.entry(path.to_owned()).or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dump_is_summed_per_file() {
        let dump = "events: Ir\n\
            fl=(1) /x/crates/host/src/a.rs\nfn=(1) a::run\n10 5\n+1 2\n\
            cfi=(2) /x/crates/core/src/b.rs\ncfn=(2) b::check\ncalls=3 20\n12 100\n\
            cfn=(3) a::next\ncalls=1 30\n13 50\n\
            fi=(3) /rustc/abc/library/core/src/option.rs\n40 9\nfe=(1)\n14 1\n\
            fl=(4) /home/you/.cargo/registry/src/x/crates/y/src/z.rs\nfn=(4) z\n1 1\n\
            fl=(2)\nfn=(2)\n20 30\n* 4\n-20 9\n";
        let cost = |instructions, entries| FileCost {
            instructions,
            entries,
        };
        let files = CallProfile::from_dump(dump).files;
        let expected = [
            ("crates/core/src/b.rs".to_owned(), cost(34, 3)),
            ("crates/host/src/a.rs".to_owned(), cost(8, 1)),
        ];
        assert_eq!(files, expected.into());
    }
}

//! `audit export`: rows as JSON lines, for people to keep elsewhere and programs to read.

use std::fs::File;
use std::io::{self, BufWriter, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use bowline_journal::audit::{Cursor, Filter, Kept, Merged};
use serde_json::json;

use super::super::Context;
use super::super::client::QUICK;
use super::super::failure::{Exit, Failure};
use super::super::out::Out;
use super::super::table::count;
use super::source::{self, Source};
use super::unreadable;

pub(super) fn run(
    filter: &Filter,
    to: Option<&Path>,
    context: &mut Context,
) -> Result<Exit, Failure> {
    let source = Source::find(context)?;
    let Some(path) = to else {
        let out = &mut context.out;
        write(&source, filter, |line| out.raw(line.as_bytes()))?;
        return Ok(Exit::Ok);
    };
    let file = create(path)?;
    let mut lines = BufWriter::new(file);
    let written = write(&source, filter, |line| writeln!(lines, "{line}")).and_then(|rows| {
        let whole = lines.flush().and_then(|()| lines.get_ref().sync_all());
        whole
            .map(|()| rows)
            .map_err(|error| unwritten(path, &error))
    });
    match written {
        Ok(rows) => told(rows, path, &mut context.out),
        Err(failure) => {
            // Half of it would look like all of it.
            let _gone = std::fs::remove_file(path);
            Err(failure)
        }
    }
}

/// Makes a file that was not there. Where there is one, or a link, that is refused: neither is
/// anything to be lost, nor does a link say where rows go.
fn create(path: &Path) -> Result<File, Failure> {
    let made = File::options()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path);
    made.map_err(|error| match error.kind() {
        io::ErrorKind::AlreadyExists => {
            let message = format!("`{}` exists already", path.display());
            Failure::new(Exit::Usage, "exists", message).hint("name a file that does not exist yet")
        }
        _ => unwritten(path, &error),
    })
}

fn unwritten(path: &Path, error: &io::Error) -> Failure {
    let message = format!("cannot write `{}`", path.display());
    Failure::new(Exit::Unexpected, "output", message).hint(format!("cause: {error}"))
}

fn told(rows: u64, path: &Path, out: &mut Out) -> Result<Exit, Failure> {
    let path = path.display().to_string();
    out.result(&json!({"v": 1, "rows": rows, "file": path}), |out| {
        out.line(&format!("{} in {path}", count(rows, "row")))
    })?;
    Ok(Exit::Ok)
}

/// Hands every row on, oldest first.
fn write(
    source: &Source,
    filter: &Filter,
    mut line: impl FnMut(&str) -> io::Result<()>,
) -> Result<u64, Failure> {
    match source {
        Source::Files(directory) => {
            let written = Merged::span(directory, filter, |row| line(&row.line()));
            written.map_err(|error| match error {
                Kept::Unread(error) => unreadable(&error),
                Kept::Unwritten(error) => error.into(),
            })
        }
        Source::Gateway(client) => {
            let (mut after, mut rows) = (Cursor::default(), 0);
            let query = source::query(filter);
            loop {
                let path = format!("/api/v1/audit?after={after}&limit=2000{query}");
                let page = source::read(&client.get(&path, QUICK)?)?;
                for row in &page.rows {
                    line(row)?;
                    rows += 1;
                }
                if page.next == after {
                    return Ok(rows);
                }
                after = page.next;
            }
        }
    }
}

//! `audit export`: writes rows as JSON lines.

use std::fs::File;
use std::io::{self, BufWriter, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use bowline_journal::audit::{AuditCursor, AuditFilter, MergedPage, RowExportError};
use serde_json::json;

use super::super::CommandContext;
use super::super::failure::{CliExit, CliFailure};
use super::super::output::CliOutput;
use super::super::table::format_count;
use super::trail_source::{self, TrailSource};
use super::unreadable_trail;

/// Rows read from a gateway at once.
const EXPORT_ROWS_MAX: usize = 2_000;

pub(super) fn run(
    filter: &AuditFilter,
    output_path: Option<&Path>,
    context: &mut CommandContext,
) -> Result<CliExit, CliFailure> {
    let source = TrailSource::locate_trail(context)?;
    let Some(path) = output_path else {
        let out = &mut context.out;
        write_rows(&source, filter, |line| out.write_raw_json(line.as_bytes()))?;
        return Ok(CliExit::Ok);
    };
    let file = create_new_file(path)?;
    let mut lines = BufWriter::new(file);
    let written = write_rows(&source, filter, |line| writeln!(lines, "{line}")).and_then(|rows| {
        let synced = lines.flush().and_then(|()| lines.get_ref().sync_all());
        synced
            .map(|()| rows)
            .map_err(|error| write_failure(path, &error))
    });
    match written {
        Ok(rows) => report_export(rows, path, &mut context.out),
        Err(failure) => {
            // A partial file would look complete.
            let _gone = std::fs::remove_file(path);
            Err(failure)
        }
    }
}

/// Creates a new file. An existing file or link is refused: no data is overwritten, and a link
/// does not show the real destination.
fn create_new_file(path: &Path) -> Result<File, CliFailure> {
    let file = File::options()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path);
    file.map_err(|error| match error.kind() {
        io::ErrorKind::AlreadyExists => {
            let message = format!("`{}` exists already", path.display());
            CliFailure::new(CliExit::Usage, "exists", message)
                .with_hint("name a file that does not exist yet")
        }
        _ => write_failure(path, &error),
    })
}

fn write_failure(path: &Path, error: &io::Error) -> CliFailure {
    let message = format!("cannot write `{}`", path.display());
    CliFailure::new(CliExit::Unexpected, "output", message).with_hint(format!("cause: {error}"))
}

fn report_export(rows: u64, path: &Path, out: &mut CliOutput) -> Result<CliExit, CliFailure> {
    let path = path.display().to_string();
    out.write_result(&json!({"v": 1, "rows": rows, "file": path}), |out| {
        out.write_line(&format!("{} in {path}", format_count(rows, "row")))
    })?;
    Ok(CliExit::Ok)
}

/// Passes every row to `line`, oldest first.
fn write_rows(
    source: &TrailSource,
    filter: &AuditFilter,
    mut line: impl FnMut(&str) -> io::Result<()>,
) -> Result<u64, CliFailure> {
    match source {
        TrailSource::Files(directory) => {
            let written =
                MergedPage::export_rows(directory, filter, |row| line(&row.to_json_line()));
            written.map_err(|error| match error {
                RowExportError::Read(error) => unreadable_trail(&error),
                RowExportError::Write(error) => error.into(),
            })
        }
        TrailSource::Gateway(client) => {
            let (mut after, mut rows) = (AuditCursor::default(), 0);
            let mut query = trail_source::filter_query(filter, EXPORT_ROWS_MAX);
            loop {
                query.after = Some(after.to_string());
                let page = trail_source::fetch_page(client, &query)?;
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

//! The compatibility page: table, meaning of a green cell, versions, supported features.

use std::fmt::Write;

use anyhow::{Context, Result};

use super::{CompatibilityMatrix, MatrixCell, MatrixParty};

const PAGE_HEAD: &str = "\
# Compatibility

<!-- Written by `cargo xtask peers matrix`; do not edit. -->

Every client below reaches every server below **through one Bowline gateway**, at
`/servers/NAME/mcp`. `cargo xtask peers matrix` walks all cells and writes this page; `cargo xtask
test` walks each client and each server once.

";

const GREEN_CELL_MEANING: &str = "\
A cell is green (✓) when all of these hold, each as far as both ends have it:

- **connect**: the session opens; of a client with \"2026-07-28 only\", in that revision;
- **tools**: the list names the server's tools;
- **call**: a call returns the right content;
- **progress**: a call tells each step, in order, before it returns;
- **resource**: a resource is listed, and read with the right content;
- **prompt**: a prompt is listed, and returned with its arguments in it;
- **elicitation**: the server asks in the middle of a call, and the client's answer is in its
  result;
- **sampling**: the same with a message that the client makes.

A red cell (✗) names what failed. A dash means that nothing was walked.

## Two eras

A column with \"2026-07-28 only\" is a client that is pinned to that revision, and a row with it a
server that refuses the handshake of the older ones, with `era = \"modern\"` in its block of the
gateway's configuration. Neither can fall back, so such a cell is green in the modern era or not
at all. Of the other clients Python SDK 2.x and FastMCP find out the era, and the rest speak the
older one. With the other servers the gateway finds out: those of Python SDK 2.x and FastMCP speak
both eras, and the rest the older one. [eras.md](eras.md) says what becomes of what between them.

";

const PAGE_NOTES: &str = "
## Notes

- A server request belongs to the call during which the server sends it. Over stdio and HTTP+SSE all
  calls share one stream, and the TypeScript v2 server shares one too: `ctx.mcpReq.elicitInput` and
  `requestSampling` send on the session's GET stream, not on the stream of the call. While calls of
  several clients are in flight, such a request cannot be attributed: Bowline refuses it, and from
  then on gives each client that can answer a dedicated link (`isolation = \"auto\"`;
  `\"session\"` does so from the start).
- In the modern era a tool requests input by its result: with `Resolve` (Python SDK 2.x), an
  `InputRequiredResult` (FastMCP) or `inputRequired` (TypeScript v2). A tool that requests input in
  the middle of the call, with `ctx.elicit`, can do so in the legacy era only. For clients that can
  answer, Bowline uses the legacy era with a server of both eras, so the tools of the row \"FastMCP
  server\" reach clients that are pinned to the modern era too.
- A cell shows how one client and one server work together, so the cells of one server run one after
  the other. Two clients at once have a test: `unattributed_server_request_is_refused_once`.
";

/// Renders the whole page.
pub(super) fn render_page(matrix: &CompatibilityMatrix, cells: &[MatrixCell]) -> Result<String> {
    let mut page = PAGE_HEAD.to_owned();
    let green = cells.iter().filter(|cell| cell.green).count();
    writeln!(page, "{green} of {} cells are green.\n", cells.len())?;
    write_table(&mut page, matrix, cells)?;
    page.push_str("\n## What a green cell means\n\n");
    page.push_str(GREEN_CELL_MEANING);
    page.push_str("## Clients\n\n");
    write_parties(&mut page, &matrix.clients, "has", |client| {
        Ok(join_checks(client.has.iter().map(String::as_str)))
    })?;
    page.push_str("\n## Servers\n\n");
    write_parties(&mut page, &matrix.servers, "has", |server| {
        let plan = matrix.plans.get(&server.plan);
        let plan = plan.with_context(|| format!("{} has no plan", server.name))?;
        Ok(join_checks(plan.keys().map(String::as_str)))
    })?;
    page.push_str(PAGE_NOTES);
    write_failures(&mut page, cells)?;
    Ok(page)
}

/// Writes a row per server and a column per client.
fn write_table(
    page: &mut String,
    matrix: &CompatibilityMatrix,
    cells: &[MatrixCell],
) -> Result<()> {
    write!(page, "| server |")?;
    for client in &matrix.clients {
        write!(page, " {} |", client.title)?;
    }
    writeln!(page, "\n|---|{}", "---|".repeat(matrix.clients.len()))?;
    for server in &matrix.servers {
        write!(page, "| {} |", server.title)?;
        for client in &matrix.clients {
            let found = cells
                .iter()
                .find(|cell| cell.client == client.name && cell.server == server.name);
            write!(
                page,
                " {} |",
                found.map_or_else(|| "–".to_owned(), cell_mark)
            )?;
        }
        writeln!(page)?;
    }
    Ok(())
}

fn cell_mark(cell: &MatrixCell) -> String {
    if cell.green {
        return "✓".to_owned();
    }
    let failed = cell.checks.iter().filter(|check| !check.ok);
    let failed: Vec<_> = failed.map(|check| check.check.as_str()).collect();
    if failed.contains(&"connect") {
        return "✗ connect".to_owned();
    }
    format!("✗ {}", failed.join(", "))
}

fn write_parties(
    page: &mut String,
    parties: &[MatrixParty],
    column: &str,
    has: impl Fn(&MatrixParty) -> Result<String>,
) -> Result<()> {
    writeln!(page, "| name | package | version | {column} |")?;
    writeln!(page, "|---|---|---|---|")?;
    for party in parties {
        let over = if party.url.is_some() {
            " (over HTTP)"
        } else {
            ""
        };
        let (title, package, version) = (&party.title, &party.package, party.pinned_version()?);
        let has = has(party)?;
        writeln!(page, "| {title}{over} | `{package}` | {version} | {has} |")?;
    }
    Ok(())
}

/// Joins the checks beyond tools, which every party supports.
fn join_checks<'a>(all: impl Iterator<Item = &'a str>) -> String {
    let beyond = all.filter(|check| !matches!(*check, "tools" | "call"));
    std::iter::once("tools")
        .chain(beyond)
        .collect::<Vec<_>>()
        .join(", ")
}

/// Writes the reason of each red cell.
fn write_failures(page: &mut String, cells: &[MatrixCell]) -> Result<()> {
    let red: Vec<_> = cells.iter().filter(|cell| !cell.green).collect();
    if red.is_empty() {
        return Ok(());
    }
    page.push_str("\n## Why red cells are red\n\n");
    for cell in red {
        let failed = cell.checks.iter().find(|check| !check.ok);
        let Some(failed) = failed else { continue };
        let why: String = failed
            .why
            .as_deref()
            .unwrap_or("no reason given")
            .chars()
            .take(WHY_CHARS_MAX)
            .collect();
        let (client, server, check) = (&cell.client, &cell.server, &failed.check);
        writeln!(page, "- {client} to {server}, {check}: {why}")?;
    }
    Ok(())
}

/// Longest reason on the page, in characters.
const WHY_CHARS_MAX: usize = 160;

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn sample_matrix() -> CompatibilityMatrix {
        serde_json::from_value(json!({
            "clients": [{"name": "c", "title": "Client", "peer": "sdk",
                "package": "@modelcontextprotocol/sdk", "has": ["prompt"]}],
            "servers": [{"name": "s", "title": "Server", "peer": "py1", "package": "mcp",
                "plan": "p"}],
            "plans": {"p": {"tools": [], "call": {}, "prompt": {}}},
        }))
        .unwrap()
    }

    fn sample_cell(ok: bool) -> MatrixCell {
        serde_json::from_value(json!({
            "client": "c", "server": "s", "green": ok, "ms": 1,
            "checks": [{"check": "prompt", "ok": ok, "why": "lost"}],
        }))
        .unwrap()
    }

    #[test]
    fn green_cell_ticks_red_cell_says_why() {
        let page = render_page(&sample_matrix(), &[sample_cell(true)]).unwrap();
        assert!(page.contains("1 of 1 cells are green"), "{page}");
        assert!(page.contains("| Server | ✓ |"), "{page}");
        assert!(
            page.contains("| Server | `mcp` | 1.30.0 | tools, prompt |"),
            "{page}"
        );
        let page = render_page(&sample_matrix(), &[sample_cell(false)]).unwrap();
        assert!(page.contains("| Server | ✗ prompt |"), "{page}");
        assert!(page.contains("- c to s, prompt: lost"), "{page}");
        let page = render_page(&sample_matrix(), &[]).unwrap();
        assert!(page.contains("| Server | – |"), "{page}");
    }
}

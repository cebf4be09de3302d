"""A server of the matrix with FastMCP, over stdio or over HTTP at the port it is given."""

import sys
from dataclasses import dataclass

import mcp_types as types
from fastmcp import Context, FastMCP

server = FastMCP("matrix-fastmcp")


@dataclass
class Knot:
    knot: str


@server.tool
def add(a: int, b: int) -> str:
    return f"the sum is {a + b}"


@server.tool
async def count(steps: int, ctx: Context) -> str:
    for step in range(1, steps + 1):
        await ctx.report_progress(step, steps)
    return f"counted to {steps}"


@server.tool
async def ask(ctx: Context) -> str:
    answer = await ctx.elicit("Which knot?", Knot)
    return f"{answer.action}: {answer.data.knot if answer.action == 'accept' else ''}"


@server.tool
async def think(about: str, ctx: Context) -> str:
    content = types.TextContent(type="text", text=about)
    messages = [types.SamplingMessage(role="user", content=content)]
    answer = await ctx.session.create_message(
        messages, max_tokens=100, related_request_id=ctx.request_id
    )
    return f"thought: {answer.content.text}"


@server.resource("knots://bowline")
def bowline() -> str:
    return "holds and never slips"


@server.prompt
def tie(knot: str) -> str:
    return f"Tie a {knot}."


if len(sys.argv) > 1:
    port = int(sys.argv[1])
    server.run("http", host="127.0.0.1", port=port, path="/mcp", show_banner=False)
else:
    server.run("stdio", show_banner=False)

"""A server of the matrix with the Python SDK 2, over stdio or over HTTP at the port it is given.

With the word `modern` it serves revision 2026-07-28 only.
"""

from typing import Annotated

import mcp_types as types
import modern
from mcp.server.mcpserver import Context, Elicit, ElicitationResult, MCPServer, Resolve, Sample
from pydantic import BaseModel


async def without_handshake(ctx, call_next):
    if ctx.method == "initialize":
        modern.refuse(ctx.params["protocolVersion"])
    return await call_next(ctx)


server = MCPServer("matrix-python-2", middleware=[without_handshake] if modern.ONLY else [])


class Knot(BaseModel):
    knot: str


@server.tool()
def add(a: int, b: int) -> str:
    return f"the sum is {a + b}"


@server.tool()
async def count(steps: int, ctx: Context) -> str:
    for step in range(1, steps + 1):
        await ctx.report_progress(step, steps)
    return f"counted to {steps}"


# What is resolved is asked for in the way of the request's era: in the middle of the call, or by
# a result that says what is missing.
def which_knot() -> Elicit[Knot]:
    return Elicit("Which knot?", Knot)


@server.tool()
async def ask(answer: Annotated[ElicitationResult[Knot], Resolve(which_knot)]) -> str:
    return f"{answer.action}: {answer.data.knot if answer.action == 'accept' else ''}"


def thought(about: str) -> Sample:
    content = types.TextContent(type="text", text=about)
    return Sample([types.SamplingMessage(role="user", content=content)], max_tokens=100)


@server.tool()
async def think(about: str, answer: Annotated[types.CreateMessageResult, Resolve(thought)]) -> str:
    return f"thought: {answer.content.text}"


@server.resource("knots://bowline")
def bowline() -> str:
    return "holds and never slips"


@server.prompt()
def tie(knot: str) -> str:
    return f"Tie a {knot}."


if port := modern.port():
    server.run("streamable-http", host="127.0.0.1", port=port)
else:
    server.run("stdio")

"""A server of the matrix with FastMCP, over stdio or over HTTP at the port it is given.

With the word `modern` it serves revision 2026-07-28 only, and its tools ask by their results. Else
it serves both eras, and its tools ask as most do: in the middle of the call.
"""

import mcp_types as types
import modern
from fastmcp import Context, FastMCP
from fastmcp.server.middleware import Middleware
from pydantic import BaseModel


class WithoutHandshake(Middleware):
    async def on_initialize(self, context, call_next):
        modern.refuse(context.message.params.protocol_version)


server = FastMCP("matrix-fastmcp", middleware=[WithoutHandshake()] if modern.ONLY else [])


class Knot(BaseModel):
    knot: str


def answered(ctx, request):
    """Returns the answer to what a tool asks by its result, or that result."""
    if ctx.input_responses is None:
        return types.InputRequiredResult(input_requests={"it": request}, request_state="asked")
    assert ctx.request_state == "asked", ctx.request_state
    return ctx.input_responses["it"]


@server.tool
def add(a: int, b: int) -> str:
    return f"the sum is {a + b}"


@server.tool
async def count(steps: int, ctx: Context) -> str:
    for step in range(1, steps + 1):
        await ctx.report_progress(step, steps)
    return f"counted to {steps}"


@server.tool
async def ask(ctx: Context) -> str | types.InputRequiredResult:
    message = "Which knot?"
    if not modern.ONLY:
        answer = await ctx.elicit(message, Knot)
        return f"{answer.action}: {answer.data.knot if answer.action == 'accept' else ''}"
    schema = Knot.model_json_schema()
    params = types.ElicitRequestFormParams(message=message, requested_schema=schema)
    answer = answered(ctx, types.ElicitRequest(params=params))
    if isinstance(answer, types.InputRequiredResult):
        return answer
    return f"{answer.action}: {(answer.content or {}).get('knot', '')}"


@server.tool
async def think(about: str, ctx: Context) -> str | types.InputRequiredResult:
    content = types.TextContent(type="text", text=about)
    messages = [types.SamplingMessage(role="user", content=content)]
    if modern.ONLY:
        params = types.CreateMessageRequestParams(messages=messages, max_tokens=100)
        answer = answered(ctx, types.CreateMessageRequest(params=params))
    else:
        answer = await ctx.session.create_message(
            messages, max_tokens=100, related_request_id=ctx.request_id
        )
    if isinstance(answer, types.InputRequiredResult):
        return answer
    return f"thought: {answer.content.text}"


@server.resource("knots://bowline")
def bowline() -> str:
    return "holds and never slips"


@server.prompt
def tie(knot: str) -> str:
    return f"Tie a {knot}."


if port := modern.port():
    server.run("http", host="127.0.0.1", port=port, path="/mcp", show_banner=False)
else:
    server.run("stdio", show_banner=False)

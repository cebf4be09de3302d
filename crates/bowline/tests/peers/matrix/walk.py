"""What the Python clients of the matrix share: walks one server and prints a line for each check.

    CLIENT [REVISION] --url URL --token TOKEN --plan JSON

A client that is given a revision speaks that one and no other, or it does not connect.
The plan says what the server has: {"tools": [names], "call": {"name", "arguments", "contains"},
"progress": {"name", "arguments", "steps"}, "resource": {"uri", "contains"}, "prompt": {"name",
"arguments", "contains"}, "elicitation": {"name", "arguments", "answer", "contains"}, "sampling":
the same with a text as its answer}. Of the last six any may be absent. A line that comes out is
{"check", "ok"}, with "why" when it is not.
"""

import argparse
import asyncio
import json
import sys

CHECK_SECONDS_MAX = 40


def say(check, why=None):
    line = {"check": check, "ok": why is None}
    if why is not None:
        line["why"] = why
    print(json.dumps(line), flush=True)


def same(found, wanted):
    assert wanted in found, f"{found!r} does not hold {wanted!r}"


def words(error):
    """Returns one line that tells an error, whatever groups it is wrapped in."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return " ".join(f"{type(error).__name__}: {error}".split())


def texts(blocks):
    return "\n".join(getattr(block, "text", "") for block in blocks)


def part(result, name):
    """Returns a member of a result; one SDK returns the member itself."""
    return getattr(result, name, result)


class Session:
    """An open session, whatever each SDK calls its parts."""

    def __init__(self, client):
        self.client = client

    async def tools(self):
        return [tool.name for tool in part(await self.client.list_tools(), "tools")]

    async def call(self, name, arguments, on_progress=None):
        options = {} if on_progress is None else {self.on_progress: on_progress}
        result = await self.client.call_tool(name, arguments, **options)
        failed = getattr(result, "is_error", getattr(result, "isError", False))
        assert not failed, texts(result.content)
        return texts(result.content)

    async def resources(self):
        found = part(await self.client.list_resources(), "resources")
        return [str(resource.uri) for resource in found]

    async def read(self, uri):
        return texts(part(await self.client.read_resource(uri), "contents"))

    async def prompts(self):
        return [prompt.name for prompt in part(await self.client.list_prompts(), "prompts")]

    async def prompt(self, name, arguments):
        result = await self.client.get_prompt(name, arguments)
        return texts(message.content for message in result.messages)

    # What the SDK calls the function that hears of progress.
    on_progress = "progress_callback"


class Walk:
    """The checks, on a session that an SDK opened."""

    def __init__(self, session, plan):
        self.session, self.plan = session, plan

    async def tools(self, wanted):
        found = await self.session.tools()
        for name in wanted:
            assert name in found, f"no {name} in {found}"

    async def call(self, plan):
        same(await self.session.call(plan["name"], plan["arguments"]), plan["contains"])

    async def progress(self, plan):
        told = []

        async def on_progress(done, total, _message):
            told.append([done, total])

        await self.session.call(plan["name"], plan["arguments"], on_progress)
        steps = plan["steps"]
        # What comes with the answer itself some SDKs hand over a moment later.
        for _ in range(100):
            if len(told) >= steps:
                break
            await asyncio.sleep(0.02)
        assert told == [[step, steps] for step in range(1, steps + 1)], told

    async def resource(self, plan):
        same(await self.session.resources(), plan["uri"])
        same(await self.session.read(plan["uri"]), plan["contains"])

    async def prompt(self, plan):
        same(await self.session.prompts(), plan["name"])
        same(await self.session.prompt(plan["name"], plan["arguments"]), plan["contains"])

    # The answer is given by the callback that the session was opened with.
    elicitation = sampling = call

    async def all(self):
        for check, plan in self.plan.items():
            try:
                await asyncio.wait_for(getattr(self, check)(plan), CHECK_SECONDS_MAX)
                say(check)
            except Exception as error:  # noqa: BLE001
                say(check, words(error))


async def walk(connect):
    options = argparse.ArgumentParser()
    options.add_argument("revision", nargs="?")
    for name in ("--url", "--token", "--plan"):
        options.add_argument(name, required=True)
    given = options.parse_args()
    plan = json.loads(given.plan)
    answers = [plan.get(name, {}).get("answer") for name in ("elicitation", "sampling")]
    pinned = [] if given.revision is None else [given.revision]
    connected = False
    try:
        async with connect(given.url, given.token, *answers, *pinned) as session:
            connected = True
            say("connect")
            await Walk(session, plan).all()
    except Exception as error:  # noqa: BLE001
        if connected:
            print(f"while it closed: {words(error)}", file=sys.stderr)
        else:
            say("connect", words(error))


def main(connect):
    asyncio.run(walk(connect))

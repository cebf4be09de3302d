"""Walks a plan with the Python SDK 1; the plan and what comes out are those of client.py."""

import asyncio
import json
import sys
from datetime import timedelta
from pathlib import Path

import httpx
from mcp import ClientSession, McpError, StdioServerParameters, types
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client


class Tapped(ClientSession):
    """Keeps each result as it came; `Result` holds whatever fields there are."""

    last = None

    async def send_request(self, request, result_type, *args, **options):
        raw = await super().send_request(request, types.Result, *args, **options)
        self.last = raw.model_dump(by_alias=True, mode="json", exclude_unset=True)
        return result_type.model_validate(self.last)


async def work(session, target, changed):
    """Outlives a pause, calls at once, gives up, and hears of a change."""
    if "pause" in target:
        Path(target["pause"]["ready"]).touch()
        while not Path(target["pause"]["go"]).exists():
            await asyncio.sleep(0.02)
        result = await session.call_tool(target["echo"], {"message": "again"})
        assert result.content[0].text == "again", result
    if "echo" in target:
        calls = [session.call_tool(target["echo"], {"message": f"<{n}>"}) for n in range(30)]
        texts = [result.content[0].text for result in await asyncio.gather(*calls)]
        assert texts == [f"<{n}>" for n in range(30)], texts
    if "slow" in target:
        # This version gives up without a word to the server, so no counter is looked at.
        late = {"ms": 600_000, "message": "late"}
        moment = timedelta(milliseconds=300)
        try:
            await session.call_tool(target["slow"], late, read_timeout_seconds=moment)
            raise AssertionError("was not given up")
        except McpError:
            pass
    if "change" in target:
        await session.call_tool(target["change"], {})
        await asyncio.wait_for(changed.wait(), 20)
        return [tool.name for tool in (await session.list_tools()).tools]
    return None


async def talk(read, write, target):
    progress, changed = [], asyncio.Event()

    async def on_message(message):
        if isinstance(message, types.ServerNotification):
            if message.root.method == "notifications/tools/list_changed":
                changed.set()

    async def on_progress(done, total, message):
        progress.append([done, total, message])

    minute = timedelta(seconds=60)
    opened = Tapped(read, write, read_timeout_seconds=minute, message_handler=on_message)
    async with opened as session:
        opened = await session.initialize()
        listed = await session.list_tools()
        tools = session.last
        assert [tool.name for tool in listed.tools] == [tool["name"] for tool in tools["tools"]]
        results = []
        for name, arguments in target["calls"]:
            result = await session.call_tool(name, arguments, progress_callback=on_progress)
            raw = session.last
            assert len(result.content) == len(raw["content"])
            results.append(raw)
        return {
            "revision": opened.protocolVersion,
            "serverInfo": opened.serverInfo.model_dump(by_alias=True, exclude_unset=True),
            "probes": [],
            "tools": tools,
            "results": results,
            "progress": progress,
            "changed": await work(session, target, changed),
        }


async def walk(target):
    if "url" not in target:
        command, args, env = target["command"], target["args"], target["env"]
        server = StdioServerParameters(command=command, args=args, env=env)
        async with stdio_client(server) as (read, write):
            return await talk(read, write, target)
    headers = {"Authorization": f"Bearer {target['token']}"}
    async with httpx.AsyncClient(headers=headers, timeout=60) as client:
        opened = streamable_http_client(target["url"], http_client=client)
        async with opened as (read, write, _session_id):
            return await talk(read, write, target)


async def main():
    plan = json.load(sys.stdin)
    walked = [await walk(target) for target in plan["targets"]]
    json.dump({"targets": walked}, sys.stdout)


asyncio.run(main())

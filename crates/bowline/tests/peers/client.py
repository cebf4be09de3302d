"""Walks a plan with the Python SDK 2: lists and calls at each target, prints the raw results.

The plan is one JSON object on stdin: {"targets": [{"mode", "url" and "token" | "command", "args"
and "env", "calls": [[name, arguments], ...]}]}. One JSON object comes out: {"targets": [...]}.

A target may also name an "echo" tool to call many times at once, a "slow" tool to give up and a
"counter" that tells how often that was, and a "change" tool that changes the list, of which the
client must then hear. At a "pause" it makes the file "ready" and waits for the file "go".
"""

import asyncio
import copy
import json
import sys
from pathlib import Path

import httpx2
from mcp import MCPError
from mcp.client import Client
from mcp.client.session import ClientSession
from mcp.client.stdio import StdioServerParameters
from mcp.client.streamable_http import streamable_http_client


def transport(target):
    """Returns the transport of a target, with the HTTP client that it needs if any."""
    if "url" not in target:
        command, args, env = target["command"], target["args"], target["env"]
        return StdioServerParameters(command=command, args=args, env=env), None
    headers = {"Authorization": f"Bearer {target['token']}"}
    client = httpx2.AsyncClient(headers=headers, timeout=60)
    return streamable_http_client(target["url"], http_client=client), client


def watch_probes(probes):
    """Records how each `server/discover` of this SDK ends, which it does not tell otherwise."""
    original = ClientSession.send_discover

    async def send_discover(self, version):
        try:
            answer = await original(self, version)
        except Exception as error:
            probes.append(getattr(error, "code", str(error)))
            raise
        probes.append("result")
        return answer

    ClientSession.send_discover = send_discover


def tap(session, seen):
    """Keeps each result as it came, before the SDK makes it a type of its own."""
    dispatcher = session._dispatcher
    original = dispatcher.send_raw_request

    async def send_raw_request(*args, **options):
        raw = await original(*args, **options)
        seen.append(copy.deepcopy(raw))
        return raw

    dispatcher.send_raw_request = send_raw_request


async def cancelled(client, target):
    result = await client.call_tool(target["counter"], {})
    return result.structured_content["slow_cancelled"]


async def work(client, target, changed):
    """Outlives a pause, calls at once, gives up, and hears of a change."""
    if "pause" in target:
        Path(target["pause"]["ready"]).touch()
        while not Path(target["pause"]["go"]).exists():
            await asyncio.sleep(0.02)
        result = await client.call_tool(target["echo"], {"message": "again"})
        assert result.content[0].text == "again", result
    if "echo" in target:
        calls = [client.call_tool(target["echo"], {"message": f"<{n}>"}) for n in range(30)]
        texts = [result.content[0].text for result in await asyncio.gather(*calls)]
        assert texts == [f"<{n}>" for n in range(30)], texts
    if "slow" in target:
        before, late = await cancelled(client, target), {"ms": 600_000, "message": "late"}
        try:
            await client.call_tool(target["slow"], late, read_timeout_seconds=0.3)
            raise AssertionError("was not given up")
        except MCPError:
            pass
        async with asyncio.timeout(20):
            while await cancelled(client, target) == before:
                await asyncio.sleep(0.02)
    if "change" in target:
        if client.protocol_version >= "2026":
            async with client.listen(tools_list_changed=True) as told:
                assert told.honored.tools_list_changed, told.honored
                await client.call_tool(target["change"], {})
                await asyncio.wait_for(anext(aiter(told)), 20)
        else:
            await client.call_tool(target["change"], {})
            await asyncio.wait_for(changed.wait(), 20)
        return [tool.name for tool in (await client.list_tools()).tools]
    return None


async def walk(target, probes):
    probes.clear()
    seen, progress, changed = [], [], asyncio.Event()

    async def on_message(message):
        if getattr(message, "method", None) == "notifications/tools/list_changed":
            changed.set()

    async def on_progress(done, total, message):
        progress.append([done, total, message])

    where, http = transport(target)
    opened = Client(
        where, mode=target["mode"], read_timeout_seconds=60, message_handler=on_message
    )
    async with opened as client:
        tap(client.session, seen)
        listed = await client.list_tools()
        tools = seen.pop()
        assert [tool.name for tool in listed.tools] == [tool["name"] for tool in tools["tools"]]
        results = []
        for name, arguments in target["calls"]:
            result = await client.call_tool(name, arguments, progress_callback=on_progress)
            raw = seen.pop()
            assert len(result.content) == len(raw["content"])
            results.append(raw)
        # A client that was told what is spoken has not asked who speaks.
        info = client.server_info
        walked = {
            "revision": client.protocol_version,
            "serverInfo": info and info.model_dump(by_alias=True, exclude_unset=True),
            "probes": list(probes),
            "tools": tools,
            "results": results,
            "progress": progress,
            "changed": await work(client, target, changed),
        }
    if http is not None:
        await http.aclose()
    return walked


async def main():
    plan = json.load(sys.stdin)
    probes = []
    watch_probes(probes)
    walked = [await walk(target, probes) for target in plan["targets"]]
    json.dump({"targets": walked}, sys.stdout)


asyncio.run(main())

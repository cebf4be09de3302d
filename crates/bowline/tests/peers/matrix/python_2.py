"""A client of the matrix with the Python SDK 2, which finds out the era or is pinned to one."""

from contextlib import asynccontextmanager

import httpx2
import mcp_types as types
import walk
from mcp.client import Client
from mcp.client.streamable_http import streamable_http_client


async def check(client, revision):
    """Fails unless this revision is spoken; a pinned client asks nothing when it opens."""
    walk.same((await client.session.send_discover(revision))["supportedVersions"], revision)
    walk.same([client.protocol_version], revision)


@asynccontextmanager
async def connect(url, token, elicited, sampled, revision="auto"):
    async def on_elicit(_context, _params):
        return types.ElicitResult(action="accept", content=elicited)

    async def on_sample(_context, _params):
        content = types.TextContent(type="text", text=sampled)
        return types.CreateMessageResult(role="assistant", content=content, model="fixed")

    headers = {"Authorization": f"Bearer {token}"}
    async with httpx2.AsyncClient(headers=headers, timeout=60) as http:
        opened = Client(
            streamable_http_client(url, http_client=http),
            mode=revision,
            read_timeout_seconds=60,
            elicitation_callback=on_elicit,
            sampling_callback=on_sample,
        )
        async with opened as client:
            if revision != "auto":
                await check(client, revision)
            yield walk.Session(client)


walk.main(connect)

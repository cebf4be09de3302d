"""A client of the matrix with the Python SDK 2, which finds out the era by itself."""

from contextlib import asynccontextmanager

import httpx2
import mcp_types as types
import walk
from mcp.client import Client
from mcp.client.streamable_http import streamable_http_client


@asynccontextmanager
async def connect(url, token, elicited, sampled):
    async def on_elicit(_context, _params):
        return types.ElicitResult(action="accept", content=elicited)

    async def on_sample(_context, _params):
        content = types.TextContent(type="text", text=sampled)
        return types.CreateMessageResult(role="assistant", content=content, model="fixed")

    headers = {"Authorization": f"Bearer {token}"}
    async with httpx2.AsyncClient(headers=headers, timeout=60) as http:
        opened = Client(
            streamable_http_client(url, http_client=http),
            read_timeout_seconds=60,
            elicitation_callback=on_elicit,
            sampling_callback=on_sample,
        )
        async with opened as client:
            yield walk.Session(client)


walk.main(connect)

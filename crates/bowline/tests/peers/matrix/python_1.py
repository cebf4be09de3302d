"""A client of the matrix with the Python SDK 1."""

from contextlib import asynccontextmanager
from datetime import timedelta

import httpx
import walk
from mcp import ClientSession, types
from mcp.client.streamable_http import streamable_http_client


@asynccontextmanager
async def connect(url, token, elicited, sampled):
    async def on_elicit(_context, _params):
        return types.ElicitResult(action="accept", content=elicited)

    async def on_sample(_context, _params):
        content = types.TextContent(type="text", text=sampled)
        return types.CreateMessageResult(role="assistant", content=content, model="fixed")

    headers = {"Authorization": f"Bearer {token}"}
    async with (
        httpx.AsyncClient(headers=headers, timeout=60) as http,
        streamable_http_client(url, http_client=http) as (read, write, _session_id),
        ClientSession(
            read,
            write,
            read_timeout_seconds=timedelta(seconds=60),
            elicitation_callback=on_elicit,
            sampling_callback=on_sample,
        ) as session,
    ):
        await session.initialize()
        yield walk.Session(session)


walk.main(connect)

"""A client of the matrix with FastMCP."""

from contextlib import asynccontextmanager

import walk
from fastmcp import Client
from fastmcp.client.elicitation import ElicitResult
from fastmcp.client.transports import StreamableHttpTransport


class Session(walk.Session):
    on_progress = "progress_handler"


@asynccontextmanager
async def connect(url, token, elicited, sampled):
    async def on_elicit(_message, _type, _params, _context):
        return ElicitResult(action="accept", content=elicited)

    async def on_sample(_messages, _params, _context):
        return sampled

    headers = {"Authorization": f"Bearer {token}"}
    opened = Client(
        StreamableHttpTransport(url, headers=headers),
        elicitation_handler=on_elicit,
        sampling_handler=on_sample,
        timeout=60,
    )
    async with opened as client:
        yield Session(client)


walk.main(connect)

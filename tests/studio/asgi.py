"""Requests to an application without a server."""

import asyncio
import json
from typing import NamedTuple
from urllib.parse import urlencode


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self):
        return json.loads(self.body)


def request(app, path, query=(), *, method="GET", headers=None, raw_query=None):
    """Send a request; `query` is a dictionary or pairs."""
    sent = {"host": "127.0.0.1:80", **(headers or {})}
    scope = {
        "type": "http", "method": method, "path": path, "raw_path": path.encode(), "root_path": "",
        "query_string": raw_query if raw_query is not None else urlencode(query, True).encode(),
        "headers": [(k.lower().encode(), v.encode()) for k, v in sent.items() if v is not None],
        "http_version": "1.1", "scheme": "http", "server": ("127.0.0.1", 80),
        "client": ("127.0.0.1", 5000), "asgi": {"version": "3.0"},
    }  # fmt: skip
    messages = []

    async def send(message):
        messages.append(message)

    async def run():
        asked = asyncio.Event()

        async def receive():
            if not asked.is_set():
                asked.set()
                return {"type": "http.request", "body": b"", "more_body": False}
            await asyncio.Event().wait()  # the client stays

        await app(scope, receive, send)

    asyncio.run(run())
    start = messages[0]
    found = {name.decode(): value.decode() for name, value in start["headers"]}
    return Answer(start["status"], found, b"".join(m.get("body", b"") for m in messages[1:]))

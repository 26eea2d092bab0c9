"""Answers of the server."""

import json
from typing import Any

from starlette.responses import JSONResponse

from save_rl.studio.reading import finite


def to_json(content: Any) -> str:
    """Return JSON as browsers read it, with null for NaN and infinities.

    It is ASCII: names of files may hold bytes that are no text, which UTF-8 refuses.
    """
    try:
        return json.dumps(content, allow_nan=False, separators=(",", ":"))
    except ValueError:
        return json.dumps(finite(content), allow_nan=False, separators=(",", ":"))


class JSON(JSONResponse):
    """An answer in JSON, see `to_json`."""

    def render(self, content: Any) -> bytes:
        return to_json(content).encode()

"""Answers of the server."""

import json
from typing import Any

from starlette.responses import JSONResponse


class JSON(JSONResponse):
    """JSON in ASCII: names of files may hold bytes that are no text, which UTF-8 refuses."""

    def render(self, content: Any) -> bytes:
        return json.dumps(content, allow_nan=False, separators=(",", ":")).encode()

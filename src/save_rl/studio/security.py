"""Which requests are answered: Host, Origin and token; and what browsers are told to refuse.

* Host must name this server, so that a page of another site can't read runs by pointing its own
  name at 127.0.0.1 (DNS rebinding).
* Origin, where a browser sends it, must be this server (cross-site requests).
* Everything but GET and HEAD needs the token in the header `X-Studio-Token`; the page has it.
* A server for other machines wants the token for everything: in the URL, then in a cookie.
"""

import ipaddress
import secrets
import socket
from collections.abc import Mapping
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from save_rl.studio.answers import JSON

TOKEN_HEADER = "X-Studio-Token"
HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
        "connect-src 'self'; worker-src 'self'; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}


def new_token() -> str:
    """Return a token that nobody guesses."""
    return secrets.token_urlsafe(24)


def is_loopback(host: str) -> bool:
    """Test whether only this machine can reach a host."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


class Guard:
    """Answers only requests that are meant for this server."""

    def __init__(self, app: ASGIApp, *, token: str, host: str, port: int):
        self._app, self._token, self._port = app, token, port
        self._local = is_loopback(host)
        self._names = {"localhost", host.lower(), "127.0.0.1", "::1"}
        if not self._local:
            self._names |= {socket.gethostname().lower(), socket.getfqdn().lower()}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        headers = Headers(scope=scope)

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                sent = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    sent.setdefault(name, value)
                sent.setdefault("Cache-Control", "no-cache")
            await send(message)

        refusal = self._refuse(scope, headers)
        await (refusal or self._app)(scope, receive, send_guarded)

    def _refuse(self, scope: Scope, headers: Headers) -> Response | None:
        """Return the answer to a request that is not let in; None for the others."""
        host = headers.get("host", "")
        if not self._is_ours(host):
            return _no(421, f"This server is not '{host[:100]}'; open the address it printed.")
        origin = headers.get("origin")
        if origin is not None and origin != f"http://{host}":
            return _no(403, "The request comes from another site.")
        elsewhere = headers.get("sec-fetch-site") in ("cross-site", "same-site")
        if elsewhere and headers.get("sec-fetch-mode") != "navigate":
            return _no(403, "The request comes from another site.")
        if scope["method"] not in ("GET", "HEAD"):
            if not self._matches(headers.get(TOKEN_HEADER)):
                return _no(403, "The token is missing or wrong; reload the page.")
            return None
        return None if self._local else self._refuse_stranger(scope, headers)

    def _refuse_stranger(self, scope: Scope, headers: Headers) -> Response | None:
        """Return the answer to a request from elsewhere without the token."""
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        for name, value in query:
            if name == "token" and self._matches(value):
                rest = urlencode([pair for pair in query if pair[0] != "token"])
                answer = RedirectResponse(scope["path"] + (f"?{rest}" if rest else ""), 303)
                answer.set_cookie(self._cookie, self._token, httponly=True, samesite="strict")
                return answer
        if self._matches(headers.get(TOKEN_HEADER)) or self._matches(self._cookie_of(headers)):
            return None
        return _no(
            403, "The token is missing or wrong; open the address that save-rl studio printed."
        )

    @property
    def _cookie(self) -> str:
        return f"save_rl_studio_{self._port}"  # cookies are shared by the ports of a host

    def _cookie_of(self, headers: Headers) -> str | None:
        try:
            found: Any = SimpleCookie(headers.get("cookie", "")).get(self._cookie)
        except CookieError:
            return None
        return found.value if found else None

    def _matches(self, given: str | None) -> bool:
        return given is not None and secrets.compare_digest(given.encode(), self._token.encode())

    def _is_ours(self, host: str) -> bool:
        """Test a Host header. Any port will do: it may be forwarded, as ssh does."""
        try:
            parts = urlsplit(f"//{host}")
            name, _ = parts.hostname or "", parts.port  # raises if it is no number
        except ValueError:
            return False
        if name in self._names and "@" not in host:
            return True
        try:  # nobody can point an address elsewhere, as they could a name
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return not self._local


def _no(code: int, why: str) -> Response:
    return JSON({"error": why}, code)

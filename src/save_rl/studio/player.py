"""The process that plays for the studio: the agent of one run, its simulator, states of episodes.

The server asks in JSON through a socket and gets JSON back, followed by a picture where there is
one. A request names a place by the start of its episode and the steps since, never by a state, so
that another process can answer it as well.

| request | answer |
|---|---|
| `open` | what there is to choose, such as levels |
| `play` | a message for every step, and one for the end |
| `search` | the search from a place |
| `look` | the state at a place |

`look` is also answered between the steps of an episode that is being played.
"""

import contextlib
import faulthandler
import importlib
import json
import math
import os
import queue
import sys
import threading
import time
import traceback
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from save_rl.errors import InputError, RunError
from save_rl.processes import die_with
from save_rl.studio.watched import SimulatorFailed

HEARTBEAT = 0.25  # seconds between two signs of life


class Cancelled(BaseException):  # neither simulators nor searches may catch it
    """The user has cancelled the request."""


class Desk:
    """Requests and answers. A thread reads, so that a request can be cancelled at any time."""

    def __init__(self, connection: Connection):
        self._connection, self._sending = connection, threading.Lock()
        self._cancelled: set[int] = set()
        self.inbox: queue.Queue[dict[str, Any]] = queue.Queue()
        self.doing = -1  # number of the request in progress
        self.simulations = 0  # steps of the simulator since the last decision

    def read(self) -> None:
        """Read requests until the server is gone; then end this process."""
        with contextlib.suppress(EOFError, OSError):
            while True:
                request = json.loads(self._connection.recv_bytes())
                if request["do"] == "cancel":
                    self._cancelled.add(request["number"])
                else:
                    self.inbox.put(request)
        os._exit(0)

    def send(self, content: dict[str, Any], picture: bytes = b"") -> None:
        """Send an answer."""
        text = json.dumps({"number": self.doing, **content, "picture": len(picture)})
        with self._sending:
            self._connection.send_bytes(text.encode())
            if picture:
                self._connection.send_bytes(picture)

    def check(self) -> None:
        """Raise Cancelled if the request in progress is."""
        if self.doing in self._cancelled:
            raise Cancelled

    def tick(self) -> None:
        """Count a step of the simulator."""
        self.simulations += 1
        self.check()


def main(handle: str, parent: str, folder: str, trust: str, acting: str) -> None:
    """Answer requests until the server is gone. acting: `module:class`, see `acting.Acting`."""
    die_with(int(parent))
    faulthandler.enable()
    desk = Desk(Connection(int(handle)))
    player: Any = None
    threading.Thread(target=desk.read, daemon=True).start()
    threading.Thread(target=_beat, args=(desk, lambda: player), daemon=True).start()
    while True:
        request = desk.inbox.get()
        if player is None:
            desk.doing = request["number"]
            try:
                module, _, name = acting.partition(":")
                kind = getattr(importlib.import_module(module), name)
                player = Player(desk, kind(Path(folder), trust == "1", desk.tick))
            except (Exception, SystemExit, SimulatorFailed) as error:
                desk.send({"kind": "failed", "why": _why(error)})
                continue
        player.answer(request)


def _beat(desk: Desk, player: Any) -> None:
    """Show signs of life: simulations so far, and how long a call of the simulator takes."""
    with contextlib.suppress(OSError):
        while True:
            time.sleep(HEARTBEAT)
            playing = player()
            since = playing.acting.simulator.since if playing is not None else None
            inside = 0.0 if since is None else time.monotonic() - since
            desk.send({"kind": "alive", "simulations": desk.simulations, "inside": inside})


def _why(error: BaseException) -> str:
    """Return an error in words; with its traceback if it is not one of ours."""
    if isinstance(error, InputError | RunError | SimulatorFailed):
        return str(error)
    return "".join(traceback.format_exception(error)).rstrip()


class Player:
    """Answers requests for one run. acting: its agent, with its simulator."""

    def __init__(self, desk: Desk, acting: Any):
        from save_rl.studio.places import Places

        self._desk, self.acting = desk, acting
        self._places = Places(acting.simulator)
        self._note = ""  # why there are no pictures

    def answer(self, request: dict[str, Any]) -> None:
        """Answer a request; whatever goes wrong is the answer."""
        desk, before = self._desk, self._desk.doing
        desk.doing, desk.simulations = request["number"], 0
        work = {"open": self._open, "play": self._play, "search": self._search, "look": self._look}
        try:
            desk.check()
            work[request["do"]](request)
        except Cancelled:
            desk.send({"kind": "cancelled"})
        except (Exception, SystemExit, SimulatorFailed) as error:
            desk.send({"kind": "failed", "why": _why(error)})
        finally:
            desk.doing = before

    def _open(self, request: dict[str, Any]) -> None:
        self._desk.send({"kind": "done", **self.acting.choices()})

    def _play(self, request: dict[str, Any]) -> None:
        """Play an episode: a message for each state with the decision there, then the end."""
        desk, total, self._note = self._desk, 0.0, ""
        place = self._places.start(request["seed"], request["level"])
        states, over = [place.state], ""
        while not over:
            if len(states) > request["most"]:
                over = f"stopped after {request['most']} steps"
                break
            shown, told = self._shown(place.state)
            decision, step = self._decide(request, states)
            after = self._places.step(place, step)
            if not math.isfinite(after.reward):
                raise SimulatorFailed(f"step returned a reward of {after.reward}, not a number.")
            total, over = total + after.reward, after.over
            record = {"search": decision, "step": list(step), "reward": after.reward, **told}
            desk.send({"kind": "step", "record": record}, shown)
            place = after
            states.append(place.state)
            self._serve_others()
        shown, told = self._shown(place.state)
        desk.send({"kind": "done", "record": {"over": over, "total": total, **told}}, shown)

    def _serve_others(self) -> None:
        """Answer what can be answered between two steps; leave the rest for later."""
        inbox, later = self._desk.inbox, []
        with contextlib.suppress(queue.Empty):
            while True:
                request = inbox.get_nowait()
                if request["do"] == "look":
                    self.answer(request)
                else:
                    later.append(request)
        for request in later:
            inbox.put(request)

    def _decide(self, request: dict[str, Any], states: list[Any]) -> tuple[Any, Any]:
        """Search from the last of an episode's states; return the record and the step."""
        self._desk.simulations = 0
        self._desk.check()
        asked = {name: request[name] for name in ("seed", "budget", "c", "best", "of")}
        return self.acting.decide(states, **asked)

    def _search(self, request: dict[str, Any]) -> None:
        decision, _ = self._decide(request, [place.state for place in self._way(request)])
        self._desk.send({"kind": "done", "search": decision})

    def _look(self, request: dict[str, Any]) -> None:
        place, self._note = self._way(request)[-1], ""
        shown, told = self._shown(place.state)
        self._desk.send({"kind": "done", "over": place.over, "reward": place.reward, **told}, shown)

    def _way(self, request: dict[str, Any]) -> list[Any]:
        """Return the places from the start of an episode to the one that a request names."""
        from save_rl.studio.places import Step

        way = [self._places.start(request["seed"], request["level"])]
        for step in request["steps"]:
            way.append(self._places.step(way[-1], Step(*step)))
        return way

    def _shown(self, state: Any) -> tuple[bytes, dict[str, str]]:
        """Return the picture of a state; or a text, and a note if a picture failed."""
        from save_rl.studio.records import no_picture, picture, words

        sim, shown = self.acting.simulator, b""
        if not self._note:
            try:
                shown = picture(sim, state)
            except (SimulatorFailed, ValueError) as error:  # such as a package to draw with
                self._note = no_picture(error)
        return shown, {"text": "" if shown else words(sim, state), "note": self._note}


if __name__ == "__main__":
    main(*sys.argv[1:])

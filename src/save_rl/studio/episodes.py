"""Episodes of a run, step by step, with their searches: what the episode page asks for.

| request | answer |
|---|---|
| GET `/api/episodes?run=` | what there is to choose, and the episodes in memory |
| POST `/api/episodes/open` | a job that loads the run and finds out about levels |
| POST `/api/episodes/play` | a job, and the episode that it plays |
| POST `/api/episodes/search` | a job that searches again from a state of an episode |
| POST `/api/episodes/look` | the state after some more steps from a state of an episode |
| GET `/api/episodes/N`, `…/steps/K`, `…/pictures/K` | an episode |
| GET `/api/jobs/N`, `/api/jobs/N/events` | a job now, or as it goes on |
| POST `/api/jobs/N/cancel` | the job, which ends soon |
"""

import asyncio
import base64
import json
import threading
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import BaseRoute, Route

from save_rl.errors import InputError, require
from save_rl.studio.answers import JSON, to_json
from save_rl.studio.episode_store import Store, StoredEpisode
from save_rl.studio.folder import NotInFolder
from save_rl.studio.jobs import Busy, Job, Jobs
from save_rl.studio.wishes import (
    MOST_STEPS,
    choices,
    search_wishes,
    wanted_episode,
    whole_number,
)

_LOOK_SECONDS = 30.0  # for an answer that a page waits for
_WAIT = 0.03  # seconds between two looks at a job
_ALIVE = 15.0  # seconds between signs of life of a stream
_MOST_LOOKS = 300  # answers that are kept
_LONGEST_BODY = 2**20


class Episodes:
    """Jobs, played episodes, and answers to `look` of one studio."""

    def __init__(self, trust: bool, jobs: Jobs | None = None, store: Store | None = None):
        self.jobs, self.store = jobs or Jobs(trust), store or Store()
        self._looks: OrderedDict[Any, dict[str, Any]] = OrderedDict()
        self._lock = threading.Lock()

    def play(self, run: str, folder: Path, settings: dict[str, Any]) -> tuple[Job, StoredEpisode]:
        """Queue an episode."""
        place: list[StoredEpisode] = []
        ready = threading.Event()

        def hear(content: dict[str, Any], picture: bytes) -> None:
            ready.wait()
            self.store.add(place[0], content["record"], picture)

        job = self.jobs.add(folder, {"do": "play", **settings}, hear)
        place.append(self.store.begin(job.number, run, settings))
        ready.set()
        return job, place[0]

    def search(
        self, folder: Path, episode: StoredEpisode, number: int, budget: int, c: float
    ) -> Job:  # fmt: skip
        """Queue a search from the `number`-th state of an episode."""
        asked = {**episode.settings, "budget": budget, "c": c, "steps": episode.taken[:number]}
        return self.jobs.add(folder, {"do": "search", **asked})

    def look(
        self, folder: Path, episode: StoredEpisode, number: int, further: list[list[Any]]
    ) -> tuple[Job | None, dict[str, Any] | None]:
        """Queue a look at the state some steps after the `number`-th; or return it, if known."""
        steps = [*episode.taken[:number], *further]
        settings = episode.settings
        key = (folder, settings["seed"], settings["level"], tuple(map(tuple, steps)))
        with self._lock:
            if key in self._looks:
                self._looks.move_to_end(key)
                return None, self._looks[key]

        def hear(content: dict[str, Any], picture: bytes) -> None:
            shown = base64.b64encode(picture).decode()
            content["picture"] = f"data:image/png;base64,{shown}" if picture else None
            with self._lock:
                self._looks[key] = content
                while len(self._looks) > _MOST_LOOKS:
                    self._looks.popitem(last=False)

        return self.jobs.add(folder, {"do": "look", **settings, "steps": steps}, hear), None

    def close(self) -> None:
        """End all processes."""
        self.jobs.close()


def service(request: Request) -> Episodes:
    """Return the studio's episodes."""
    return request.app.state.episodes


async def _body(request: Request) -> dict[str, Any]:
    """Return the JSON object that a request brings."""
    data = b""
    async for part in request.stream():
        data += part
        if len(data) > _LONGEST_BODY:
            raise InputError("The request is too long.")
    try:
        body = json.loads(data)
    except (ValueError, RecursionError):
        body = None
    if not isinstance(body, dict):
        raise InputError("The request is not a JSON object.")
    return body


def _run(request: Request, name: Any) -> Path:
    if not isinstance(name, str):
        raise InputError("run: give the name of a run.")
    return request.app.state.folder.run(name)


def _episode(request: Request, number: Any) -> StoredEpisode:
    episode = service(request).store.get(number) if isinstance(number, int) else None
    if episode is None:
        raise NotInFolder("This episode is no longer in memory; play it again.")
    return episode


def _state_of(episode: StoredEpisode, body: dict[str, Any]) -> int:
    return whole_number(body, "step", 0, 0, len(episode.taken))


def _job(job: Job, jobs: Jobs) -> dict[str, Any]:
    """Return what a page shows of a job."""
    total = job.request.get("most" if job.request["do"] == "play" else "budget")
    return {
        "job": job.number, "do": job.request["do"], "state": job.state, "why": job.why,
        "done": job.done, "total": total, "simulations": job.simulations,
        "budget": job.request.get("budget"), "ahead": jobs.ahead_of(job),
        "result": job.result if job.request["do"] in ("open", "search") else None,
    }  # fmt: skip


def _about(request: Request) -> Response:
    name = request.query_params.get("run")
    run = _run(request, name)
    known = choices(run, str(name), request.app.state.trust)
    state = service(request)
    played = [_told(state, episode) for episode in state.store.of_run(str(name))]
    return JSON({**known, "episodes": played})


def _told(state: Episodes, episode: StoredEpisode) -> dict[str, Any]:
    """Return an episode without its steps, and the job that plays it."""
    job = state.jobs.get(episode.number)
    return {**episode.summary(), "job": None if job is None else _job(job, state.jobs)}


async def _open(request: Request) -> Response:
    body = await _body(request)
    run, state = _run(request, body.get("run")), service(request)
    there = choices(run, run.name, request.app.state.trust)
    if there["problem"]:
        raise InputError(there["problem"])
    return _answer(state.jobs, lambda: state.jobs.add(run, {"do": "open"}))


async def _play(request: Request) -> Response:
    body = await _body(request)
    run, state = _run(request, body.get("run")), service(request)
    settings = wanted_episode(run, body, request.app.state.trust)
    return _answer(state.jobs, lambda: state.play(body["run"], run, settings)[0])


async def _search(request: Request) -> Response:
    body, state = await _body(request), service(request)
    episode = _episode(request, body.get("episode"))
    run, number = _run(request, episode.run), _state_of(episode, body)
    before = episode.settings
    asked = search_wishes(body, before["budget"], before["c"])
    return _answer(state.jobs, lambda: state.search(run, episode, number, **asked))


def _answer(jobs: Jobs, add: Callable[[], Job]) -> Response:
    try:
        return JSON(_job(add(), jobs))
    except Busy as busy:
        return JSON({"error": str(busy)}, 429)


async def _look(request: Request) -> Response:
    """Wait for the state, while the page does."""
    body, state = await _body(request), service(request)
    episode = _episode(request, body.get("episode"))
    run, number = _run(request, episode.run), _state_of(episode, body)
    steps = body.get("steps", [])
    whole = isinstance(steps, list) and len(steps) <= MOST_STEPS and all(map(_is_step, steps))
    require(whole, "steps", "that", "a list of pairs: action and luck")
    try:
        job, known = state.look(run, episode, number, steps)
    except Busy as busy:
        return JSON({"error": str(busy)}, 429)
    if job is None:
        return JSON(known)
    with suppress(TimeoutError):
        async with asyncio.timeout(_LOOK_SECONDS):
            while not job.over:
                if await request.is_disconnected():
                    break
                await asyncio.sleep(_WAIT)
    if not job.over:
        state.jobs.cancel(job)
        return JSON({"error": "There was no answer in time; is a search going on?"}, 503)
    if job.state == "done":
        return JSON(job.result)
    return JSON({"error": job.why or "It was cancelled."}, 409)


def _is_step(step: Any) -> bool:
    return (
        isinstance(step, list) and len(step) == 2
        and type(step[0]) is int and (step[1] is None or type(step[1]) is int)
    )  # fmt: skip


def _number(request: Request, name: str) -> int:
    return int(request.path_params[name])


def _summary(request: Request) -> Response:
    return JSON(_told(service(request), _episode(request, _number(request, "number"))))


def _step(request: Request) -> Response:
    episode, step = _episode(request, _number(request, "number")), _number(request, "step")
    if step >= len(episode.steps):
        raise NotInFolder(f"There is no step {step}.")
    return JSON(episode.step(step))


def _picture(request: Request) -> Response:
    episode, step = _episode(request, _number(request, "number")), _number(request, "step")
    if step >= len(episode.pictures) or not episode.pictures[step]:
        raise NotInFolder(f"There is no picture {step}.")
    return Response(episode.pictures[step], media_type="image/png")


def _found_job(request: Request) -> Job:
    job = service(request).jobs.get(_number(request, "number"))
    if job is None:
        raise NotInFolder("There is no such job any more.")
    return job


def _job_now(request: Request) -> Response:
    return JSON(_job(_found_job(request), service(request).jobs))


def _cancel(request: Request) -> Response:
    job, jobs = _found_job(request), service(request).jobs
    jobs.cancel(job)
    return JSON(_job(job, jobs))


def _events(request: Request) -> Response:
    job, jobs = _found_job(request), service(request).jobs
    stopping = getattr(request.app.state.stream, "stopping", lambda: False)

    async def stream() -> AsyncIterator[str]:
        version, ahead, quiet = -1, -1, 0.0
        while not stopping():
            if job.version != version or jobs.ahead_of(job) != ahead:
                version, ahead, quiet = job.version, jobs.ahead_of(job), 0.0
                yield f"data: {to_json(_job(job, jobs))}\n\n"
            if job.over:
                return
            await asyncio.sleep(_WAIT)
            quiet += _WAIT
            if quiet >= _ALIVE:
                quiet = 0.0
                yield ": alive\n\n"

    return StreamingResponse(stream(), media_type="text/event-stream")


_EPISODE, _JOB = "/api/episodes/{number:int}", "/api/jobs/{number:int}"
routes: list[BaseRoute] = [
    Route("/api/episodes", _about),
    Route("/api/episodes/open", _open, methods=["POST"]),
    Route("/api/episodes/play", _play, methods=["POST"]),
    Route("/api/episodes/search", _search, methods=["POST"]),
    Route("/api/episodes/look", _look, methods=["POST"]),
    Route(_EPISODE, _summary),
    Route(_EPISODE + "/steps/{step:int}", _step),
    Route(_EPISODE + "/pictures/{step:int}", _picture),
    Route(_JOB, _job_now),
    Route(_JOB + "/events", _events),
    Route(_JOB + "/cancel", _cancel, methods=["POST"]),
]

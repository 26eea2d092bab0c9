"""The episode page's requests over HTTP: who may ask, what is refused in words, what streams."""

import json
import re
import urllib.error
import urllib.request
from functools import cache

import pytest

from save_rl.studio.episodes import Episodes
from save_rl.studio.jobs import Jobs
from tests.studio import playing
from tests.studio.conftest import serving
from tests.studio.made_runs import make_run

pytestmark = pytest.mark.xdist_group("studio-requests")


@pytest.fixture(scope="module")
def studio(tmp_path_factory):
    """The address of a studio whose agent has no network."""
    folder = tmp_path_factory.mktemp("runs")
    make_run(folder / "ladder")
    (folder / "broken").mkdir()
    (folder / "broken" / "config.json").write_text("{")
    with serving(folder, episodes=Episodes(False, Jobs(acting=playing.ACTING))) as address:
        yield address.rstrip("/")


@cache
def token(studio):
    """Return the token that the page has."""
    with urllib.request.urlopen(studio) as answer:
        return re.search('name="token" content="([^"]+)"', answer.read().decode())[1]


def ask(url, body=None, secret=None):
    """Return status and JSON of an answer; a body makes it a POST."""
    data = None if body is None else json.dumps(body).encode()
    secret = secret or token(url.partition("/api")[0])
    request = urllib.request.Request(url, data, {"X-Studio-Token": secret})
    try:
        with urllib.request.urlopen(request, timeout=1200) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


def events(studio, job):
    """Return all events of a job, until it is over."""
    with urllib.request.urlopen(f"{studio}/api/jobs/{job}/events", timeout=1200) as answer:
        lines = [line for line in answer.read().decode().split("\n\n") if line.startswith("data: ")]
    return [json.loads(line.removeprefix("data: ")) for line in lines]


@pytest.fixture(scope="module")
def episode(studio):
    code, job = ask(f"{studio}/api/episodes/play", {"run": "ladder", "seed": 7})
    assert code == 200
    told = events(studio, job["job"])
    assert told[-1]["state"] == "done"
    return job["job"]


def test_an_episode_is_read_step_by_step(studio, episode):
    _, summary = ask(f"{studio}/api/episodes/{episode}")
    assert summary["rewards"] == [0.0, 0.5, 1.0, 0.0, 0.5, 1.0]
    assert summary["settings"]["seed"] == 7
    assert summary["over"] == "terminated"
    _, step = ask(f"{studio}/api/episodes/{episode}/steps/2")
    assert step["reward"] == 1.0
    with urllib.request.urlopen(f"{studio}/api/episodes/{episode}/pictures/6") as answer:
        assert answer.headers["Content-Type"] == "image/png"
        assert answer.read().startswith(b"\x89PNG")
    _, about = ask(f"{studio}/api/episodes?run=ladder")
    assert [e["episode"] for e in about["episodes"]] == [episode]
    assert about["checkpoints"] == ["last"]


def test_a_search_streams_its_progress_and_result(studio, episode):
    asked = {"episode": episode, "step": 4, "budget": 2, "c": 1.5}
    _, job = ask(f"{studio}/api/episodes/search", asked)
    last = events(studio, job["job"])[-1]
    assert last["state"] == "done"
    assert last["result"]["search"]["tried"] == 2
    assert ask(f"{studio}/api/jobs/{job['job']}")[1] == last


def test_a_look_waits_for_the_state(studio, episode):
    asked = {"episode": episode, "step": 3, "steps": [[2, None], [2, None]]}
    code, shown = ask(f"{studio}/api/episodes/look", asked)
    assert (code, shown["reward"], shown["over"]) == (200, 1.0, "")
    assert shown["picture"].startswith("data:image/png;base64,")


def test_a_look_at_a_reward_that_is_no_number_is_answered(studio):
    """The tree of a search may hold what an episode may not."""
    _, job = ask(f"{studio}/api/episodes/play", {"run": "ladder", "seed": playing.NAN})
    assert events(studio, job["job"])[-1]["state"] == "failed"
    asked = {"episode": job["job"], "step": 0, "steps": [[2, None]]}
    code, shown = ask(f"{studio}/api/episodes/look", asked)
    assert (code, shown["reward"]) == (200, None)


def test_cancelling_needs_only_the_number(studio):
    asked = {"run": "ladder", "seed": playing.ENDLESS, "most": 10_000}
    _, job = ask(f"{studio}/api/episodes/play", asked)
    code, _ = ask(f"{studio}/api/jobs/{job['job']}/cancel", {})
    assert code == 200
    assert events(studio, job["job"])[-1]["state"] == "cancelled"


@pytest.mark.parametrize(
    "path", ["episodes/play", "episodes/open", "episodes/look", "jobs/1/cancel"]
)
def test_actions_need_the_token(studio, path):
    code, answer = ask(f"{studio}/api/{path}", {"run": "ladder"}, secret="another")
    assert code == 403
    assert "token" in answer["error"]


@pytest.mark.parametrize(
    ("path", "body", "code", "words"),
    [
        ("play", {"run": "../../etc"}, 404, "is not in this folder"),
        ("play", {"run": "nothing"}, 404, "is not in this folder"),
        ("play", {"run": 3}, 400, "give the name of a run"),
        ("play", {"run": "broken"}, 400, "config.json is damaged or half-written."),
        ("play", {"run": "ladder", "budget": -1}, 400, "budget: -1 is not possible"),
        ("play", [1], 400, "not a JSON object"),
        ("search", {"episode": 999}, 404, "no longer in memory"),
        ("search", {"episode": "1"}, 404, "no longer in memory"),
        ("look", {"episode": 999}, 404, "no longer in memory"),
    ],
)
def test_bad_requests_are_refused_in_words(studio, path, body, code, words):
    found, answer = ask(f"{studio}/api/episodes/{path}", body)
    assert found == code
    assert words in answer["error"]


@pytest.mark.parametrize(
    "steps", ["x", [1], [[1, 2, 3]], [[True, None]], [["1", None]], [[1, "x"]]]
)
def test_bad_steps_are_refused(studio, episode, steps):
    asked = {"episode": episode, "step": 0, "steps": steps}
    code, answer = ask(f"{studio}/api/episodes/look", asked)
    assert code == 400
    assert "a list of pairs" in answer["error"]


@pytest.mark.parametrize("path", ["episodes/999", "episodes/{}/steps/6", "episodes/{}/pictures/7"])
def test_what_is_not_there_is_said(studio, episode, path):
    code, answer = ask(f"{studio}/api/{path.format(episode)}")
    assert code == 404
    assert answer["error"]


def test_a_fault_in_a_look_is_words(studio, episode):
    asked = {"episode": episode, "step": 6, "steps": [[0, None]]}
    code, answer = ask(f"{studio}/api/episodes/look", asked)
    assert code == 409
    assert answer["error"] == "There is no step after the end of an episode (terminated)."


def test_a_broken_run_is_a_problem_in_words(studio):
    code, answer = ask(f"{studio}/api/episodes?run=broken")
    assert (code, answer["problem"]) == (200, "config.json is damaged or half-written.")


def test_a_body_that_is_too_long_is_refused(studio):
    code, answer = ask(f"{studio}/api/episodes/play", {"run": "x" * 2**20})
    assert (code, answer["error"]) == (400, "The request is too long.")

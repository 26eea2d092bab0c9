"""What the pages of a run and of an experiment show, and what the package ships."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from save_rl.report.palette import LOOKS
from save_rl.studio.details import compare_settings, rewards_by_budget
from save_rl.studio.server import PAGES, STATIC, make_app
from tests.studio.asgi import request
from tests.studio.folders import lines, make_checkpoint, make_run

RESULTS = Path(__file__).parents[2] / "results"


def test_settings_that_differ_come_first():
    told = compare_settings(
        {"env": "tightrope", "budget": 25, "r2d2": {"replay": {"batch": 7}}, "lanes": 64, "new": 1}
    )
    assert [(one["name"], one["differs"]) for one in told] == [
        ("budget", True), ("r2d2.replay.batch", True), ("new", True), ("env", False),
        ("lanes", False),
    ]  # fmt: skip
    assert told[0]["default"] == 10
    assert not told[2]["known"]


def test_test_rewards_by_hand(tmp_path):
    path = tmp_path / "evaluation.csv"
    path.write_text("budget,episode,return,steps\n5,0,1,9\n5,1,3,9\n0,0,-1,9\n")
    zero, five = rewards_by_budget(path)["budgets"]
    assert (zero["budget"], zero["mean"], zero["error"], zero["episodes"]) == (0, -1, 0, 1)
    assert (five["mean"], five["min"], five["max"], five["episodes"]) == (2, 1, 3, 2)
    assert five["error"] == pytest.approx(1 / np.sqrt(2))


@pytest.mark.parametrize("text", ["budget,episode\n1,2\n", "budget,return\nx,1\n"])
def test_broken_tests_are_named(tmp_path, text):
    path = tmp_path / "evaluation.csv"
    path.write_text(text)
    assert rewards_by_budget(path)["problem"] == "evaluation.csv is damaged or half-written."


def test_the_page_of_a_run(tmp_path):
    run = make_run(tmp_path / "run", lines(3), budget=25)
    make_checkpoint(run, 1, time_s=3.0, failed={})
    make_checkpoint(run, 2, time_s=5.0, failed={}, light=True)
    (make_checkpoint(run, 3) / "arrays.npz").unlink()
    (make_checkpoint(run, 4) / "manifest.json").write_text("{")
    (run / "checkpoints" / ".writing-000000005").mkdir()
    (run / "evaluation.csv").write_text("budget,episode,return,steps\n5,0,1,9\n")
    (run / "evaluation-uct.csv").write_text("nothing")
    (run / "job.log").write_text("x" * 9000 + "the end")
    told = request(make_app(tmp_path, token="t"), "/api/run", {"run": "run"}).json
    assert [one["number"] for one in told["checkpoints"]] == [4, 3, 2, 1]
    assert [one["problem"] for one in told["checkpoints"]] == [
        "manifest.json is damaged or half-written.", "arrays.npz is missing.", "", "",
    ]  # fmt: skip
    assert told["checkpoints"][2]["light"]
    assert told["checkpoints"][2]["bytes"] == 100
    assert [test["file"] for test in told["evaluations"]] == [
        "evaluation.csv",
        "evaluation-uct.csv",
    ]
    assert told["settings"][0]["name"] == "episodes"
    assert told["log"].endswith("the end")
    assert len(told["log"]) == 4000


@pytest.fixture(scope="module")
def recorded():
    return make_app(RESULTS, token="t")


def test_recorded_experiments_are_listed_with_their_verdicts(recorded):
    told = {one["name"]: one for one in request(recorded, "/api/experiments").json["experiments"]}
    assert set(told) == {path.parent.name for path in RESULTS.glob("*/claims.json")}
    for name, one in told.items():
        claims = json.loads((RESULTS / name / "claims.json").read_text())
        holding = [claim for claim in claims if claim["holds"] is True]
        assert one["verdicts"].get("holds", 0) == len(holding)
        assert sum(one["verdicts"].values()) == len(claims)
        assert one["problems"] == []


def test_a_recorded_experiment(recorded):
    told = request(recorded, "/api/experiment", {"name": "tightrope-network"}).json
    assert told["pictures"][0] == "figure.png"
    assert told["axes"]["seeds"] == 10
    assert told["provenance"]["device"] == "NVIDIA H200"
    written = (RESULTS / "tightrope-network" / "results.csv").read_text().splitlines()
    assert told["numbers"] == len(written) - 1
    by_id = {claim["id"]: claim for claim in told["claims"]}
    assert by_id["save-above-puct"]["verdict"] == "holds"
    assert by_id["save-above-puct"]["p_value"] == 3.1701437086470106e-05
    assert by_id["save-ends-above-q-learning"]["verdict"] == "does not hold"


def test_a_broken_experiment_says_what_is_wrong(tmp_path):
    folder = tmp_path / "one"
    folder.mkdir()
    (folder / "claims.json").write_text('[{"claim": "x", "holds": null}, 7')
    make_run(folder / "runs" / "save-0", lines(2))
    app = make_app(tmp_path, token="t")
    told = request(app, "/api/experiment", {"name": "one"}).json
    assert told["problems"] == [
        "experiment.json is missing.", "claims.json is damaged or half-written.",
        "results.csv is missing.",
    ]  # fmt: skip
    assert told["runs"] == ["one/runs/save-0"]
    assert request(app, "/api/experiment", {"name": "one/runs"}).status == 404
    assert len(request(app, "/api/experiments").json["experiments"][0]["problems"]) == 2


def test_all_that_a_page_loads_is_small_and_shipped():
    files = [path for path in STATIC.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 500_000
    for path in files:
        if path.suffix in (".html", ".css", ".js") and path.parent == STATIC:
            for found in re.findall(r"https?://[^\s\"')]+", path.read_text()):
                assert found == "http://www.w3.org/2000/svg", f"{path.name}: {found}"
    for library in (STATIC / "vendor").glob("*.js"):
        assert (STATIC / "vendor" / f"{library.name.split('.')[0]}.LICENSE").exists()


def test_the_head_of_a_page_names_its_modules():
    listed = re.search(r"const PAGES = {(.*?)};", (STATIC / "app.js").read_text(), re.DOTALL)
    assert listed
    assert dict(re.findall(r'"(.*?)": "./(.*?)"', listed[1])) == PAGES
    app = make_app(RESULTS, token="t")
    for page in PAGES:
        named = re.findall(r'modulepreload" href="/static/(.*?)"', request(app, page).body.decode())
        used = {"app.js", PAGES[page]}  # and what these import, module by module
        for _ in range(len(list(STATIC.glob("*.js")))):
            texts = [(STATIC / name).read_text() for name in used]
            used |= {name for text in texts for name in re.findall(r'from "./(.*?)";', text)}
        assert sorted(named) == sorted(used)


def test_colours_are_those_of_all_figures():
    known = {look.colour for look in LOOKS.values()} | {"#999933"}  # a spare one of palette.py
    listed = re.search(r"const COLOURS = \[(.*?)\]", (STATIC / "chart.js").read_text())
    assert listed
    assert set(re.findall(r"#\w{6}", listed[1])) <= known

"""The numbered examples run from any folder and print what they promise."""

import importlib
import os
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from save_rl import make
from save_rl.networks import network_maker

EXAMPLES = Path(__file__).parents[1] / "examples"
DOCS = EXAMPLES.with_name("docs")


def run_as_script(tmp_path: Path, name: str, *arguments: str) -> str:
    """Standard output of an example, run in an empty folder; temporary files stay there too."""
    source = str(EXAMPLES.parent / "src")
    path = os.pathsep.join(filter(None, [source, os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name), *arguments],
        cwd=tmp_path,
        env={**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": path, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """The same in this process, which has imported and compiled most of it already."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(EXAMPLES))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def run(name: str, *arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", [name, *arguments])
        importlib.import_module(name.removesuffix(".py")).main()
        return capsys.readouterr().out

    return run


def rewards_by_budget(output: str) -> dict[int, float]:
    """Mean test reward by budget, as examples print it."""
    found = re.findall(r"^budget +(\d+): mean test reward (\S+?),?(?: |$)", output, re.MULTILINE)
    return {int(budget): float(reward) for budget, reward in found}


def test_every_numbered_example_is_run_here():
    names = {path.name for path in EXAMPLES.glob("[0-9]*.py")}
    source = Path(__file__).read_text()
    assert names
    assert {name for name in names if f'"{name}"' not in source} == set()


def test_one_state_is_searched_with_and_without_a_prior(run):
    output = run("01_search_one_state.py", "--budget", "10")
    tables = re.split(r"^(?:SAVE|UCT), 10 simulations$", output, flags=re.MULTILINE)[1:]
    assert len(tables) == 2
    row = re.compile(r"^ *(\d+) +(\S+) +(-?\d+\.\d+) +(\d+) +(yes|no)$", re.MULTILINE)
    save, uct = (row.findall(table) for table in tables)
    for tried in (save, uct):
        assert (
            sum(int(visits) for *_, visits, _ in tried) == 10
        )  # all simulations are accounted for
    # Dying ends a path with 0, so an action tried once is worth half of its prior to SAVE.
    dead = [(float(prior), float(q)) for _, prior, q, visits, fatal in save if fatal == "yes"]
    assert dead
    for prior, q in dead:
        assert q == pytest.approx(prior / 2, abs=0.006)
    assert save[0][-1] == "no"  # the best explored action is a safe one
    assert {prior for _, prior, *_ in uct} == {"–"}


@pytest.mark.slow
def test_tightrope_is_trained_and_tested_at_three_budgets(run, tmp_path):
    arguments = ("--episodes", "3000", "--tests", "100", "--out", "run")
    output = run("02_train_tightrope.py", *arguments)
    rewards = rewards_by_budget(output)
    assert set(rewards) == {0, 5, 10}
    assert rewards[10] > 0.1  # a random walk gets about 0.005
    assert (tmp_path / "run" / "evaluation.csv").exists()


@pytest.mark.slow
def test_an_environment_of_ones_own_is_trained_by_its_address(run):
    output = run("03_custom_jax_environment.py", "--episodes", "100", "--tests", "20")
    pond = re.findall(r"^  ([.o](?: [.o]){5})$", output, re.MULTILINE)
    assert len(pond) == 6
    rewards = rewards_by_budget(output)
    assert set(rewards) == {0, 5}
    assert all(0 <= reward <= 1 for reward in rewards.values())
    lengths = re.findall(r"(\S+) steps an episode", output)
    assert all(1 <= float(length) <= 30 for length in lengths)


@pytest.mark.slow
def test_a_gymnasium_environment_is_branched_checked_trained_and_tested(run):
    output = run("04_gymnasium_environment.py", "--steps", "160", "--tests", "4")
    assert "right leads from cell 0 to cell 1\ndown leads from cell 0 to cell 4\n" in output
    assert "nothing is wrong with it" in output
    rewards = rewards_by_budget(output)
    assert set(rewards) == {0, 10}
    assert all(0 <= reward <= 1 for reward in rewards.values())


@pytest.mark.slow  # test_policy.py has all of it without training
def test_a_policy_acts_from_its_folder_and_from_its_file(run, tmp_path):
    output = run("08_policy.py", "--episodes", "1000", "--budget", "20")
    rewards = rewards_by_budget(output)
    assert set(rewards) == {0, 20}
    assert rewards[20] > 0.2  # a random walk gets about 0.03
    with_search, from_file = re.findall(
        r"^(?:with search|from the file): action (\d+)", output, re.M
    )
    assert with_search == from_file
    assert list(tmp_path.glob("*/tree.png"))


PUZZLE = ("05_own_simulator.py", "--steps", "160", "--tests", "8")


def assert_it_plays_the_puzzle(output):
    assert "Nothing is wrong with this simulator." in output
    rewards = rewards_by_budget(output)
    assert set(rewards) == {0, 10, 30}
    (random,) = re.findall(r"^random play: mean test reward (\S+)$", output, re.MULTILINE)
    assert float(random) < rewards[30]  # a little training and much search do better


@pytest.mark.slow  # 04 trains above; the puzzle itself is looked at below
def test_a_simulator_of_ones_own_is_checked_and_trained_with_workers(run):
    assert_it_plays_the_puzzle(run(*PUZZLE))


@pytest.mark.slow  # above in this process; test_api.py names what a script holds
def test_a_simulator_of_ones_own_is_trained_by_a_script(tmp_path):
    assert_it_plays_the_puzzle(run_as_script(tmp_path, *PUZZLE))


def test_the_network_of_the_example_fits(monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    made = network_maker(
        "07_own_network:residual", np.zeros(4, np.float32), make("gym/CartPole-v1")
    )
    head, value = made(jax.random.PRNGKey(0))(np.ones((3, 4), np.float32))
    assert head.shape == (3, 2)
    assert value is None


@pytest.mark.slow  # tests/training/test_networks.py trains other networks
def test_a_network_of_ones_own_is_trained_on_a_python_simulator(run):
    output = run("07_own_network.py", "--env", "gym/CartPole-v1", "--steps", "64", "--tests", "4")
    # Four numbers to 64, two blocks of 64, the scales of a norm, two actions.
    size = (4 + 1) * 64 + 2 * (64 + 1) * 64 + 2 * 64 + (64 + 1) * 2
    assert f"a network of {size:,} numbers" in output
    assert set(rewards_by_budget(output)) == {0, 5}


@pytest.mark.slow
def test_a_network_of_ones_own_is_trained_on_a_jax_environment(run):
    rewards = rewards_by_budget(run("07_own_network.py", "--steps", "12000"))
    assert rewards[5] > 0.1  # a random walk gets about 0.005


def test_the_network_on_the_page_is_that_of_the_example():
    example = (EXAMPLES / "07_own_network.py").read_text()
    code = example[example.index("WIDTH, BLOCKS") : example.index("\n\ndef main")]
    assert code in (DOCS / "networks.md").read_text()


def test_a_search_is_shown_as_a_table_and_a_tree(tmp_path):
    output = run_as_script(tmp_path, "06_inspect_a_search.py", "--out", "tree.svg")
    row = re.compile(r"^(\w+) +(\d\.\d+) +(\d\.\d+) +(\d+)$", re.MULTILINE)
    rows = {name: (float(p), float(q), int(n)) for name, p, q, n in row.findall(output)}
    assert sum(visits for *_, visits in rows.values()) == 16
    prior, q, visits = rows["right"]  # into the hole, which is worth 0
    assert q == pytest.approx(prior / (1 + visits), abs=1e-3)
    assert rows["down"][0] == prior
    assert "best explored action: down" in output
    picture = tmp_path / "tree.svg"
    drawn = ET.parse(picture).iterfind(".//{*}g[@data-node]")
    assert len(list(drawn)) == 17
    assert picture.read_text() == (DOCS / "images" / "search-tree.svg").read_text()


@pytest.fixture
def puzzle(monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    return importlib.import_module("05_own_simulator")


def test_the_puzzle_on_the_page_is_that_of_the_example():
    example = (EXAMPLES / "05_own_simulator.py").read_text()
    code = example[example.index("ROWS, COLUMNS") : example.index("\n\ndef main")]
    assert code in (DOCS / "own-simulator.md").read_text()


def test_the_puzzle_masks_its_border_pays_when_solved_and_cuts_off(puzzle):
    tiles = puzzle.SlidingTiles()
    state = puzzle.State((1, 2, 3, 4, 0, 5), steps=puzzle.LIMIT - 1)
    np.testing.assert_array_equal(tiles.action_mask(state), [True, False, True, True])
    up, left, right = 0, 2, 3
    after, *result = tiles.step(state, right)
    assert after.tiles == puzzle.SOLVED
    assert result == [1.0, True, False]
    after, *result = tiles.step(state, left)
    assert after.tiles == (1, 2, 3, 0, 4, 5)
    assert result == [0.0, False, True]
    assert tiles.step(state._replace(steps=0), up)[1:] == (0.0, False, False)


def test_every_puzzle_can_be_solved_but_is_not(puzzle):
    tiles = puzzle.SlidingTiles()
    seen, new = {puzzle.SOLVED}, [puzzle.SOLVED]
    while new:
        moves = {puzzle.slide(position, action) for position in new for action in range(4)}
        new = list(moves - seen - {None})
        seen.update(new)
    starts = {tiles.reset(seed).tiles for seed in range(100)}
    assert len(seen) == 360  # half of all orders
    assert starts <= seen - {puzzle.SOLVED}
    assert len(starts) > 20


@pytest.fixture
def pond(monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import custom_environment

    return custom_environment


def test_the_pond_masks_its_border_and_ends_in_holes(pond):
    env = pond.thin_ice(seed=0)
    corner = pond.State(jnp.zeros(2, jnp.int32), jnp.int32(0))
    np.testing.assert_array_equal(env.action_mask(corner), [True, True, False, False])
    assert env.holes[0, 1]  # right of the corner in this pond
    _, reward, terminated, truncated = env.step(corner, 0)
    assert (float(reward), bool(terminated), bool(truncated)) == (0.0, True, False)


def test_the_pond_pays_at_the_far_corner_and_cuts_off_late_walkers(pond):
    env = pond.thin_ice(seed=0)
    before = pond.State(env.way[-2], jnp.int32(pond.LIMIT - 1))
    move = pond.MOVES.index(tuple(np.asarray(env.way[-1] - env.way[-2]).tolist()))
    _, reward, terminated, truncated = env.step(before, move)
    assert (float(reward), bool(terminated), bool(truncated)) == (1.0, True, False)
    start = pond.State(env.way[0], jnp.int32(pond.LIMIT - 1))
    step = pond.MOVES.index(tuple(np.asarray(env.way[1] - env.way[0]).tolist()))
    _, reward, terminated, truncated = env.step(start, step)
    assert (float(reward), bool(terminated), bool(truncated)) == (0.0, False, True)


def test_every_pond_has_a_free_way_and_starts_on_it(pond):
    for seed in range(20):
        env = pond.thin_ice(seed=seed, holes=30)
        way = np.asarray(env.way)
        assert np.all(np.abs(np.diff(way, axis=0)).sum(1) == 1)
        assert tuple(way[-1]) == (pond.SIZE - 1, pond.SIZE - 1)
        assert not np.asarray(env.holes)[way[:, 0], way[:, 1]].any()
        assert tuple(np.asarray(env.reset(jax.random.key(seed)).cell)) in set(map(tuple, way[:-1]))

"""Random command lines, from the tables of options themselves: each ends in one sentence."""

import random
import shlex
from pathlib import Path

import pytest

from save_rl.cli import bench, commands, main
from save_rl.cli.commands import _named
from save_rl.cli.reproduce import experiment_command
from save_rl.errors import Interrupted
from save_rl.experiments import EXPERIMENTS
from save_rl.training.settings import TrainSettings

BASES = {
    "train": commands.Train(TrainSettings()),
    "train gym/CartPole-v1": commands.Train(TrainSettings()),
    "train atari/MsPacman --agent r2d2-save": commands.Train(TrainSettings()),
    "evaluate nowhere": commands.Evaluate(""),
    "evaluate tightrope --agent uct --budgets 1": commands.Evaluate(""),
    "evaluate gym/CartPole-v1 --agent random": commands.Evaluate(""),
    "watch covering --out x.gif": commands.Watch("", Path()),
    "check gym/CartPole-v1": commands.Check(""),
    "demo": commands.Demo(),
    "envs": commands.Envs(),
    "envs covering --scenes x.png": commands.Envs(),
    "agents": commands.Agents(),
    "experiments": commands.Experiments(),
    **{f"reproduce {name}": experiment_command(name)() for name in EXPERIMENTS},
    "bench search": bench.BenchSearch(),
    "bench physics": bench.BenchPhysics(),
    "bench atari": bench.BenchAtari(),
    "bench train": bench.BenchTrain(),
}
NASTY = (
    "nan", "inf", "-inf", "-1", "-2", "0", "1", "0.5", "1e308", "-1e308", "1e-320", "1e400",
    "2147483647", "2147483648", "-2147483649", "4294967296", "9223372036854775807", "9" * 20,
    "9" * 5000, "ten", "", " ", "None", "true", "0x10", "1_0", "²", "٣", "a\nb", "é", "[b]x[/b]",
    "{}", "%s", "--", "-", "x" * 300, "tightrop", "os:system", "gym/os:x", "a=NaN", "terminal=[]",
    "terminal=1e999", "reward=" + "[" * 2000, "seed=1", "=", "\udcff",
)  # fmt: skip
PATHS = ("/proc/nowhere/x", "/dev/null/x", "x" * 300, "a\nb", "é", "\udcff")
NOT_OPTIONS = ("--env", "--run-or-env", "--cluster")


def command_lines(count, seed):
    """Draw command lines: a command, up to three of its options, and up to two values each."""
    rng = random.Random(seed)
    lines = []
    for _ in range(count):
        base = rng.choice(list(BASES))
        options = [name for name, _ in _named(BASES[base]) if name not in NOT_OPTIONS]
        options.append("--no-such-option")
        line = shlex.split(base)
        for option in rng.sample(options, min(len(options), rng.choice((1, 1, 1, 2, 3)))):
            values = PATHS if option in ("--out", "--scenes") else NASTY
            line += [option, *rng.sample(values, rng.choice((0, 1, 1, 1, 1, 2)))]
        if rng.random() < 0.05:
            rng.shuffle(line)
        lines.append(line)
    return lines


class Stubs:
    """Have all work end where it would begin, once the input has been accepted."""

    def __init__(self, monkeypatch):
        def stop(*_, **__):
            raise Interrupted("accepted.", 130)

        from save_rl.training.run import loop
        from save_rl.training.run import trainers as programs

        def make(settings, *_, **__):
            programs.environments(settings)
            stop()

        before = loop.Overseer.__init__.__defaults__
        after = tuple(make if value is programs.make_trainer else value for value in before)
        assert make in after
        monkeypatch.setattr(loop.Overseer.__init__, "__defaults__", after)
        monkeypatch.setattr("save_rl.evaluation.make_trainer", make)
        for name in (
            "evaluation.evaluate_parameters", "evaluation._play_simulator",
            "evaluation._pure_search",
            "players._play", "watch.contact_sheet", "envs.check._look",
            "experiments.tightrope_tabular.cells", "experiments.runs.run_cells",
            "bench.search.bench_search", "bench.train.bench_train", "bench.physics.bench_physics",
            "bench.atari.bench_atari", "bench.r2d2.bench_r2d2", "bench.cluster.bench_cluster",
            "bench.construction.bench_host_train",
        ):  # fmt: skip
            monkeypatch.setattr(f"save_rl.{name}", stop)


@pytest.fixture
def stubbed(monkeypatch):
    Stubs(monkeypatch)


@pytest.fixture
def complaint(capsys, tmp_path, monkeypatch):
    """Run a command line in a folder of its own; returns what is wrong with its answer."""
    monkeypatch.chdir(tmp_path)

    def run(line):
        capsys.readouterr()
        code = 0
        try:
            main(line)
        except SystemExit as stop:
            code = stop.code
        except BaseException as error:
            return f"{line}: {type(error).__name__}: {error}"
        said = capsys.readouterr().err
        sentences = said.count("save-rl: ")
        if code not in (0, 1, 2, 130) or "Traceback" in said:
            return f"{line}: {code}, {said}"
        if code and (sentences != 1 or not said.endswith("\n")):
            return f"{line}: {code}, {said}"
        if code == 2 and (said.count("\n") != 1 or not said.startswith("save-rl: ")):
            return f"{line}: {code}, {said}"
        return ""

    return run


@pytest.mark.usefixtures("stubbed")
def test_some_random_command_lines_end_in_a_sentence(complaint):
    assert list(filter(None, map(complaint, command_lines(60, seed=1)))) == []


@pytest.mark.slow
@pytest.mark.usefixtures("stubbed")
@pytest.mark.parametrize("seed", range(2, 12))
def test_random_command_lines_end_in_a_sentence(complaint, seed):
    assert list(filter(None, map(complaint, command_lines(100, seed)))) == []


TINY = (
    "train tests.cli.broken_environments:walk --episodes 1 --budget 1 --lanes 4 --replay 16 "
    "--min-replay 16 --chunk 1 --device cpu"
)
SMALL = ("nan", "inf", "-1", "0", "1", "2", "0.5", "9" * 20, "x")


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
def test_random_options_of_a_tiny_run_end_in_a_sentence(complaint, seed):
    """Nothing is stubbed here: a run that is accepted comes to its end."""
    rng = random.Random(seed)
    names = [name for name, _ in _named(BASES["train"]) if name not in NOT_OPTIONS]
    numbers = [name for name in names if not name.startswith(("--out", "--env", "--r2d2"))]
    line = [*shlex.split(TINY), rng.choice(numbers), rng.choice(SMALL)]
    assert complaint(line) == ""

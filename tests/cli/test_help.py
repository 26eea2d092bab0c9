"""Help answers at once, and leaves no command and no option unexplained."""

import ast
import dataclasses
import inspect
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from save_rl.cli import SUMMARIES, bench, commands, main, studio
from save_rl.cli.commands import COMMANDS, command_type
from save_rl.cli.compare import Compare
from save_rl.cli.reproduce import SHARED, experiment_command
from save_rl.experiments import EXPERIMENTS
from save_rl.experiments.experiment import find_experiment
from save_rl.learning.r2d2_settings import (
    NetworkSettings,
    R2D2Settings,
    ReplaySettings,
    SequenceSettings,
)
from save_rl.training.cluster.settings import ClusterSettings
from save_rl.training.layer_settings import LayerSettings
from save_rl.training.settings import TrainSettings

HEAVY = ("jax", "numba", "matplotlib", "scipy", "gymnasium", "ray")
HEAVIER_THAN_HELP = (*HEAVY, "numpy")
# The classes behind a command line, and the names of those fields that it calls otherwise.
PAGES = {
    "train": (
        commands.Train,
        TrainSettings,
        LayerSettings,
        R2D2Settings,
        NetworkSettings,
        SequenceSettings,
        ReplaySettings,
        ClusterSettings,
    ),
    "evaluate": (commands.Evaluate,),
    "compare": (Compare,),
    **{f"reproduce {name}": (experiment_command(name),) for name in EXPERIMENTS},
    "bench search": (bench.BenchSearch,),
    "bench physics": (bench.BenchPhysics,),
    "bench atari": (bench.BenchAtari,),
    "bench train": (bench.BenchTrain,),
    "watch": (commands.Watch,),
    "studio": (studio.Studio,),
    "check": (commands.Check,),
    "demo": (commands.Demo,),
    "envs": (commands.Envs,),
    "agents": (commands.Agents,),
    "experiments": (commands.Experiments,),
}
SHOWN_AS = {
    (TrainSettings, "env"): "ENV",
    (TrainSettings, "seeds"): "--seed",
    (commands.Evaluate, "run_or_env"): "DIR",
    (Compare, "runs"): "DIR",
    (commands.Train, "from_run"): "--from",
    (commands.Watch, "env"): "ENV",
    (studio.Studio, "folder"): "FOLDER",
    (commands.Check, "env"): "ENV",
    (commands.Envs, "env"): "ENV",
}
PREFIXES = {
    LayerSettings: "network.",
    R2D2Settings: "r2d2.",
    NetworkSettings: "r2d2.network.",
    SequenceSettings: "r2d2.sequences.",
    ReplaySettings: "r2d2.replay.",
    ClusterSettings: "cluster.",
}
# `Train` has the options of the environment in its own field. Settings in a class of their own are
# shown one by one.
NOT_SHOWN = {
    (commands.Train, "settings"),
    (commands.Train, "cluster_settings"),
    (commands.Train, "given"),
    (TrainSettings, "env_options"),
    (TrainSettings, "network_settings"),
    (TrainSettings, "r2d2"),
    (R2D2Settings, "network"),
    (R2D2Settings, "sequences"),
    (R2D2Settings, "replay"),
}


MADE_FROM = {experiment_command(name): find_experiment(name) for name in EXPERIMENTS}


def words(text):
    """The text without the boxes around it, on one line."""
    return " ".join(re.sub(r"[│╭╮╰╯─]|-{3,}", " ", text).split())


@pytest.fixture
def page(capsys, monkeypatch):
    """What `save-rl … --help` says, on one line."""
    monkeypatch.setenv("COLUMNS", "80")

    def show(*arguments):
        with pytest.raises(SystemExit) as stop:
            main([*arguments, "--help"])
        assert stop.value.code == 0
        return words(capsys.readouterr().out)

    return show


def help_texts(kind):
    """The string below each field of a dataclass, read from its source; of a command that was made
    from an experiment, the text of each option."""
    if kind in MADE_FROM:
        return {name: words(text) for name, text in MADE_FROM[kind].options.items()}
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(tree, ast.ClassDef)
    texts = {}
    for field, below in zip(tree.body, [*tree.body[1:], None], strict=True):
        if isinstance(field, ast.AnnAssign) and isinstance(below, ast.Expr):
            texts[ast.unparse(field.target)] = words(ast.literal_eval(below.value))
    return texts


def test_the_list_of_commands(page):
    shown = page()
    assert shown.startswith(
        "usage: save-rl [-h] [--version] COMMAND [OPTIONS] "
        "Search with Amortized Value Estimates, for small search budgets. commands: train "
    )
    assert list(SUMMARIES) == list(COMMANDS)
    for name in COMMANDS:
        assert inspect.cleandoc(command_type(name).__doc__) == SUMMARIES[name]
        assert f" {name} {SUMMARIES[name]} " in shown


def test_every_command_has_a_page():
    assert {line.split()[0] for line in PAGES} == set(COMMANDS)
    with_choices = {line.split()[0] for line in PAGES if " " in line}
    for command in with_choices:
        (choice,) = dataclasses.fields(command_type(command))
        shown = {kinds[0] for line, kinds in PAGES.items() if line.startswith(command)}
        assert {alternative.__origin__ for alternative in choice.type.__args__} == shown


@pytest.mark.parametrize("line", PAGES)
def test_every_option_is_explained(page, line):
    shown = page(*line.split())
    for kind in PAGES[line]:
        texts = help_texts(kind)
        for field in dataclasses.fields(kind):
            if (kind, field.name) in NOT_SHOWN:
                continue
            assert texts.get(field.name), f"{kind.__name__}.{field.name} has no help"
            usual = f"--{PREFIXES.get(kind, '')}{field.name.replace('_', '-')}"
            option = SHOWN_AS.get((kind, field.name), usual)
            assert re.search(rf"(?<![\w-]){option}(?![\w-])", shown), option
            assert texts[field.name] in shown


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_the_options_of_an_experiment_are_its_own_and_shared_ones(name):
    experiment = find_experiment(name)
    assert experiment.name == name
    assert list(experiment.scales) == ["smoke", "small", "paper"]
    assert {"scale", "out", "resume"} <= experiment.options.keys()
    for axes in experiment.scales.values():
        assert experiment.options.keys() - SHARED <= {one.name for one in dataclasses.fields(axes)}
    assert experiment_command(name)().out == Path("runs") / name


@pytest.mark.parametrize(
    ("arguments", "heavy"),
    [
        (["--help"], (*HEAVIER_THAN_HELP, "tyro", "rich")),
        (["train", "--help"], HEAVIER_THAN_HELP),
        (["reproduce", "atari", "--help"], HEAVY),
        (["agents"], HEAVY),
        (["envs"], HEAVIER_THAN_HELP),
    ],
)
def test_nothing_heavy_is_imported_to_answer(arguments, heavy):
    code = (
        "import sys\n"
        "from save_rl.cli import main\n"
        "try:\n"
        "    main(sys.argv[1:])\n"
        "except SystemExit as stop:\n"
        "    assert not stop.code\n"
        f"found = [name for name in {heavy} if name in sys.modules]\n"
        "print(*found, file=sys.stderr)\n"
        "sys.exit(len(found))\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False
    )
    assert (ran.returncode, ran.stderr.strip()) == (0, "")
    assert ran.stdout


@pytest.mark.parametrize(
    ("command", "names"),
    {
        "agents": [
            "save",
            "save-no-amortization",
            "save-no-amortization-annealed",
            "save-l2",
            "save-no-q-learning",
            "save-amortization-only",
            "save-puct",
            "save-puct-visits",
            "save-ucb",
            "save-softmax",
            "save-counts",
            "save-explored",
            "save-visit-weighted",
            "q-learning",
            "puct",
            "puct-td",
            "gumbel",
            "uct",
            "uct-threshold",
            "r2d2",
            "r2d2-controlled",
            "r2d2-save",
            "random",
            "scripted",
        ],
        "envs": [
            "tightrope",
            "silhouette",
            "connecting",
            "covering",
            "covering-hard",
            "marble-run",
            "gym/ID",
            "atari/GAME",
            "gymnax/ID",
            "jumanji/ID",
            "pgx/ID",
        ],
        "experiments": [
            "tightrope-tabular",
            "tightrope-network",
            "construction",
            "construction-ablations",
            "construction-exploration",
            "construction-efficiency",
            "marble-run",
            "atari",
            "minatar",
            "jax-suite",
        ],
    }.items(),
)
def test_lists_have_a_line_for_each_name(capsys, command, names):
    main([command])
    lines = capsys.readouterr().out.splitlines()
    listed = [line.split(maxsplit=1) for line in lines]
    assert [name for name, _ in listed] == names
    assert all(len(summary.split()) >= 3 for _, summary in listed)


def test_experiments_say_which_figure_they_reproduce(capsys):
    main(["experiments"])
    assert re.findall(r"Fig\. \d\w(?:-\w)?", capsys.readouterr().out) == [
        "Fig. 2a-c", "Fig. 2d", "Fig. 3a-c", "Fig. 3d",
    ]  # fmt: skip

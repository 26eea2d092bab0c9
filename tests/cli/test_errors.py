"""What can't be done is answered in one sentence, before anything is written."""

import errno
import os
import shlex
import sys
from types import SimpleNamespace

import pytest

import save_rl
from save_rl import envs
from save_rl.cli import main
from save_rl.errors import InputError

pytestmark = pytest.mark.xdist_group("errors")  # one worker runs them all: one run is enough
BROKEN = "tests.cli.broken_environments"
AGENTS = (
    "gumbel, puct, puct-td, q-learning, r2d2, r2d2-controlled, r2d2-save, save, "
    "save-amortization-only, save-counts, save-explored, save-l2, save-no-amortization, "
    "save-no-amortization-annealed, save-no-q-learning, save-puct, save-puct-visits, "
    "save-softmax, save-ucb, save-visit-weighted, uct, uct-threshold"
)
COMMANDS = (
    "agents, bench, check, compare, demo, envs, evaluate, experiments, reproduce, studio, train, "
    "watch"
)

NAMES = {
    "trian": f"COMMAND: there is no command 'trian'; known: {COMMANDS}. Did you mean 'train'?",
    "xyzzy": f"COMMAND: there is no command 'xyzzy'; known: {COMMANDS}.",
    "train --agent sav": (
        f"--agent: there is no agent 'sav'; known: {AGENTS}. Did you mean 'save'?"
    ),
    "train tightrop": (
        "ENV: there is no environment 'tightrop'; known: atari/GAME, connecting, covering, "
        "covering-hard, gym/ID, gymnax/ID, jumanji/ID, marble-run, pgx/ID, silhouette, "
        "tightrope. Did you mean 'tightrope'?"
    ),
    "watch coverin --out x.gif": (
        "ENV: there is no environment 'coverin'; known: atari/GAME, connecting, covering, "
        "covering-hard, gym/ID, gymnax/ID, jumanji/ID, marble-run, pgx/ID, silhouette, "
        "tightrope. Did you mean 'covering'?"
    ),
    "watch atari/qbert --out x.gif": (
        "ENV: 'qbert' can't be played: ale-py does not restore its states exactly, and every step "
        "starts by restoring one."
    ),
    "watch covering --agent scriptd --out x.gif": (
        "--agent: there is no agent without training 'scriptd'; known: random, scripted, uct. "
        "Did you mean 'scripted'?"
    ),
    "watch covering --difficulty 3 --out x.gif": (
        "difficulty: 3 is not a level of covering (paper); it must be a whole number from 0 to 2."
    ),
    "envs covering": (
        "ENV: 'covering' is no suite to list (gymnax, jumanji, pgx); scenes of an environment need "
        "a file, as in save-rl envs covering --scenes out.png."
    ),
    "train covering --network mlp": (
        "--network: 'mlp' needs an observation that is a single array, and this environment shows "
        "a dictionary: nodes, node_mask. 'graph' fits it."
    ),
    "train covering --curriculum linaer": (
        "--curriculum: there is no curriculum 'linaer'; known: adaptive, auto, linear, none. "
        "Did you mean 'linear'?"
    ),
    "train gym/CartPole-v1 --curriculum linear": (
        "--curriculum: 'linear' is not possible; it must be 'none' in an environment without "
        "levels to sample from."
    ),
    "train covering --beta-episodes 0": (
        "--beta-episodes: 0.0 is not possible; it must be above 0."
    ),
    "train covering --temperature 0": "--temperature: 0.0 is not possible; it must be above 0.",
    "train covering --agent save-l2 --temperature 0.5": (
        "--temperature: 0.5 is not possible; it must be 1 with 'save-l2', whose loss has none."
    ),
    "train gym/CartPole-v1 --network graph": (
        "--network: 'graph' needs observations that are dictionaries of 'nodes' and 'node_mask'; "
        "'mlp' takes any array."
    ),
    "evaluate covering --agent save": (
        "--agent: there is no agent without training 'save'; known: random, scripted, uct."
    ),
    "evaluate tightrope --agent utc --budgets 1": (
        f"--agent: there is no agent 'utc'; known: {AGENTS}. Did you mean 'uct'?"
    ),
    "evaluate tightrop --agent uct --budgets 1": (
        "ENV: there is no environment 'tightrop'; known: atari/GAME, connecting, covering, "
        "covering-hard, gym/ID, gymnax/ID, jumanji/ID, marble-run, pgx/ID, silhouette, "
        "tightrope. Did you mean 'tightrope'?"
    ),
    "reproduce tightrope-tabula": (
        "REPRODUCE: there is no experiment 'tightrope-tabula'; known: atari, construction, "
        "construction-ablations, construction-efficiency, construction-exploration, jax-suite, "
        "marble-run, minatar, tightrope-network, tightrope-tabular. "
        "Did you mean 'tightrope-tabular'?"
    ),
    "reproduce construction --tasks conecting": (
        "--tasks: there is no task 'conecting'; known: connecting, covering, covering-hard, "
        "silhouette. Did you mean 'connecting'?"
    ),
    "reproduce marble-run --agents sav": (
        f"--agents: there is no agent 'sav'; known: {AGENTS}. Did you mean 'save'?"
    ),
    "reproduce marble-run --levels 0 7": ("--levels: 7 is not possible; it must be from 0 to 6."),
    "reproduce marble-run --costs -1": "--costs: -1.0 is not possible; it must be 0 or more.",
    "reproduce construction-ablations --agents uct": (
        "--agents: 'uct' is not possible; it must be an agent that learns ('uct' is --uct-budget)."
    ),
    "reproduce tightrope-tabular --agents save qlearning": (
        f"--agents: there is no agent 'qlearning'; known: {AGENTS}. Did you mean 'q-learning'?"
    ),
    "reproduce tightrope-network --agents qlearning": (
        f"--agents: there is no agent 'qlearning'; known: {AGENTS}. Did you mean 'q-learning'?"
    ),
    "reproduce tightrope-tabular --scale huge": (
        "--scale: 'huge' is not possible; it must be 'smoke', 'small' or 'paper'."
    ),
    "reproduce tightrope-network --scale huge": (
        "--scale: 'huge' is not possible; it must be 'smoke', 'small' or 'paper'."
    ),
    "bench serch": (
        "BENCH: there is no benchmark 'serch'; known: atari, physics, search, train. "
        "Did you mean 'search'?"
    ),
}

NUMBERS = {
    "train --budget -1": "--budget: -1 is not possible; it must be 0 or more.",
    "train --episodes 0": "--episodes: 0 is not possible; it must be at least 1.",
    "train --seed -3": "--seed: -3 is not possible; it must be 0 or more.",
    "train --seed --out run": "--seed: () is not possible; it must be at least one number.",
    "train --seed 1 2 1": "--seed: (1, 2, 1) is not possible; it must be different numbers.",
    "train --discount 2": "--discount: 2.0 is not possible; it must be between 0 and 1.",
    "train --discount nan": "--discount: nan is not possible; it must be a finite number.",
    "train --c -1": "--c: -1.0 is not possible; it must be 0 or more.",
    "train --learning-rate 0": "--learning-rate: 0.0 is not possible; it must be above 0.",
    "train --batch 0": "--batch: 0 is not possible; it must be at least 1.",
    "train --replay-ratio 0": "--replay-ratio: 0 is not possible; it must be at least 1.",
    "train --lanes 0": (
        "--lanes: 0 is not possible; it must be positive, and lanes x replay-ratio a multiple of "
        "the batch (16), so that every lock-step is followed by whole updates."
    ),
    "train --lanes 6": (
        "--lanes: 6 is not possible; it must be positive, and lanes x replay-ratio a multiple of "
        "the batch (16), so that every lock-step is followed by whole updates."
    ),
    "train --replay 99": (
        "--replay: 99 is not possible; it must be at least 100 (batch, min-replay, lanes)."
    ),
    "train --target-period 0": "--target-period: 0 is not possible; it must be at least 1.",
    "train --chunk 0": "--chunk: 0 is not possible; it must be at least 1.",
    "train --test-episodes -1": "--test-episodes: -1 is not possible; it must be 0 or more.",
    "train --test-budget -2": "--test-budget: -2 is not possible; it must be -1 or more.",
    "train --env-options terminal=120": (
        "--terminal: 120 is not possible; it must be a percentage from 0 to 100."
    ),
    "train --env-options reward=medium": (
        "--reward: 'medium' is not possible; it must be 'sparse' or 'dense'."
    ),
    "train --env-options colour=red": (
        "--env-options: there is no option 'colour'; known: reward, terminal."
    ),
    "train --env-options terminl=50": (
        "--env-options: there is no option 'terminl'; known: reward, terminal. "
        "Did you mean 'terminal'?"
    ),
    "train --env-options terminal": (
        "--env-options: 'terminal' is not possible; write name=value."
    ),
    "train --env-options =50": "--env-options: '=50' is not possible; write name=value.",
    "evaluate tightrope --agent uct": "--budgets: 0 is not possible; it must be at least 1.",
    "evaluate tightrope --agent uct --budgets 1 --episodes 0": (
        "--episodes: 0 is not possible; it must be at least 1."
    ),
    "evaluate tightrope --agent uct --budgets 1 --env-options terminal=120": (
        "--terminal: 120 is not possible; it must be a percentage from 0 to 100."
    ),
    "evaluate nowhere --budgets": (
        "--budgets: () is not possible; it must be at least one number."
    ),
    "evaluate nowhere --budgets 5 -1": "--budgets: -1 is not possible; it must be at least 0.",
    "reproduce tightrope-tabular --terminal 50 120": (
        "--terminal: 120 is not possible; it must be a percentage from 0 to 100."
    ),
    "reproduce tightrope-tabular --terminal": (
        "--terminal: () is not possible; it must be at least one value."
    ),
    "reproduce tightrope-tabular --reward medium": (
        "--reward: 'medium' is not possible; it must be 'dense' or 'sparse'."
    ),
    "reproduce tightrope-tabular --budgets 5 0": (
        "--budgets: 0 is not possible; it must be at least 1."
    ),
    "reproduce tightrope-tabular --seeds 0": ("--seeds: 0 is not possible; it must be at least 1."),
    "reproduce tightrope-tabular --episodes -1": (
        "--episodes: -1 is not possible; it must be 0 or more."
    ),
    "reproduce tightrope-network --terminal 120": (
        "--terminal: 120.0 is not possible; it must be a percentage, 0 to 100."
    ),
    "reproduce tightrope-network --budget -1": (
        "--budget: -1 is not possible; it must be 0 or more."
    ),
    "reproduce tightrope-network --seeds 0": ("--seeds: 0 is not possible; it must be at least 1."),
    "reproduce tightrope-network --episodes 0": (
        "--episodes: 0 is not possible; it must be at least 1."
    ),
    "demo --episodes 0": "--episodes: 0 is not possible; it must be at least 1.",
    "bench train --seeds 0": "--seeds: (0,) is not possible; it must be at least 1 each.",
}

DIGITS = "99999999999999999999"
NOT_FINITE = {
    f"{command} {option} {value}": (
        f"{option}: {value} is not possible; it must be a finite number."
    )
    for command, option in (
        ("train", "--step-timeout"),
        ("train", "--checkpoint-seconds"),
        ("train", "--learning-rate"),
        ("train", "--c"),
        ("train", "--beta-q"),
        ("train", "--epsilon-episodes"),
        ("train", "--r2d2.replay.samples-per-insert"),
        ("train", "--r2d2.network.clip"),
        ("evaluate nowhere", "--step-timeout"),
        ("check tightrope", "--seconds"),
        ("bench train", "--seconds"),
        ("reproduce tightrope-tabular", "--terminal"),
        ("reproduce marble-run", "--costs"),
        ("reproduce atari", "--frames"),
    )
    for value in ("nan", "inf")
}
TOO_LARGE = {
    f"{command} {option} {value}": (
        f"{option}: {value} is not possible; it must be at most {most}."
    )
    for command, option, value, most in (
        ("train", "--seed", DIGITS, 2147483647),
        ("evaluate nowhere", "--seed", DIGITS, 2147483647),
        ("watch covering --out x.gif", "--seed", "2147483648", 2147483647),
        ("check tightrope", "--seed", DIGITS, 2147483647),
        ("envs covering --scenes x.png", "--seed", DIGITS, 2147483647),
        ("demo", "--episodes", "2147483648", 2147483647),
        ("train", "--replay", "9223372036854775807", 2147483647),
        ("train", "--steps", "10000000000001", 10**13),
        ("train", "--budget", "2147483647", 1000000),
        ("train", "--chunk", "2147483647", 100000),
        ("train", "--workers", "2147483647", 1024),
        ("train", "--step-timeout", "1e+300", 1000000),
        ("evaluate nowhere", "--budgets", "2147483647", 1000000),
        ("watch covering --out x.gif", "--budget", "2147483647", 1000000),
        ("reproduce tightrope-tabular", "--seeds", "2147483647", 10000),
        ("reproduce marble-run", "--jobs", "2147483647", 1024),
        ("bench atari", "--workers", "2147483647", 1024),
        ("bench train", "--seeds", "2147483647", 10000),
    )
}
NUMBERS |= {
    **NOT_FINITE,
    **TOO_LARGE,
    "train --min-replay -1": "--min-replay: -1 is not possible; it must be 0 or more.",
    "train --checkpoint-seconds -1": (
        "--checkpoint-seconds: -1.0 is not possible; it must be 0 (after every chunk) or more."
    ),
    "train --env-options terminal=NaN": (
        "--env-options: 'terminal=NaN' is not possible; numbers must be finite."
    ),
    "train --env-options terminal=1e999": (
        "--env-options: 'terminal=1e999' is not possible; numbers must be finite."
    ),
    "train --env-options terminal=[1]": (
        "--terminal: [1] is not possible; it must be a percentage from 0 to 100."
    ),
    "bench train --lanes 0": "--lanes: 0 is not possible; it must be at least 1.",
    "bench train --agents save uct": (
        "--agents: 'uct' is not possible; it must be an agent that learns."
    ),
    "bench train --agents r2d2": (
        "--agents: 'r2d2' is not possible; it must be an agent that does not learn from frames."
    ),
    "bench train --workers -2": "--workers: -2 is not possible; it must be -1 or more.",
    "bench atari --workers 0": "--workers: 0 is not possible; it must be at least 1.",
}

RECURRENT = "train atari/MsPacman --agent r2d2"
RECURRENT_AGENTS = {
    "train atari/MsPacman": (
        "--agent: 'save' can't learn from the frames of 'atari/MsPacman'; use one of r2d2, "
        "r2d2-controlled, r2d2-save."
    ),
    **{
        f"train {env} --agent r2d2-save": (
            f"--agent: 'r2d2-save' learns from frames, and '{env}' shows none; it needs "
            "atari/GAME, or a Python simulator with the same observations."
        )
        for env in ("tightrope", "covering", "gym/CartPole-v1")
    },
    f"{RECURRENT} --batch 8": "--batch: 8 has no effect on 'r2d2'; use --r2d2.replay.batch.",
    f"{RECURRENT} --network.hidden 256": (
        "--network.hidden: (256,) has no effect on 'r2d2'; use --r2d2.network.profile."
    ),
    f"{RECURRENT} --optimizer a:b": "--optimizer: a:b has no effect on 'r2d2'; leave it out.",
    f"{RECURRENT} --discount 0.9": (
        "--discount: 0.9 has no effect on 'r2d2'; use --r2d2.sequences.gamma."
    ),
    f"{RECURRENT} --mixed-precision": (
        "--mixed-precision: True has no effect on 'r2d2'; leave it out."
    ),
    f"{RECURRENT} --curriculum linear": (
        "--curriculum: linear has no effect on 'r2d2'; leave it out."
    ),
    "train --r2d2.refresh 3": "--r2d2.refresh: 3 has no effect on 'save'; leave it out.",
    f"{RECURRENT} --seed 0 1": (
        "--seed: (0, 1) is not possible; it must be one number for 'r2d2'; start a run for each."
    ),
    f"{RECURRENT} --lanes 0": "--lanes: 0 is not possible; it must be at least 1.",
    f"{RECURRENT} --beta-a 1": (
        "--beta-a: 1.0 is not possible; it must be left out with 'r2d2', which learns nothing "
        "from searches."
    ),
    f"{RECURRENT}-save --r2d2.discard-search": (
        "--r2d2.discard-search: true is not possible; it must be left out with 'r2d2-save', which "
        "uses what its searches find."
    ),
    f"{RECURRENT} --r2d2.network.profile smal": (
        "invalid choice 'smal' for argument '--r2d2.network.profile'. Expected one of ('paper', "
        "'small'); see save-rl train --help."
    ),
    f"{RECURRENT} --r2d2.sequences.period 90": (
        "--r2d2.sequences.period: 90 is not possible; it must be between 1 and "
        "--r2d2.sequences.train (80), so that no step is left out."
    ),
    f"{RECURRENT} --r2d2.replay.minimum 0": (
        "--r2d2.replay.minimum: 0 is not possible; it must be between 1 and "
        "--r2d2.replay.capacity (100000)."
    ),
    "reproduce tightrope-network --agents r2d2": (
        "--agents: 'r2d2' is not possible; it must be an agent that does not learn from frames."
    ),
    "reproduce marble-run --agents r2d2": (
        "--agents: 'r2d2' is not possible; it must be an agent that does not learn from frames."
    ),
}

ATARI = {
    "reproduce atari --games MsPacman qbert": (
        "--games: 'qbert' can't be played: ale-py does not restore its states exactly, and every "
        "step starts by restoring one."
    ),
    "reproduce atari --games tetris": (
        "--games: 'tetris' can't be played: ale-py does not restore its states exactly, and every "
        "step starts by restoring one."
    ),
    "reproduce atari --games ms_pacman MsPacman": (
        "--games: ('ms_pacman', 'ms_pacman') is not possible; it must be different values."
    ),
    "reproduce atari --games": "--games: () is not possible; it must be at least one value.",
    "reproduce atari --agents r2d2 save": (
        "--agents: 'save' is not possible; it must be an agent that learns from frames."
    ),
    "reproduce atari --agents r2d2-sav": (
        f"--agents: there is no agent 'r2d2-sav'; known: {AGENTS}. Did you mean 'r2d2-save'?"
    ),
    "reproduce atari --frames 2e5": (
        "--frames: 200000 is not possible; it must be at least 240960, for 'r2d2-controlled' to "
        "learn anything in this profile."
    ),
    "reproduce atari --scale paper --frames 8e5": (
        "--frames: 800000 is not possible; it must be at least 840960, for 'r2d2' to learn "
        "anything in this profile."
    ),
    "reproduce atari --frames nan": "--frames: nan is not possible; it must be a finite number.",
    "reproduce atari --profile acelerator": (
        "--profile: there is no profile 'acelerator'; known: accelerator, minutes, paper, "
        "two-cores. Did you mean 'accelerator'?"
    ),
    "reproduce atari --seeds 0": "--seeds: 0 is not possible; it must be at least 1.",
    "reproduce atari --budget 0": "--budget: 0 is not possible; it must be at least 1.",
    "reproduce atari --lanes 0": "--lanes: 0 is not possible; it must be at least 1.",
    "reproduce atari --score-episodes 0": (
        "--score-episodes: 0 is not possible; it must be at least 1."
    ),
    "reproduce atari --max-frames 0": "--max-frames: 0 is not possible; it must be at least 1.",
    "reproduce atari --agents r2d2-save --discard-search": (
        "--discard-search: true is not possible; it must be false without 'r2d2-controlled' among "
        "--agents."
    ),
    "reproduce atari --scale huge": (
        "--scale: 'huge' is not possible; it must be 'smoke', 'small' or 'paper'."
    ),
    "reproduce atari --games asterix --resume --out nowhere": (
        "--resume: 'nowhere' holds no experiment."
    ),
}

HERE = "train --workers 0"  # looks at the environment in this process, which starts no other
AGENTS_AND_ENVIRONMENTS = {
    "train --agent uct": (
        "--agent: 'uct' is not possible; it must be an agent that learns ('uct' only searches)."
    ),
    "reproduce tightrope-tabular --agents save-l2": ("--agents: 'save-l2' has no tabular version."),
    "train --agent puct --budget 0": (
        "--budget: 0 is not possible; it must be at least 1 for 'puct', which acts on visit counts."
    ),
    "evaluate tightrope --agent save --budgets 5": (
        "--agent: 'save' must be trained; give the folder of its run."
    ),
    "train nowhere.at_all:make": (
        "ENV: 'nowhere.at_all' can't be imported (No module named 'nowhere')."
    ),
    f"train {BROKEN}:missing": f"ENV: module '{BROKEN}' has no 'missing'.",
    f"{HERE} {BROKEN}:without_step": (
        f"ENV: '{BROKEN}:without_step' has no 'step'; an environment needs it."
    ),
    f"{HERE} {BROKEN}:Branching": (
        f"ENV: '{BROKEN}:Branching' is not a JAX environment (Attempted boolean conversion of "
        "traced array with shape bool[])."
    ),
    f"{HERE} {BROKEN}:Growing": (
        f"ENV: '{BROKEN}:Growing'.step changes the structure, shapes or types of the state."
    ),
    f"{HERE} {BROKEN}:Drifting": (
        f"ENV: '{BROKEN}:Drifting'.step changes the structure, shapes or types of the state."
    ),
    f"{HERE} {BROKEN}:Hidden --seed 0 1": (
        "ENV: the seeds' environments differ in more than arrays; make the environment a "
        "NamedTuple or another pytree of arrays, or train one seed at a time."
    ),
    f"{HERE} {BROKEN}:PaysTwice": (
        f"ENV: '{BROKEN}:PaysTwice'.step returns a reward of shape (2,), not a single number."
    ),
    f"{HERE} {BROKEN}:SeesAPair": (
        "--network: 'auto' knows no network for observations that are a tuple; have observe return "
        "an array or a flat dictionary of arrays, or give a network of your own, "
        "package.module:factory."
    ),
    f"{HERE} {BROKEN}:SeesNothing": f"ENV: '{BROKEN}:SeesNothing'.observe returns no array.",
    f"evaluate {BROKEN}:without_step --agent uct --budgets 1": (
        f"ENV: '{BROKEN}:without_step' has no 'step'; an environment needs it."
    ),
    f"{HERE} {BROKEN}:walk --env-options size=3": (
        "--env-options: there is no option 'size'; known: ."
    ),
}

FOLDERS_AND_DEVICES = {
    "evaluate nowhere": "DIR: 'nowhere' holds no run (config.json is missing).",
    "train --resume --out nowhere": ("--resume: 'nowhere' holds no run (config.json is missing)."),
    "reproduce tightrope-tabular --resume --out nowhere": (
        "--resume: 'nowhere' holds no experiment."
    ),
    "reproduce tightrope-network --resume --out nowhere": (
        "--resume: 'nowhere' holds no experiment."
    ),
    **{
        f"{command} --device gpu": (
            "--device: JAX sees no gpu here; use --device cpu, or install jax[cuda13]."
        )
        for command in (
            "train",
            "evaluate nowhere",
            "reproduce tightrope-network",
            "bench search",
            "bench train",
        )
    },
    "train --device tpu": "--device: 'tpu' is not possible; it must be 'auto', 'cpu' or 'gpu'.",
}


@pytest.fixture
def answer(capsys, tmp_path, monkeypatch):
    """Run a command in an empty folder; returns its exit code and the one line it says."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])  # `main` adds the folder one stands in

    def run(command):
        capsys.readouterr()
        with pytest.raises(SystemExit) as stop:
            main(shlex.split(command))
        said, complained = capsys.readouterr()
        assert said == ""
        assert complained.endswith("\n")
        assert complained.startswith("save-rl: ")
        assert complained.count("\n") == 1, complained
        return stop.value.code, complained.removeprefix("save-rl: ").rstrip("\n")

    return run


def contents(folder):
    """Every file below a folder with its bytes, and every folder."""
    return {path: path.is_file() and path.read_bytes() for path in folder.rglob("*")}


BEFORE_ANY_WORK = {
    "train --network cnn": (
        "--network: there is no network 'cnn'; known: auto, conv, dict, graph, graph-plain, "
        "graph-sum, mlp, package.module:factory, table. Did you mean 'conv'?"
    ),
    "train --network conv": (
        "--network: 'conv' needs observations [height, width, channels] of at least 3 x 3 pixels "
        "with these --network.filters, not [50]; 'mlp' takes any array."
    ),
    "train --network dict": (
        "--network: 'dict' needs observations that are flat dictionaries of arrays; 'mlp' takes "
        "any array."
    ),
    "train --network nowhere:net": (
        "--network: 'nowhere' can't be imported (No module named 'nowhere')."
    ),
    "train --network json:net": "--network: module 'json' has no 'net'.",
    "train --network.hidden 64 0": "--network.hidden: 0 is not possible; it must be at least 1.",
    "train --network.filters 32": (
        "--network.filters: 32 has no effect on the network 'mlp'; leave it out."
    ),
    "train --network json:loads --network.hidden 32 32": (
        "--network.hidden: 32 32 has no effect on the network 'json:loads'; leave it out."
    ),
    "train --optimizer sgd": (
        "--optimizer: 'sgd' is not possible; it must be 'adam' or package.module:factory."
    ),
    "train --optimizer nowhere:sgd": (
        "--optimizer: 'nowhere' can't be imported (No module named 'nowhere')."
    ),
    "train --network table": (
        "--network: 'table' needs an environment with num_states and integer observations."
    ),
    "train --seed": "--seed: () is not possible; it must be at least one number.",
    "train --budget ten": (
        "Error parsing --budget: invalid literal for int() with base 10: 'ten'; see save-rl train "
        "--help."
    ),
    "train --buget 3": (
        "Unrecognized options: --buget, 3; did you mean '--budget'; see save-rl train --help."
    ),
    "train --env-options terminal=high": (
        "--terminal: 'high' is not possible; it must be a percentage from 0 to 100."
    ),
    "train --env-options seed=3": (
        "--env-options: seed is not possible here; --seed draws the environment."
    ),
    "evaluate tightrope --agent uct --budgets 1 --seed -1": (
        "--seed: -1 is not possible; it must be 0 or more."
    ),
    "reproduce tightrope-network --reward medium": (
        "--reward: 'medium' is not possible; it must be 'sparse' or 'dense'."
    ),
    f"evaluate {BROKEN}:EndsInNumbers --agent uct --budgets 1": (
        f"ENV: '{BROKEN}:EndsInNumbers'.step returns a terminated of type int32, not a truth value."
    ),
    "train --episodes 3000000000": (
        "--episodes: 3000000000 is not possible; it must be at most 2147483647."
    ),
}
POLE = "train gym/CartPole-v1"
CLUSTERS = {
    "train --cluster.actors 3": (
        "--cluster.actors: 3 is not possible; it must be left out without --cluster."
    ),
    "train --cluster.synchronous": (
        "--cluster.synchronous: True is not possible; it must be left out without --cluster."
    ),
    "train tests.training.environments:never_nan --cluster auto": (
        "--cluster: 'tests.training.environments:never_nan' is written in JAX and trains on one "
        "device; leave --cluster out."
    ),
    "train --cluster auto --cluster.inference learner --agent r2d2 atari/MsPacman": (
        "--cluster.inference: 'learner' is not possible; it must be 'actors' for 'r2d2', whose "
        "lanes remember."
    ),
    f"{POLE} --cluster auto --cluster.inference learner --reward-scale 0": (
        "--cluster.inference: 'learner' is not possible; it must be 'actors' with --reward-scale "
        "0, as only actors know what was measured."
    ),
    f"{POLE} --cluster here": (
        "--cluster: 'here' is not possible; it must be 'auto', or HOST:PORT as ray start prints it."
    ),
    f"{POLE} --cluster ray://127.0.0.1:10001": (
        "--cluster: 'ray://127.0.0.1:10001' is not possible; it must be 'auto', or HOST:PORT as "
        "ray start prints it."
    ),
    f"{POLE} --cluster 127.0.0.1:1": (
        "--cluster: nobody answers at '127.0.0.1:1'; start a cluster there with ray start --head, "
        "or use --cluster auto."
    ),
    f"{POLE} --cluster auto --seed 0 1": (
        "--seed: (0, 1) is not possible; it must be one number with --cluster."
    ),
    f"{POLE} --cluster auto --cluster.actors 65": (
        "--cluster.actors: 65 is not possible; it must be between 1 and --lanes (64), as every "
        "actor has one at least."
    ),
    f"{POLE} --cluster auto --cluster.refresh 0": (
        "--cluster.refresh: 0 is not possible; it must be 1 or more."
    ),
    f"{POLE} --cluster auto --step-timeout 3": (
        "--step-timeout: 3.0 is not possible; it must be 0 with --cluster."
    ),
    f"{POLE} --cluster auto --resume --out nowhere": (
        "--resume: 'nowhere' holds no run (config.json is missing)."
    ),
}
SENTENCES = (
    NAMES
    | NUMBERS
    | AGENTS_AND_ENVIRONMENTS
    | RECURRENT_AGENTS
    | ATARI
    | FOLDERS_AND_DEVICES
    | BEFORE_ANY_WORK
    | CLUSTERS
)


@pytest.mark.parametrize("command", SENTENCES)
def test_impossible_input_is_answered_in_a_sentence(answer, tmp_path, command):
    assert answer(command) == (2, SENTENCES[command])
    assert contents(tmp_path) == {}


def test_a_game_that_does_not_exist_is_answered_with_the_nearest(answer, tmp_path):
    code, said = answer("reproduce atari --games frostbyte")
    assert code == 2
    assert said.startswith("--games: there is no Atari game 'frostbyte'; known: adventure, ")
    assert said.endswith(", zaxxon. Did you mean 'frostbite'?")
    assert "qbert" not in said
    assert contents(tmp_path) == {}


def test_a_game_that_can_not_be_loaded_is_named(answer, tmp_path, monkeypatch):
    missing = tmp_path.parent / f"{tmp_path.name}-roms"
    monkeypatch.setenv("ALE_ROMS_DIR", str(missing))
    why = f"(ROM directory {missing} doesn't exist)"
    assert answer("reproduce atari --games MsPacman") == (
        2,
        f"--games: the ROM of 'ms_pacman' can't be loaded {why}.",
    )
    assert answer(RECURRENT) == (2, f"ENV: the ROM of 'ms_pacman' can't be loaded {why}.")
    assert contents(tmp_path) == {}


def test_a_replay_that_memory_can_not_hold_is_refused(answer, tmp_path, monkeypatch):
    """A sequence is 124 frames of 84 x 84 bytes, 121 steps of 21 bytes, a memory of 4 kB and 4
    bytes: 881,585, of which a 14th is expected to be left when it is compressed."""
    monkeypatch.setattr("save_rl.learning.sequence_replay.machine_memory", lambda: 4 * 2**30)
    monkeypatch.setattr("save_rl.envs.pool.Pool._start", lambda *_: pytest.fail("too late"))
    assert answer(f"{RECURRENT} --workers 2") == (
        2,
        "--r2d2.replay.capacity: 100000 sequences need about 5.9 GiB, and this machine has 4.0; "
        "give a smaller one, or smaller --r2d2.replay.capacity-bytes.",
    )
    assert contents(tmp_path) == {}


@pytest.mark.parametrize(
    ("command", "sentence"),
    {
        # Tightrope shows 50 numbers and has 100 actions: 2 x 200 + 400 bytes are a transition,
        # 24 x 100 + 64 a node.
        "train --replay 100000000": "--replay: 100000000 needs about 75 GiB here",
        "train --budget 100000": "--budget: 100000 needs about 15 GiB here",
        "train --budget 10000 --seed 0 1 2 3 4 5 6 7": "--budget: 10000 needs about 12 GiB here",
        # The cart shows 4 numbers and has 2 actions: 2 x 16 + 8 bytes, and 4 x 2 + 64 a node.
        "train gym/CartPole-v1 --replay 2000000000": "--replay: 2000000000 needs about 75 GiB here",
        "train gym/CartPole-v1 --budget 1000000": "--budget: 1000000 needs about 4 GiB here",
    }.items(),
)
def test_what_memory_can_not_hold_is_refused(answer, tmp_path, monkeypatch, command, sentence):
    monkeypatch.setattr("save_rl.learning.sequence_replay.machine_memory", lambda: 2 * 2**30)
    code, said = answer(f"{command} --workers 0")
    rest = ", and this machine has 2.0; give a smaller one, or smaller --lanes."
    assert (code, said) == (2, sentence + rest)
    assert contents(tmp_path) == {}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The smallest run there is; without search in training there is less to compile."""
    folder = tmp_path_factory.mktemp("errors") / "run"
    settings = (
        "--agent q-learning --episodes 1 --budget 1 --lanes 4 --replay 16 --min-replay 16 --chunk 1"
        " --discount 0.99"
    )
    main(shlex.split(f"train {BROKEN}:walk {settings} --out {folder}"))
    assert (folder / "config.json").exists()
    return SimpleNamespace(folder=folder, command=f"train {BROKEN}:walk {settings} --out {folder}")


OTHER_SETTINGS = {
    "--resume --budget 2": "--budget 1, not 2",
    "--resume --agent save": "--agent q-learning, not save",
    "--resume --discount 1": "--discount 0.99, not 1.0",
    "--resume --seed 0 1": "--seed (0,), not (0, 1)",
}


@pytest.mark.parametrize(("changed", "difference"), OTHER_SETTINGS.items())
def test_a_run_is_not_resumed_with_other_settings(answer, finished, changed, difference):
    before = contents(finished.folder)
    assert answer(f"{finished.command} {changed}") == (
        2,
        f"--resume: '{finished.folder}' was started with {difference}; repeat its settings or "
        "choose another --out.",
    )
    assert contents(finished.folder) == before


def test_a_run_is_not_written_over(answer, finished):
    before = contents(finished.folder)
    assert answer(finished.command) == (
        2,
        f"--out: '{finished.folder}' already holds a run; choose another folder or add --resume "
        "to continue it.",
    )
    assert answer(f"reproduce tightrope-tabular --out {finished.folder}") == (
        2,
        f"--out: '{finished.folder}' is not empty; choose another folder, or add --resume if it "
        "holds this experiment.",
    )
    assert answer(f"demo --out {finished.folder}") == (
        2,
        f"--out: '{finished.folder}' holds something other than a demo; choose another folder.",
    )
    assert contents(finished.folder) == before


@pytest.mark.parametrize(
    ("options", "sentence"),
    {
        "--budgets 5 -1": "--budgets: -1 is not possible; it must be at least 0.",
        "--episodes 0": "--episodes: 0 is not possible; it must be at least 1.",
    }.items(),
)
def test_a_run_is_not_tested_with_impossible_numbers(answer, finished, options, sentence):
    before = contents(finished.folder)
    assert answer(f"evaluate {finished.folder} {options}") == (2, sentence)
    assert contents(finished.folder) == before


def test_a_run_is_trusted_on_request_or_if_this_process_made_its_environment(
    finished, tmp_path, capsys, monkeypatch
):
    table = tmp_path / "x.csv"
    tests = f"--budgets 0 --episodes 2 --out {table}"
    monkeypatch.setattr(envs, "_made", set())
    main(shlex.split(f"evaluate {finished.folder} --trust {tests}"))
    assert "Test reward" in capsys.readouterr().out
    assert table.exists()
    monkeypatch.setattr(envs, "_made", set())
    with pytest.raises(InputError, match="trust=True"):
        save_rl.evaluate(finished.folder, (0,), 2, out=table)
    save_rl.make(f"{BROKEN}:walk")
    (tested,) = save_rl.evaluate(finished.folder, (0,), 2, out=table)
    assert tested.returns.shape == (1, 2)


def test_a_folder_with_something_else_in_it_is_not_used(answer, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("precious")
    before = contents(tmp_path)
    assert answer("train --out mine") == (
        2,
        "--out: 'mine' is not empty; choose another folder.",
    )
    for experiment in ("tightrope-tabular", "tightrope-network"):
        assert answer(f"reproduce {experiment} --out mine") == (
            2,
            "--out: 'mine' is not empty; choose another folder, or add --resume if it holds this "
            "experiment.",
        )
    assert answer("evaluate mine") == (2, "DIR: 'mine' holds no run (config.json is missing).")
    assert contents(tmp_path) == before


@pytest.mark.parametrize(
    ("widths", "gigabytes"),
    {
        # Nearly all numbers are between the two layers; 4 bytes each, five copies.
        "100000 10000": "19",
        "2000000000 2000000000": "74,505,8",
    }.items(),
)
def test_a_network_that_memory_can_not_hold_is_refused(answer, monkeypatch, widths, gigabytes):
    monkeypatch.setattr("save_rl.learning.sequence_replay.machine_memory", lambda: 2 * 2**30)
    code, said = answer(f"train --network.hidden {widths}")
    assert code == 2
    assert said.startswith(f"--network.hidden: {widths} needs about {gigabytes}")
    assert said.endswith(" GiB here, and this machine has 2.0; give smaller ones.")


@pytest.mark.parametrize("text", ["", "not JSON", "[]", '{"settings": {}}', '{"settings": 3}'])
def test_a_config_that_makes_no_sense_is_named(answer, tmp_path, text):
    (tmp_path / "config.json").write_text(text)
    path = tmp_path / "config.json"
    assert answer(f"evaluate {tmp_path}") == (2, f"DIR: '{path}' can't be read.")
    assert answer(f"train --resume --out {tmp_path}") == (2, f"--resume: '{path}' can't be read.")
    assert contents(tmp_path) == {path: text.encode()}


def test_a_run_without_a_checkpoint_is_not_tested(answer, finished, tmp_path):
    config = (finished.folder / "config.json").read_bytes()
    (tmp_path / "config.json").write_bytes(config)
    assert answer(f"evaluate {tmp_path}") == (2, f"DIR: '{tmp_path}' has no checkpoint yet.")
    assert contents(tmp_path) == {tmp_path / "config.json": config}


@pytest.mark.parametrize(
    "command", ["train", "reproduce tightrope-tabular", "reproduce tightrope-network"]
)
def test_a_place_that_takes_no_folders_is_a_matter_of_the_disk(answer, tmp_path, command):
    assert answer(f"{command} --out /proc/nowhere") == (
        1,
        "can't read or write '/proc/nowhere': No such file or directory.",
    )
    assert contents(tmp_path) == {}


@pytest.mark.parametrize(
    ("command", "file", "left"),
    [
        ("train", "config.json", {".lock": b""}),
        ("reproduce tightrope-tabular", "experiment.json", {}),
        ("reproduce tightrope-network", "experiment.json", {}),
    ],
)
def test_a_full_disk_leaves_no_half_written_file(
    answer, tmp_path, monkeypatch, command, file, left
):
    def full(_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    assert answer(f"{command} --out new") == (
        1,
        f"can't read or write 'new/{file}': No space left on device.",
    )
    new = tmp_path / "new"
    assert contents(tmp_path) == {new: False, **{new / name: data for name, data in left.items()}}


def test_a_cluster_without_ray_names_the_extra(answer, tmp_path, monkeypatch):
    for name in [name for name in sys.modules if name.startswith("save_rl.training.cluster")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "ray", None)
    assert answer(f"{POLE} --cluster auto") == (
        2,
        "--cluster needs Ray; install it with: pip install 'save-rl[cluster]'.",
    )
    assert contents(tmp_path) == {}

"""Settings of a run on an environment of your own, chosen for its length and what a look shows.

The paper's numbers are for a million episodes on 64 actors. A first run has some ten thousand
steps: with the paper's numbers ε hardly falls, and the network hardly moves. The rules below were
chosen on FrozenLake, CliffWalking, Taxi and Sokoban (docs/settings.md has the measurements). They
fill in what was not given; the paper's environments and `reproduce` keep the paper's numbers.
"""

import math
from collections.abc import Callable, Collection
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from save_rl.agents import get_agent
from save_rl.envs import ATARI, ENVIRONMENTS
from save_rl.envs.check.look import Look, look, look_apart
from save_rl.errors import InputError
from save_rl.learning.reward_scale import NOTHING_YET
from save_rl.training.options import named_options
from save_rl.training.settings import TrainSettings

AUTOMATIC = (
    "lanes", "discount", "reward_scale", "learning_rate", "batch", "replay", "replay_ratio",
    "target_period", "n_step", "epsilon_end", "epsilon_steps",
)  # fmt: skip
"""The settings that are chosen, in the order in which a run prints them."""

_LAYERS = "network_settings"  # with `--network.hidden`; networks of other sizes may not exist
_TYPICAL = Look(num_actions=2, features=16, vector=True, length=50.0, ended=1.0, returns=1.0)


def applies(settings: TrainSettings) -> bool:
    """Test whether settings are chosen for this environment and agent."""
    papers = settings.env in ENVIRONMENTS or settings.env.startswith(ATARI)
    return not papers and not get_agent(settings.agent).recurrent


def real_steps(settings: TrainSettings, seen: Look) -> float:
    """Return the expected real steps of a run."""
    by_episodes = settings.episodes * max(seen.length, 1.0)
    return min(settings.steps or math.inf, by_episodes)


def choose(settings: TrainSettings, given: Collection[str], seen: Look) -> TrainSettings:
    """Return settings with a value for every one of `AUTOMATIC` that is not `given`.

    given: names of fields of `TrainSettings`.
    """
    steps = real_steps(settings, seen)
    both = {"epsilon_steps", "epsilon_episodes"} <= set(given)
    if both and settings.epsilon_steps:
        raise InputError(
            f"--epsilon-steps: {settings.epsilon_steps:g} is not possible together with "
            "--epsilon-episodes; give one of them."
        )
    rules: dict[str, Any] = {
        "discount": _discount(steps, seen),
        "reward_scale": _reward_scale(settings, seen),
        "learning_rate": _learning_rate(steps),
        "replay": _replay(steps),
        "target_period": _target_period(steps),
        # Searches explore too, but the values behind them need states that they don't lead to.
        "epsilon_end": 0.05,
    }
    if "epsilon_episodes" not in given:
        # The rest is for values to settle under the policy that will be used.
        rules["epsilon_steps"] = float(max(1, round(0.3 * steps)))
    rules |= _batches(settings, given, steps)
    layers: Any = getattr(settings, _LAYERS, None)
    if layers is not None and settings.network == "auto" and seen.vector:
        rules[_LAYERS] = replace(layers, hidden=_hidden(seen))
    new = {name: value for name, value in rules.items() if name not in given}
    chosen = replace(settings, **new)
    least = max(chosen.batch, chosen.min_replay, chosen.lanes)
    if "replay" not in given:
        chosen = replace(chosen, replay=max(chosen.replay, least))
    return chosen if "n_step" in given else replace(chosen, n_step=_n_step(chosen, seen))


def _discount(steps: float, seen: Look) -> float:
    """Return γ: a horizon 1 / (1 - γ) that the run can learn.

    Values need as many rounds of updates as the horizon has steps, and grow with it. A horizon of
    a few random episodes is enough, where these are short.
    """
    horizon = 20.0 if steps < 4e4 else 50.0 if steps < 1e6 else 100.0
    if seen.ended == 1:
        horizon = min(horizon, max(10.0, 3 * seen.length))
    return round(1 - 1 / horizon, 3)


def _reward_scale(settings: TrainSettings, seen: Look) -> float:
    """Return the size of returns, as a power of 2: division by it is exact.

    A network that begins near 0 takes thousands of updates to reach a value of -100, and `c` and
    the amortization loss compare values with numbers of order 1. Where random play finds no
    rewards, the run measures it.
    """
    if get_agent(settings.agent).act == "softmax":
        return 1.0
    if seen.returns == 0:
        return NOTHING_YET
    return 2.0 ** min(max(round(math.log2(seen.returns)), -60), 60)


def _learning_rate(steps: float) -> float:
    """Return Adam's learning rate: small steps don't get far in a short run."""
    return 1e-3 if steps < 2e5 else 5e-4 if steps < 2e6 else 2e-4


def _replay(steps: float) -> int:
    """Return the transitions to keep: half of a short run.

    The Q_MCTS of an old network is out of date; but a policy that has settled sees only its own
    path, and what a short replay forgets, the network forgets.
    """
    return int(min(max(steps / 2, 4_000), 50_000))


def _target_period(steps: float) -> int:
    """Return the updates between copies to the target network.

    Values travel one step per copy, and a short run has few; an older target is for runs in which
    values have the time to run away.
    """
    return 25 if steps < 1e6 else 100


def _n_step(settings: TrainSettings, seen: Look) -> int | None:
    """Return the steps of reward in a target; None for the agent's.

    Where rewards are rare, several steps carry them to where they were earned. Elsewhere the
    targets would contain what random actions cost (docs/settings.md#how-fast-values-travel).
    """
    agent, rows = get_agent(settings.agent), settings.replay // max(settings.lanes, 1)
    bootstraps = agent.value_loss in ("td", "td-value") and agent.n_step == 1
    return min(5, max(rows, 1)) if bootstraps and seen.returns == 0 else None


def _hidden(seen: Look) -> tuple[int, ...]:
    """Return the widths of the hidden layers; () for the paper's, 64 and 64.

    A wide observation, such as the number of a state, one-hot, needs room; a small one is learned
    as well, and faster, by a small network.
    """
    return () if seen.features <= 100 else (256, 256)


def _batches(settings: TrainSettings, given: Collection[str], steps: float) -> dict[str, int]:
    """Return lanes, batch and replay ratio; together they must make whole updates.

    Fewer lanes make fresher experience, more of them larger and thus cheaper batches of the
    network. A transition of a short run is worth more updates.
    """
    ratio = settings.replay_ratio if "replay_ratio" in given else 8 if steps < 1e6 else 4
    lanes, batch = 16 if steps < 1e6 else 64, 32
    if "replay" in given:
        batch = min(batch, settings.replay)
    if "batch" in given:
        batch = settings.batch
        whole = batch // math.gcd(batch, ratio)  # lanes come in multiples of this
        lanes = -(-lanes // whole) * whole
    if "lanes" in given:
        lanes = settings.lanes
    if "batch" not in given:
        total = max(lanes, 1) * ratio
        batch = next((n for n in range(min(batch, total), 0, -1) if total % n == 0), 1)
    return {"lanes": lanes, "batch": batch, "replay_ratio": ratio}


def describe(settings: TrainSettings, given: Collection[str], seen: Look) -> list[str]:
    """Return two lines about the choice: for what, and the options."""
    length = f"{seen.length:.0f} steps" if seen.ended else f"over {seen.length:.0f} steps"
    steps = real_steps(settings, seen)
    options = dict(named_options(settings))
    in_force = _in_force(settings)
    names = [name for name in AUTOMATIC if name not in given and name in in_force]
    shown = [f"{o} {options[o]:g}" for o in ("--" + name.replace("_", "-") for name in names)]
    if _LAYERS not in given and options.get("--network.hidden"):
        shown.append(f"--network.hidden {' '.join(map(str, options['--network.hidden']))}")
    return [
        f"Chosen for {steps:,.0f} steps of {settings.env} ({seen.num_actions} actions, "
        f"{seen.features} numbers seen, random episodes of {length}):",
        f"  {' '.join(shown) or 'nothing; you gave it all'}",
    ]


def _in_force(settings: TrainSettings) -> Collection[str]:
    """Return the names of the settings that have an effect."""
    agent = get_agent(settings.agent)
    unused = set() if settings.epsilon_steps else {"epsilon_steps"}
    if not agent.explores:
        unused |= {"epsilon_steps", "epsilon_end"}
    if agent.value_loss not in ("td", "td-value"):
        unused |= {"target_period"}
    if settings.n_step is None:
        unused |= {"n_step"}
    return {one.name for one in fields(settings)} - unused


def first_look(
    settings: TrainSettings, given: Collection[str], *, check: bool, apart: bool,
    warn: Callable[[str], None],
) -> tuple[TrainSettings, list[str]]:  # fmt: skip
    """Look at the environment, check it and choose settings for it; return them, and two lines.

    apart: look in another process. warn: prints notes of the check. Raises InputError if the check
    finds something wrong.
    """
    choose(settings, given, _TYPICAL).check()  # before any work
    see = look_apart if apart else look
    seen = see(settings.env, settings.all_env_options, settings.seeds[0], check=check)
    wrong = [finding for finding in seen.findings if finding.verdict == "wrong"]
    if wrong and check:
        subject, _, text = wrong[0]
        more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
        raise InputError(
            f"ENV: a check of '{settings.env}' found something wrong{more}: {subject}: "
            f"{text.rstrip('.')}. See save-rl check {settings.env}; --no-check trains anyway."
        )
    for subject, verdict, text in seen.findings if check else ():
        if verdict == "note" and subject in ("observations", "endings", "masks", "step"):
            warn(f"{subject}: {text}")
    chosen = choose(settings, given, seen)
    chosen.check()
    return chosen, describe(chosen, given, seen)


def as_before(settings: TrainSettings, given: Collection[str], out: Path) -> TrainSettings:
    """Return settings to resume a run with: what was chosen then, and what is given now."""
    from save_rl.training.run.run_directory import read_settings

    old = read_settings(out, "--resume")
    names = [*AUTOMATIC, *([_LAYERS] if hasattr(old, _LAYERS) else [])]
    kept = {name: getattr(old, name) for name in names if name not in given}
    if "epsilon_episodes" in given and "epsilon_steps" not in given:
        kept["epsilon_steps"] = 0.0
    return replace(settings, **kept)

"""Advice at the end of a run: what would have made it better."""

from collections.abc import Sequence
from typing import Any

from save_rl.agents import get_agent
from save_rl.training.automatic import applies
from save_rl.training.run.progress import warn
from save_rl.training.run.recent import RECENT
from save_rl.training.settings import TrainSettings

MUCH = 0.2
"""An ε above this at the end of a run is worth a warning."""
_SHARE, _MOST_SECONDS = 0.05, 10.0  # of a run's time for the comparison with UCT
_ENOUGH = 5  # episodes of UCT


def recent_mean(lines: Sequence[dict[str, float]]) -> float | None:
    """Return the mean return of the last episodes of a seed, at least `RECENT` if there are so
    many; None without any.

    lines: of `metrics.csv`, of one seed.
    """
    total = count = 0.0
    ends = [line["episodes"] for line in lines]
    for line, before in zip(reversed(lines), reversed([0.0, *ends][: len(lines)]), strict=True):
        played = line["episodes"] - before
        if "return_mean" in line and count < RECENT:
            total, count = total + played * line["return_mean"], count + played
    return total / count if count else None


def advise(settings: TrainSettings, metrics: Sequence[dict[str, float]]) -> None:
    """Warn if ε was still high, or if plain search is better than the agent."""
    agent = get_agent(settings.agent)
    if not metrics or agent.recurrent:
        return
    epsilon = metrics[-1]["epsilon"]
    if agent.explores and epsilon > max(MUCH, settings.epsilon_end):
        over = "--epsilon-steps" if settings.epsilon_steps else "--epsilon-episodes"
        warn(f"ε was still {epsilon:.2f} at the end; give more --steps or a smaller {over}.")
    if applies(settings) and agent.search is not None and settings.budget > 0:
        seconds = min(_MOST_SECONDS, _SHARE * metrics[-1]["time_s"])
        _compare(settings, metrics, seconds)


def _compare(settings: TrainSettings, metrics: Sequence[dict[str, float]], seconds: float) -> None:
    """Warn if UCT without learning gets more than the last episodes of the run."""
    import numpy as np

    from save_rl.envs import make, runs_on_host
    from save_rl.players import uct_returns

    own = [recent_mean([line for line in metrics if line["seed"] == s]) for s in settings.seeds]
    known = [mean for mean in own if mean is not None]
    sim: Any = make(settings.env, settings.seeds[0], **settings.all_env_options)
    if not known or not runs_on_host(sim, settings.env):
        return
    c = settings.c * (settings.reward_scale or 1.0)
    returns = uct_returns(sim, settings.budget, c, settings.discount, seconds)
    if len(returns) < _ENOUGH:
        return
    mean, error = np.mean(returns), np.std(returns) / np.sqrt(len(returns))
    if mean - 2 * error > np.mean(known):
        warn(
            f"UCT without learning got {mean:.2f} ± {error:.2f} in {len(returns)} episodes with "
            f"{settings.budget} simulations, and this run {np.mean(known):.2f} in its last "
            "episodes, random actions included; save-rl evaluate compares them. More --steps or a "
            "wider network may help."
        )

"""Search a single state, with a prior and without.

Shows how to call `save_rl.search.save` and `save_rl.search.uct`, and what a search returns. The
environment is Tightrope with the dense reward: of 100 actions, 95 end the episode; each of the
other 5 pays 0.1 and leads to the next state.

SAVE's search starts from a Q-function. Instead of a trained network we use a noisy guess: safe
actions look slightly better than fatal ones on average. UCT has no prior, so it tries actions at
random.
"""

import argparse

import jax
import numpy as np

import save_rl
from save_rl.types import SearchResult


def hunch(env, seed: int):
    """Return a Q-function with a noisy idea of which actions are safe."""
    noise = np.random.default_rng(seed).standard_normal(env.fatal.shape)
    table = 0.1 * (1 - np.asarray(env.fatal)) + 0.1 * noise  # [11 states, 100 actions]
    # The 11 observations are linearly independent, so a linear function can represent any table.
    weights = np.linalg.pinv(env.observations) @ table
    return lambda observations: observations @ weights


def show(title: str, env, result: SearchResult, prior=None) -> None:
    """Print the actions tried in the first lane, best first."""
    q_values, visits, explored = (np.asarray(x)[0] for x in result[:3])
    tried = np.flatnonzero(explored)
    print(f"\n{title}\naction  prior  Q_MCTS  visits  ends the episode")
    for action in tried[np.argsort(-q_values[tried])]:
        before = "    –" if prior is None else f"{prior[action]:5.2f}"
        fatal = "yes" if env.fatal[0, action] else "no"
        print(f"{action:6}  {before}  {q_values[action]:6.3f}  {visits[action]:6}  {fatal}")
    best = tried[np.argmax(q_values[tried])]
    print(f"best explored action: {best}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--budget", type=int, default=10, help="simulations")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    if options.budget < 1:
        parser.error("--budget must be at least 1")

    env = save_rl.make("tightrope", seed=options.seed, reward="dense", terminal=95)
    q_function = hunch(env, options.seed)
    # Searches are batched over lanes: states have a leading axis. Here it has length 1.
    states = jax.vmap(env.reset)(jax.random.split(jax.random.key(options.seed), 1))
    prior = np.asarray(q_function(jax.vmap(env.observe)(states)))[0]

    settings = {"budget": options.budget, "c": 0.1, "discount": 1.0, "seed": options.seed}
    with_prior = save_rl.search.save(env, states, q_function, **settings)
    show(f"SAVE, {options.budget} simulations", env, with_prior, prior)
    without = save_rl.search.uct(env, states, **settings)
    show(f"UCT, {options.budget} simulations", env, without)


if __name__ == "__main__":
    main()

"""Suites of JAX environments by name, each in its own file: gymnax, Jumanji, Pgx.

An adapter is a JAX environment (docs/jax-environments.md) around one of a suite:

* the suite's automatic resets are off;
* a state holds everything, the key of its luck included, where there is chance at all;
* `step(state, action, key)` draws the outcome from the key, `step(state, action)` from the state;
* the suite's time limit is `truncated`, and a step past it goes on as if there were none.

`common.py` has what adapters share, `pictures.py` draws observations, `classic.py` draws classic
control, `listing.py` describes all environments of a suite.
"""

"""Gumbel AlphaZero from end to end, and where it can't be used."""

import csv

import pytest

import save_rl
from save_rl.errors import InputError


@pytest.mark.slow  # test_device.py and search/test_gumbel.py have its parts
def test_it_learns_tightrope(tmp_path):
    """Ten of a hundred actions are safe, and each episode pays once. Without search, the policy
    alone has learned them; a random one gets 1/10 + 1/100 + ... of ten goals, about 0.01."""
    save_rl.train(
        "tightrope", agent="gumbel", out=tmp_path, episodes=4000, test_episodes=32, test_budget=0,
        env_options={"reward": "sparse", "terminal": 90}, device="cpu", progress=False,
    )  # fmt: skip
    with (tmp_path / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert float(rows[-1]["return_mean"]) > 0.9
    assert float(rows[-1]["test_return"]) > 0.9


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"env": "gym/CartPole-v1"},
            "--agent: 'gumbel' searches with mctx, which needs an environment in JAX, and "
            "'gym/CartPole-v1' is a Python simulator.",
        ),
        (
            {"budget": 0},
            "--budget: 0 is not possible; it must be at least 1 for 'gumbel', which acts on its "
            "search.",
        ),
        ({"c": 0.5}, "--c: 0.5 has no effect on 'gumbel'; leave it out."),
    ],
)
def test_what_it_cannot_do_is_said_in_a_sentence(changes, message, tmp_path):
    with pytest.raises(InputError) as caught:
        save_rl.train(agent="gumbel", out=tmp_path / "run", progress=False, **changes)
    assert str(caught.value) == message
    assert not (tmp_path / "run").exists()

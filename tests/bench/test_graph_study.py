"""The graph study compares variants with the network that agents have."""

import importlib.util
from pathlib import Path

import jax
import numpy as np
import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "graph_study.py"


@pytest.fixture(scope="module")
def graph_study():
    spec = importlib.util.spec_from_file_location("graph_study", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_its_plain_variant_is_the_graph_network(graph_study):
    """Q-values of padded graphs, whole and for the taken action alone."""
    graph_study.check_plain()


def test_scores_are_those_of_the_textbook(graph_study):
    reward = np.array([0.0, 0.0, 2.0, 2.0])
    r2, correlation, error = graph_study.score(np.array([0.5, 0.5, 1.5, 1.5]), reward)
    assert (r2, correlation, error) == pytest.approx((0.75, 1.0, 0.25))
    assert graph_study.score(np.ones(4), reward)[0] == pytest.approx(0.0)
    assert np.isnan(graph_study.score(reward, np.zeros(4))[0])


def test_a_normalised_vector_has_mean_zero_and_variance_one(graph_study):
    x = np.array([[1.0, 3.0], [5.0, 5.0]], np.float32)
    normalised = jax.jit(lambda x: graph_study.normalised({}, graph_study.Variant("fixed"), "", x))
    np.testing.assert_allclose(normalised(x), [[-1, 1], [0, 0]], atol=1e-4)

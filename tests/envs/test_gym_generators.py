"""Generators have the states that NumPy gives them."""

import copy

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from save_rl.envs.gym_generators import copied, seeded


@given(seed=st.integers(0, 2**64 - 1) | st.integers(0, 2**31 - 1))
def test_a_seed_gives_numpys_generator(seed):
    assert seeded(seed).state == np.random.PCG64(seed).state


@pytest.mark.parametrize("seed", [0, 2**32 - 1, 2**32, 2**64 - 1, 2**64, 2**200 + 1])
def test_seeds_of_any_size_are_numpys(seed):
    assert seeded(seed).state == np.random.PCG64(seed).state


def test_a_negative_seed_is_refused():
    with pytest.raises(ValueError, match="non-negative"):
        seeded(-1)


@pytest.mark.parametrize("spawns", [False, True])
@pytest.mark.parametrize("kind", [np.random.PCG64, np.random.MT19937])
def test_a_copy_goes_on_where_the_generator_is_and_leaves_it_alone(kind, spawns):
    generator = np.random.Generator(kind(3))
    generator.random(5)
    generator.integers(9, dtype=np.uint32)  # keeps half a word for the next
    again = copy.deepcopy(generator)
    first = copied(copied(generator, spawns), spawns)
    expected = [again.integers(9, dtype=np.uint32), *again.random(4)]
    assert [first.integers(9, dtype=np.uint32), *first.random(4)] == expected
    assert [generator.integers(9, dtype=np.uint32), *generator.random(4)] == expected


def test_a_copy_of_a_generator_that_spawns_spawns_the_same():
    generator = np.random.default_rng(3)
    generator.spawn(1)
    copy = copied(generator, spawns=True)
    assert copy.spawn(1)[0].random() == generator.spawn(1)[0].random()

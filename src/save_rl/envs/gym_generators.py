"""Random generators of Gymnasium environments: every step of a search makes one.

They have the states that NumPy gives them, in a third of the time: most of NumPy's goes to the
seed sequence, which for most environments nobody looks at again.
"""

from copy import deepcopy
from typing import Any, cast

import numpy as np
from numpy.random.bit_generator import ISeedSequence

from save_rl.compiled import njit

_LOW = np.uint64(0xFFFFFFFF)
_HALF, _WORD = np.uint64(16), np.uint64(32)
# Constants of O'Neill's seed sequence, as in numpy/random/bit_generator.pyx.
_INIT_A, _INIT_B = np.uint64(0x43B0D7E5), np.uint64(0x8B51F9DD)
_MULT_A, _MULT_B = np.uint64(0x931E8875), np.uint64(0x58F38DED)
_MIX_L, _MIX_R = np.uint64(0xCA01F9DD), np.uint64(0x4973F715)


class _Words(ISeedSequence):
    """A seed sequence that has its words, or whose generator is about to get another state."""

    def __init__(self, words: np.ndarray):
        self._words = words

    def generate_state(self, n_words: int, dtype: Any = np.uint32) -> np.ndarray:
        return self._words


_NO_SEED = _Words(np.zeros(4, np.uint64))


@njit
def _hashed(value, constant, factor):
    """Return the hash of a 32-bit word, and the next constant."""
    value, constant = value ^ constant, (constant * factor) & _LOW
    value = (value * constant) & _LOW
    return value ^ (value >> _HALF), constant


@njit(refcounts=True)
def _fill(seed, words):
    """Write the four words of `SeedSequence(seed).generate_state(4, uint64)`."""
    pool, constant = np.zeros(4, np.uint64), _INIT_A
    pool[0], pool[1] = seed & _LOW, seed >> _WORD
    for i in range(4):
        pool[i], constant = _hashed(pool[i], constant, _MULT_A)
    for source in range(4):
        for i in range(4):
            if i != source:
                value, constant = _hashed(pool[source], constant, _MULT_A)
                mixed = (_MIX_L * pool[i] - _MIX_R * value) & _LOW
                pool[i] = mixed ^ (mixed >> _HALF)
    constant = _INIT_B
    for i in range(4):
        low, constant = _hashed(pool[2 * i % 4], constant, _MULT_B)
        high, constant = _hashed(pool[(2 * i + 1) % 4], constant, _MULT_B)
        words[i] = low | (high << _WORD)


def seeded(seed: int) -> np.random.PCG64:
    """Return `PCG64(seed)`, whose `seed_seq` does not know the seed and can't spawn others."""
    if not 0 <= seed < 2**64:
        return np.random.PCG64(seed)
    words = np.empty(4, np.uint64)
    _fill(np.uint64(seed), words)
    sequence: Any = _Words(words)  # NumPy's types know only its own
    return np.random.PCG64(sequence)


def copied(generator: Any, spawns: bool) -> Any:
    """Return a deep copy of a generator.

    spawns: false if nobody makes generators from this one; `seed_seq` of the copy is then empty.
    """
    if type(generator) is np.random.Generator:
        old = generator.bit_generator
        sequence: Any = old.seed_seq
        if type(old) is np.random.PCG64 and not spawns:
            return _like(old, _NO_SEED)
        if type(old) is np.random.PCG64 and type(sequence) is np.random.SeedSequence:
            return _like(old, np.random.SeedSequence(**cast(dict[str, Any], sequence.state)))
    return deepcopy(generator)


def _like(bits: np.random.PCG64, sequence: Any) -> np.random.Generator:
    new = np.random.PCG64(sequence)
    new.state = bits.state
    return np.random.Generator(new)

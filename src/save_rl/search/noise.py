"""Dirichlet noise in the priors of roots, for trees on the host."""

import numpy as np

from save_rl.compiled import njit

_STICKS = 64


@njit
def nth(valid, n):
    """Return the index of the n-th true entry, from 0; -1 if there are fewer."""
    for a in range(valid.shape[0]):
        if valid[a]:
            if n == 0:
                return a
            n -= 1
    return -1


@njit(refcounts=True)
def mix_noise(policy, share, out):
    """Mix Dirichlet(1/n) noise over the n unmasked actions into a policy, -inf where masked.

    Uses the stick-breaking of `search.device.root_noise`.
    """
    valid = policy > -np.inf
    n = valid.sum()
    everything = n == policy.shape[0]
    for a in range(policy.shape[0]):
        out[a] = (1 - share) * policy[a]
    left = share
    for _ in range(_STICKS):
        cut = left * np.random.random()  # noqa: NPY002  # Numba's generator
        pick = np.random.randint(n)  # noqa: NPY002
        out[pick if everything else nth(valid, pick)] += cut
        left -= cut


@njit(refcounts=True)
def mix_noise_all(seeds, share, policies):
    """Apply `mix_noise` to every row `[B, A]`, in place."""
    for lane in range(policies.shape[0]):
        np.random.seed(seeds[lane])  # noqa: NPY002
        mix_noise(policies[lane], share, policies[lane])

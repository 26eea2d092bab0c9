"""Threads that run JAX programs."""

import jax

from save_rl.training.devices import device_threads


def _default_device():
    return jax.config.jax_default_device  # pyright: ignore[reportAttributeAccessIssue]


def test_threads_compute_on_the_device_of_the_thread_that_made_them():
    (device, *_) = jax.devices("cpu")
    with jax.default_device(device):
        threads = device_threads(2, "test")
    assert _default_device() is None
    with threads:
        assert list(threads.map(lambda _: _default_device(), range(4))) == [device] * 4

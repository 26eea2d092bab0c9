"""Shared set-up: a compilation cache on disk, CPU only, shapes checked, no luck, no time limits."""

import gc
import os
import signal
from importlib.metadata import version
from pathlib import Path

import hypothesis
import jaxtyping
import pytest

CACHE = Path(__file__).parents[1] / ".cache" / "jax"
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(CACHE))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")  # many tests make equals
os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Tests compile far more than they compute. XLA's older emitters compile twice as fast; a later
# XLA may not know them any more, and an unknown flag would end the process.
XLA_FLAGS = "--xla_backend_optimization_level=0"
if version("jaxlib").startswith("0.10."):
    XLA_FLAGS += " --xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
os.environ.setdefault("XLA_FLAGS", XLA_FLAGS)

# A shell lets its background jobs ignore Ctrl-C, nohup lets them ignore SIGHUP, and tests of these
# signals would inherit that.
for number, usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, usual)

# Shapes in annotations are checked at run time, in tests only.
jaxtyping.install_import_hook(
    ["save_rl.learning.losses", "save_rl.networks.mlp"], "beartype.beartype"
)

# The same inputs in every run; `make fuzz` draws fresh ones. Speed is measured in `save-rl bench`,
# never in a test.
hypothesis.settings.register_profile("default", deadline=None, max_examples=20, derandomize=True)
hypothesis.settings.register_profile("fuzz", deadline=None, max_examples=1000, print_blob=True)
hypothesis.settings.load_profile("default")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Mark property tests, and begin with what takes longest in one worker."""
    for item in items:
        if getattr(getattr(item, "obj", None), "is_hypothesis_test", False):
            item.add_marker(pytest.mark.property)
    items.sort(key=lambda item: "test_resume" not in item.nodeid)


def pytest_collection_finish():
    """Keep what is imported by now out of garbage collections: there is a lot of it."""
    # Hypothesis registers its generator at its first test; an old one would look for it in vain
    # among frozen objects.
    hypothesis.given(hypothesis.strategies.none())(lambda _: None)()
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def patient():
    """A slow machine is no simulator that hangs; tests of hanging ones set their own patience."""
    from save_rl.envs.watchdog import WATCHDOG

    WATCHDOG.patience = 1200.0

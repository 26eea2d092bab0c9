"""Shared set-up: a compilation cache on disk, CPU only, shapes checked, no time limits."""

import os
from importlib.metadata import version
from pathlib import Path

import hypothesis
import jaxtyping

CACHE = Path(__file__).parents[1] / ".cache" / "jax"
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(CACHE))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.3")
os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Tests compile far more than they compute. XLA's older emitters compile twice as fast; a later
# XLA may not know them any more, and an unknown flag would end the process.
XLA_FLAGS = "--xla_backend_optimization_level=0"
if version("jaxlib").startswith("0.10."):
    XLA_FLAGS += " --xla_cpu_use_fusion_emitters=false"
os.environ.setdefault("XLA_FLAGS", XLA_FLAGS)

# Where shapes stand in annotations, they are checked at run time, in tests alone.
jaxtyping.install_import_hook(
    ["save_rl.learning.losses", "save_rl.networks.mlp"], "beartype.beartype"
)

# Speed is measured in `save-rl bench`, never in a test.
hypothesis.settings.register_profile(
    "default", deadline=None, max_examples=100, derandomize=bool(os.environ.get("CI"))
)
hypothesis.settings.load_profile("default")


def pytest_collection_modifyitems(items):
    """Begin with what takes longest in one worker, so that the other never waits for it."""
    items.sort(key=lambda item: "test_resume" not in item.nodeid)

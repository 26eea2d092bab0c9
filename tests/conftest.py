"""Shared set-up: a compilation cache on disk, CPU only, and hypothesis without time limits."""

import os
from pathlib import Path

import hypothesis

CACHE = Path(__file__).parents[1] / ".cache" / "jax"
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(CACHE))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.3")
os.environ.setdefault("JAX_PLATFORMS", "cpu")

# Speed is measured in `save-rl bench`, never in a test.
hypothesis.settings.register_profile(
    "default", deadline=None, max_examples=100, derandomize=bool(os.environ.get("CI"))
)
hypothesis.settings.load_profile("default")

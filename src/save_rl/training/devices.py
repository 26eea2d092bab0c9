"""Devices for compiled programs, compiler options and the compilation cache."""

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from save_rl.errors import InputError, RunError, require

# Compile whole loops of a GPU program to CUDA graphs; see benchmarks/README.md for the gain.
_GPU_OPTIONS = {
    "xla_gpu_enable_command_buffer": "FUSION,CUBLAS,CUBLASLT,CUSTOM_CALL,WHILE,DYNAMIC_SLICE_FUSION"
}
# For graph networks, which are many small kernels: independent ones run at the same time, and XLA
# does not try out matrix products, which would take most of the compilation, and what it picks, and
# so the last bits, could differ from run to run. Without trying, products have to be cuBLAS's:
# XLA's own kernels are 16 x 8 tiles then, and updates take twice as long (benchmarks/README.md).
_SMALL_KERNELS = {
    "xla_gpu_command_buffer_scheduling_mode": "CONCURRENT",
    "xla_gpu_autotune_level": "0",
    "xla_gpu_enable_triton_gemm": "False",
}


def select_device(name: str) -> Any:
    """Return the JAX device for 'auto', 'cpu' or 'gpu', and turn on the compilation cache."""
    require(name in ("auto", "cpu", "gpu"), "--device", repr(name), "'auto', 'cpu' or 'gpu'")
    import jax

    config: Any = jax.config  # its attributes are unknown to type checkers
    if config.jax_compilation_cache_dir is None:
        root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        jax.config.update("jax_compilation_cache_dir", str(Path(root) / "save_rl" / "jax"))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)
    if name == "auto":
        return jax.devices()[0]
    try:
        return jax.devices(name)[0]
    except RuntimeError:
        raise InputError(
            f"--device: JAX sees no {name} here; use --device cpu, or install jax[cuda13]."
        ) from None


def compiler_options(device: Any) -> dict[str, str]:
    """Return the compiler options for this device."""
    return _GPU_OPTIONS if device.platform == "gpu" else {}


def host_options(options: dict[str, str]) -> dict[str, str]:
    """Return GPU options for the programs of host simulators; none stay none."""
    return {**options, **_SMALL_KERNELS} if options else {}


def device_threads(count: int, name: str) -> ThreadPoolExecutor:
    """Return threads whose JAX programs run on the default device of this one."""
    import jax

    device = jax.config.jax_default_device  # pyright: ignore[reportAttributeAccessIssue]
    return ThreadPoolExecutor(count, name, lambda: jax.default_device(device).__enter__())


@contextmanager
def enough_memory() -> Iterator[None]:
    """Turn JAX's error of a device without memory into one sentence."""
    try:
        yield
    except RuntimeError as error:  # jax.errors.JaxRuntimeError is one
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        raise RunError(
            "the device is out of memory; use fewer --lanes, fewer seeds (--seed), a smaller "
            "--replay or a smaller network, or run nothing else on it."
        ) from error

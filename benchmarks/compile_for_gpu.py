"""Compile the programs of a run for an H200, on a machine without a GPU, and count their kernels.

Of a run on a simulator: the evaluation of a batch of graphs and a piece of updates. Of a run on a
JAX environment: the chunk of lock-steps, loop by loop.

Needs Linux, and beside save_rl the compiler of JAX's CUDA plugin, but no driver and no device:

    pip install jax-cuda13-plugin jax-cuda13-pjrt nvidia-cuda-nvcc nvidia-nvjitlink nvidia-nvvm
    export JAX_SKIP_CUDA_CONSTRAINTS_CHECK=1 JAX_PLATFORMS=cpu,cuda
    python benchmarks/compile_for_gpu.py covering-hard --seeds 8 --lanes 128 --size 12
    python benchmarks/compile_for_gpu.py gymnax/Breakout-MinAtar --seeds 5 --lanes 64

Times depend on the cores of this machine; kernels do not. --option sets one of XLA's options. What
XLA would find out on the device, such as the fastest matrix product, it can't here.
"""

import argparse
import re
import time

import jax
import numpy as np
from jax.experimental import topologies
from jax.sharding import SingleDeviceSharding

from save_rl.agents import get_agent
from save_rl.bench.train import settings_of
from save_rl.envs import make, make_all
from save_rl.envs.layout import Layout
from save_rl.networks import graph
from save_rl.training.device.trainer import DeviceTrainer
from save_rl.training.devices import _GPU_OPTIONS, host_options
from save_rl.training.host.actor import slots_of
from save_rl.training.host.evaluator import Network
from save_rl.training.host.learner import HostLearner, make_learning
from save_rl.training.settings import TrainSettings

# What XLA asks a device for. The figures are the H200's.
TARGET = """
gpu_device_info {
  threads_per_block_limit: 1024  threads_per_warp: 32  threads_per_core_limit: 2048
  shared_memory_per_block: 49152  shared_memory_per_core: 233472
  shared_memory_per_block_optin: 232448
  core_count: 132  fpus_per_core: 128
  block_dim_limit_x: 2147483647  block_dim_limit_y: 65535  block_dim_limit_z: 65535
  memory_bandwidth: 4800000000000  l2_cache_size: 62914560  clock_rate_ghz: 1.98
  device_memory_size: 150000000000
  cuda_compute_capability { major: 9 minor: 0 }
  registers_per_core_limit: 65536  registers_per_block_limit: 65536
}
platform_name: "CUDA"
dnn_version_info { major: 9 minor: 12 patch: 0 }
runtime_version { major: 13 }
device_description_str: "NVIDIA H200"
"""
# Instructions that are kernels, or calls of a library that runs some.
KERNEL = re.compile(r" = .*? (?:fusion|custom-call|copy|sort|scatter|reduce)\(")
LOOP = re.compile(r" while\(.*?body=%?([\w.\-]+)(?:.*?known_trip_count\":\{\"n\":\"(\d+)\")?")


class Compile:
    """Stands in for `training.host.ahead.Ahead`: compiles at once, and says what came out."""

    def __init__(self, device):
        self._sharding = SingleDeviceSharding(device)

    def add(self, name, program, *arguments):
        given = [self._placed(x) for x in arguments]
        began = time.perf_counter()
        lowered = program.lower(*given)
        traced = time.perf_counter()
        text = lowered.compile().as_text()
        done = time.perf_counter()
        parts = re.split(r"\n(?=%|ENTRY )", text)
        body, main = (
            max((len(KERNEL.findall(part)) for part in parts if part.startswith(start)), default=0)
            for start in ("%region", "ENTRY")
        )
        print(
            f"{name[0]}: traced in {traced - began:.1f} s, compiled in {done - traced:.1f} s; "
            f"{main} kernels and copies, and {body} in a step of its loop"
        )

    def _placed(self, argument):
        return placed(argument, self._sharding)


def placed(argument, sharding):
    """Return the shapes of an argument, on a device."""

    def place(x):
        if not hasattr(x, "shape"):
            return x
        return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)

    return jax.tree.map(place, argument)


def count_by_loop(text):
    """Print the kernels of every loop of a compiled program, without those of loops inside it."""
    parts = {re.match(r"(?:ENTRY )?%?([\w.\-]+)", part).group(1): part  # pyright: ignore[reportOptionalMemberAccess]
             for part in re.split(r"\n(?=%|ENTRY )", text)}  # fmt: skip

    def show(name, label, depth):
        print(f"{'  ' * depth}{label}: {len(KERNEL.findall(parts[name]))} kernels and copies")
        for body, trips in LOOP.findall(parts[name]):
            show(body, f"loop, {trips or 'any number of'} times", depth + 1)

    entry = re.search(r"\nENTRY %?([\w.\-]+)", text)
    assert entry is not None
    show(entry.group(1), "program", 0)


def compile_chunk(given, device, options):
    """Compile the lock-steps of a run on a JAX environment."""
    settings = settings_of(given.env, "save", given.seeds, given.lanes)
    trainer = DeviceTrainer(settings, make_all(given.env, settings.seeds), options)
    arguments = (trainer.env_arrays, trainer.template(), np.int32(0), np.ones(given.seeds, bool))
    began = time.perf_counter()
    chunk = trainer.chunk.lower(*placed(arguments, SingleDeviceSharding(device))).compile()  # pyright: ignore[reportFunctionMemberAccess]
    print(f"traced and compiled in {time.perf_counter() - began:.1f} s")
    count_by_loop(chunk.as_text())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("env")
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--lanes", type=int, default=128)
    parser.add_argument("--batch", type=int, default=43, help="lanes of a group")
    parser.add_argument("--size", type=int, default=12, help="nodes to which graphs are padded")
    parser.add_argument("--mixed-precision", action="store_true")
    parser.add_argument("--no-kernels", action="store_true", help="without networks.graph_fused")
    parser.add_argument("--option", nargs="*", default=[], metavar="NAME=VALUE")
    given = parser.parse_args()
    topology = topologies.get_topology_desc(
        "h200", platform="cuda", target_config=TARGET, topology="1x1x1"
    )
    if "/" in given.env:
        options = {**_GPU_OPTIONS, "xla_gpu_autotune_level": "0"}
        options |= dict(one.split("=", 1) for one in given.option)
        compile_chunk(given, topology.devices[0], options)
        return
    from jax._src.pallas.triton import gpu_info  # since JAX 0.11

    gpu_info.get_gpu_info = lambda: gpu_info.GpuInfo(
        gpu_version=None, arch_name="9.0", compute_capability=90
    )
    graph.runs_on_gpu = lambda: not given.no_kernels
    options = host_options(_GPU_OPTIONS) | dict(one.split("=", 1) for one in given.option)
    settings = TrainSettings(
        env=given.env, agent="save", seeds=tuple(range(given.seeds)), lanes=given.lanes,
        mixed_precision=given.mixed_precision,
    )  # fmt: skip
    simulator, agent, ahead = (
        make(given.env, 0), get_agent("save"), Compile(topology.devices[0])
    )  # fmt: skip
    layout, learning = Layout.of(simulator), make_learning(settings, simulator)
    slots = slots_of(agent, settings.budget, layout)
    network = Network(agent, learning, layout, slots, given.batch, options, ahead)  # pyright: ignore[reportArgumentType]
    learner = HostLearner(learning, settings, layout, True, options, ahead)  # pyright: ignore[reportArgumentType]
    shapes, replay = learner.shapes()
    network.compile_ahead(jax.tree.leaves(shapes.params), given.batch, given.size)
    learner.programs.compile_ahead(shapes, replay, given.size)
    learner.close()


if __name__ == "__main__":
    main()

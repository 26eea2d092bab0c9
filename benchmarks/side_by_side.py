"""Many small trainings at once, one core each; what the comparisons in this folder share."""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from queue import SimpleQueue
from threading import Thread

ONE_CORE = {
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false", "OMP_NUM_THREADS": "1",
    "JAX_PLATFORMS": "cpu",
}  # fmt: skip


def run_all(jobs, processes, folder):
    """Train and test every job; returns what `one` found, in order.

    A job is a dictionary: `name`, `train` (arguments of save_rl.train), `budgets` and `episodes`
    of the test afterwards. Long ones should come first. Finished jobs in `folder` are not repeated.
    """
    folder.mkdir(parents=True, exist_ok=True)
    cores, started = SimpleQueue(), time.time()
    for core in range(processes):
        cores.put(core)

    def start(job):
        target = folder / f"{job['name']}.json"
        if not target.exists():
            core = cores.get()
            command = [sys.executable, __file__, json.dumps(job), str(target), str(core)]
            try:
                subprocess.run(command, check=True, env={**os.environ, **ONE_CORE})
            finally:
                cores.put(core)
            print(f"{time.time() - started:6.0f} s  {job['name']}", flush=True)

    threads = [Thread(target=start, args=(job,)) for job in jobs]
    for thread in threads:
        thread.start()
        time.sleep(0.05)  # they take their cores in order
    for thread in threads:
        thread.join()
    missing = [job["name"] for job in jobs if not (folder / f"{job['name']}.json").exists()]
    if missing:
        raise SystemExit(f"these runs failed, see above: {', '.join(missing)}")
    return [json.loads((folder / f"{job['name']}.json").read_text()) for job in jobs]


def one(job, target, core):
    """Train and test one job in this process."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {core % os.cpu_count()})
    import save_rl

    started = time.time()
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch) / "run"
        run = save_rl.train(
            out=out, workers=0, device="cpu", progress=False, checkpoint_seconds=1e9, **job["train"]
        )
        tests = save_rl.evaluate(
            out, job["budgets"], job["episodes"], workers=0, device="cpu", baseline="none"
        )  # fmt: skip
    found = {
        "metrics": run.metrics,
        "tests": {str(test.budget): test.returns[0].tolist() for test in tests},
        "seconds": round(time.time() - started, 1),
    }
    part = Path(f"{target}.part")
    part.write_text(json.dumps(found))
    part.rename(target)


if __name__ == "__main__":
    one(json.loads(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))

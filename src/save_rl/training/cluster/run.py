"""The driver of a training run on a cluster.

Connects to the cluster, starts the learner or joins it, shows the progress, and ends everything
when the run is over or interrupted.
"""

import logging
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, redirect_stdout
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import jax

from save_rl.agents import get_agent
from save_rl.envs import simulator_name
from save_rl.errors import InputError, Interrupted, RunError, require
from save_rl.training.cluster import actor_group, learner
from save_rl.training.cluster.display import rows
from save_rl.training.cluster.local_cluster import (
    abandoned,
    answers,
    end_cluster,
    keep,
    module_path,
    running_cluster,
    same_port,
    start_cluster,
)
from save_rl.training.cluster.settings import ClusterSettings
from save_rl.training.host.learner import make_learning
from save_rl.training.networks import has_own_parts
from save_rl.training.options import named_options
from save_rl.training.run.interrupt import StopOnSignal
from save_rl.training.run.progress import Progress, announce
from save_rl.training.run.result import TrainResult
from save_rl.training.run.run_directory import RunDirectory, settings_from_json, versions
from save_rl.training.run.trainers import environments
from save_rl.training.settings import TrainSettings

ray = actor_group.ray
_EVERY = 0.5  # seconds between two questions to the learner
_PATIENCE = 120.0  # seconds for a learner to be there
_ADDRESS = "'auto', or HOST:PORT as ray start prints it"


def train_on_cluster(
    settings: TrainSettings,
    out: Path,
    cluster: ClusterSettings,
    address: str,
    *,
    resume: bool = False,
    device: str = "auto",
    workers: int = -1,
    step_timeout: float = 0.0,
    checkpoint_seconds: float = 60.0,
    light_checkpoints: bool = False,
    progress: bool = True,
    chosen: Sequence[str] = (),
) -> TrainResult:
    """Train on the Ray cluster at `address`, with the run directory `out`.

    With `resume`, joins a run of the same folder that is still training there. A JAX environment
    with a Python twin, such as Tightrope, trains as that twin. chosen: lines about settings that
    were chosen, to print.
    """
    settings = replace(settings, env=simulator_name(settings.env))
    check_request(settings, cluster, address, device, workers, step_timeout)
    if resume:
        RunDirectory.check_old(out, settings)
    else:
        RunDirectory.check_new(out)
    with ExitStack() as stack:
        mine: list[int] = []  # heads of clusters that end with this run
        stack.callback(lambda: end_cluster(*mine) if mine else None)
        # Ray prints notes about dead processes; the learner says what matters.
        stack.enter_context(redirect_stdout(stack.enter_context(open(os.devnull, "w"))))
        with StopOnSignal() as early:
            _connect(address, mine)
        stack.callback(ray.shutdown)
        # Entered after Ray has set a handler of its own for SIGTERM.
        stop = stack.enter_context(StopOnSignal())
        stop.code = stop.code or early.code
        found = _find(out, mine)
        if found is None:
            variables = module_path()
            _check_nodes(settings, variables)
            where, graphics = _device(device, cluster)
            job = learner.make_job(
                settings, cluster, out, resume=resume, device=where, workers=workers,
                checkpoint_seconds=checkpoint_seconds, light_checkpoints=light_checkpoints,
                started=mine[0] if mine else 0,
            )  # fmt: skip
            found = _start(job, variables, graphics)
        elif not resume:
            raise InputError(
                f"--out: '{out}' is being trained on this cluster; add --resume to join."
            )

        def joined(job: learner.Job) -> None:
            _check_same(job, settings, cluster)
            for process in mine:  # from now on the learner ends the cluster if nobody else does
                keep(process)

        for line in chosen if progress else ():
            announce(line)
        with Progress(settings.agent, *_goal(settings), progress) as display:
            outcome = _follow(found, out, stop, display, joined, mine)
    if outcome.kind == "stopped":
        if not (out / "config.json").exists():
            raise Interrupted("stopped before anything was written.", outcome.code)
        raise Interrupted(f"stopped; '{out}' is saved, continue with --resume.", outcome.code)
    if outcome.kind == "refused":
        raise InputError(outcome.message)
    if outcome.kind == "failed":
        raise RunError(outcome.message)
    return TrainResult(out, None, None, RunDirectory(out).read_metrics())


def _goal(settings: TrainSettings) -> tuple[int, str]:
    return (settings.steps, "steps") if settings.steps else (settings.episodes, "episodes")


def check_request(
    settings: TrainSettings, cluster: ClusterSettings, address: str, device: str, workers: int,
    step_timeout: float,
) -> None:  # fmt: skip
    """Refuse impossible settings before anything is started."""
    settings.check()
    require(len(settings.seeds) == 1, "--seed", settings.seeds, "one number with --cluster")
    cluster.check(settings.lanes, get_agent(settings.agent), settings.reward_scale)
    require(device in ("auto", "cpu", "gpu"), "--device", repr(device), "'auto', 'cpu' or 'gpu'")
    require(workers >= -1, "--workers", workers, "-1 or 0 (no processes) or more")
    require(step_timeout == 0, "--step-timeout", step_timeout, "0 with --cluster")
    host, _, port = address.rpartition(":")
    plain = bool(host) and port.isdigit() and "/" not in address
    require(address == "auto" or plain, "--cluster", repr(address), _ADDRESS)
    jax.config.update("jax_platforms", "cpu")  # devices are for the learner
    envs, on_host = environments(settings)
    if not on_host:
        raise InputError(
            f"--cluster: '{settings.env}' is written in JAX and trains on one device; leave "
            "--cluster out."
        )
    if has_own_parts(settings):
        make_learning(settings, envs[0])  # refuses a network or an optimizer that does not fit


def _connect(address: str, mine: list[int]) -> None:
    """Connect to a cluster; the head of one that is started for this becomes `mine`."""
    if address == "auto":
        expected = running_cluster()
        if expected is not None:
            context = _init(address, expected)
            left = [] if _in_use() else abandoned(expected)
            if not left:
                _say_where(context)
                return
            ray.shutdown()
            end_cluster(*left)
            print(
                f"ended the cluster at {expected}: the run that started it is gone",
                file=sys.stderr, flush=True,
            )  # fmt: skip
        expected, process = start_cluster()
        mine.append(process)
    else:
        expected = address
        if not answers(address):
            raise InputError(
                f"--cluster: nobody answers at '{address}'; start a cluster there with ray start "
                "--head, or use --cluster auto."
            )
    _say_where(_init(address, expected))


def _init(address: str, expected: str) -> Any:
    """Join a cluster; refuse one that is not at the address that is expected."""
    try:
        with _silence():
            context: Any = ray.init(
                address=address, namespace=learner.NAMESPACE, log_to_driver=False,
                logging_level=logging.ERROR,
            )  # fmt: skip
    except (ConnectionError, RuntimeError, ValueError, actor_group.exceptions.RayError) as error:
        said = str(error.__cause__ or error).strip()
        reason = said.splitlines()[-1]
        if isinstance(error, actor_group.exceptions.AuthenticationError) or "AuthToken" in said:
            reason = "it wants another token, see Ray's RAY_AUTH_MODE and RAY_AUTH_TOKEN_PATH."
        raise RunError(f"--cluster: can't join the cluster at '{expected}'; {reason}") from error
    found = context.address_info["gcs_address"]
    if not same_port(found, expected):
        raise RunError(
            f"--cluster: there are several clusters on this machine, '{found}' and '{expected}'; "
            "say which one."
        )
    return context


def _say_where(context: Any) -> None:
    found, board = context.address_info["gcs_address"], context.dashboard_url
    where = f"http://{board}" if board else "not installed; pip install 'ray[default]' brings it"
    print(f"cluster at {found}; Ray's dashboard: {where}", file=sys.stderr, flush=True)


def _in_use() -> bool:
    """Test whether a learner, or any driver but this one, uses the cluster."""
    from ray._private.state import jobs
    from ray.util import list_named_actors

    found: Any = list_named_actors(all_namespaces=True)
    me = ray.get_runtime_context().get_job_id()
    drivers = [job for job in jobs() if not job["IsDead"] and job["JobID"] != me]
    return bool(drivers) or any(actor["namespace"] == learner.NAMESPACE for actor in found)


@contextmanager
def _silence() -> Iterator[None]:
    """Silence stderr, also for the parts of Ray that are not written in Python."""
    kept = os.dup(2)
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def _find(out: Path, mine: list[int]) -> Any:
    """Return the learner of a folder if it is training.

    The cluster of a learner whose run has ended meanwhile becomes `mine`.
    """
    try:
        found = ray.get_actor(learner.learner_name(out), learner.NAMESPACE)
    except ValueError:
        return None
    status = _ask(found, 0)
    if status is not None and status.outcome is not None:  # ended without a driver
        _end(found, out)
        mine += [status.job.started] if status.job.started else []
        return None
    return found


def _device(device: str, cluster: ClusterSettings) -> tuple[str, float]:
    """Return the learner's device, and the share of a GPU that it requests."""
    mine = ray.get_runtime_context().get_node_id()
    (node,) = (node for node in ray.nodes() if node["NodeID"] == mine)
    has = node["Resources"].get("GPU", 0) >= 1
    if device == "gpu" and not has:
        raise InputError(
            "--device: the cluster has no GPU on this machine; use --device cpu, or tell it with "
            "ray start --num-gpus."
        )
    if device == "cpu" or not has:
        return "cpu", 0
    return "gpu", 0.5 if cluster.inference == "learner" else 1  # the rest is for inference


def _on(node: str) -> Any:
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return NodeAffinitySchedulingStrategy(node_id=node, soft=False)


def _problem(settings: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """Return the versions on this node, and why the environment, the network or the optimizer can't
    be made there, or ''."""
    from save_rl.envs import make_all

    chosen = settings_from_json(settings)
    try:
        (simulator,) = make_all(chosen.env, chosen.seeds, **chosen.all_env_options)
        if has_own_parts(chosen):
            make_learning(chosen, simulator)
    except Exception as error:
        return versions(), (str(error).splitlines() or [type(error).__name__])[0]
    return versions(), ""


def _check_nodes(settings: TrainSettings, variables: dict[str, str]) -> None:
    """Refuse a node with a CPU that has other versions or can't make the environment."""
    look: Any = ray.remote(_problem)
    asked = {}
    for node in ray.nodes():
        if node["Alive"] and node["Resources"].get("CPU", 0) >= 1:
            options = {"num_cpus": 0, "scheduling_strategy": _on(node["NodeID"]), "max_retries": 0}
            environment = {"env_vars": {**variables, "JAX_PLATFORMS": "cpu"}}
            task = look.options(**options, runtime_env=environment)
            asked[node["NodeManagerAddress"], node["NodeID"][:8]] = task.remote(asdict(settings))
    if not asked:
        raise InputError("--cluster: no node of this cluster has a CPU for an actor.")
    for (address, name), answer in asked.items():
        try:
            theirs, wrong = ray.get(answer)
            problem = actor_group.other_version(theirs) or wrong
        except actor_group.exceptions.RayError as error:
            problem = str(error).strip().splitlines()[-1]
        if problem:
            raise InputError(f"--cluster: node {address} ({name}): {problem}")


def _start(job: learner.Job, variables: dict[str, str], graphics: float) -> Any:
    """Start a learner on this machine, where the folder of the run is."""
    make: Any = ray.remote(learner.LearnerProcess)
    name = learner.learner_name(Path(job.out))
    return make.options(
        name=name, namespace=learner.NAMESPACE, lifetime="detached", max_restarts=-1,
        num_cpus=0, num_gpus=graphics,
        runtime_env={"env_vars": variables | (actor_group.SHARED_GPU if graphics == 0.5 else {})},
        scheduling_strategy=_on(ray.get_runtime_context().get_node_id()),
    ).remote(job)  # fmt: skip


def _ask(found: Any, heard: int) -> learner.Status | None:
    """Return the status of a learner; None if it does not answer now."""
    try:
        return ray.get(found.status.remote(heard), timeout=10.0)
    except actor_group.exceptions.ActorUnschedulableError as error:
        raise RunError(
            "--cluster: this machine has left the cluster before the learner began; start again."
        ) from error
    except (actor_group.exceptions.RayActorError, actor_group.exceptions.GetTimeoutError):
        return None


def _end(found: Any, out: Path) -> None:
    """End a learner and its actors, and wait until its name is free."""
    ray.kill(found)
    began = time.monotonic()
    while _exists(out) and time.monotonic() - began < _PATIENCE:
        time.sleep(0.05)


def _exists(out: Path) -> bool:
    try:
        ray.get_actor(learner.learner_name(out), learner.NAMESPACE)
    except ValueError:
        return False
    return True


def _check_same(job: learner.Job, settings: TrainSettings, cluster: ClusterSettings) -> None:
    """Refuse to join a run with other settings than it has."""
    theirs = settings_from_json(job.settings), ClusterSettings(**job.cluster)
    for mine, other, prefix in zip((settings, cluster), theirs, ("--", "--cluster."), strict=True):
        pairs = zip(named_options(other, prefix), named_options(mine, prefix), strict=True)
        for (option, old), (_, new) in pairs:
            if old != new:
                raise InputError(
                    f"--resume: '{job.out}' is being trained with {option} {old}, not {new}; "
                    "repeat its settings to join."
                )


def _follow(
    found: Any, out: Path, stop: StopOnSignal, display: Progress,
    joined: Callable[[learner.Job], None], mine: list[int],
) -> learner.Outcome:  # fmt: skip
    """Show the progress of a run until it is over; return how it ended.

    joined: called with the run of each learner process when it first answers; may refuse it.
    mine: set to the head of the cluster that ends with the run, if there is one.
    """
    heard, process, answered = 0, 0, time.monotonic()
    started: list[int] = []
    try:
        while True:
            status = _ask(found, heard)
            if status is None:
                _check_alive(out, answered)
                if process == 0 and stop.code is not None:
                    return learner.Outcome("stopped", code=stop.code)
            elif status.process != process:  # a new process: it repeats nothing that was said
                joined(status.job)
                heard, process = 0, status.process
                started = [status.job.started] if status.job.started else []
                continue
            else:
                answered = time.monotonic()
                heard += len(status.said)
                for text in status.said:
                    display.say(f"warning: {text}")
                display.update(status.done, status.note, rows(status.figures))
                if status.outcome is not None:
                    _end(found, out)
                    mine[:] = started or mine
                    return status.outcome
                if stop.code is not None:
                    found.stop.remote(stop.code)
            time.sleep(_EVERY)
    except (KeyboardInterrupt, SystemExit):  # asked twice
        _end(found, out)
        mine[:] = started or mine
        raise


def _check_alive(out: Path, answered: float) -> None:
    """Give up on a learner that is gone for good or has not answered for too long."""
    if not _exists(out):
        raise RunError(f"--cluster: the learner of '{out}' is gone; continue with --resume.")
    if time.monotonic() - answered > _PATIENCE:
        raise RunError(
            f"--cluster: the learner of '{out}' has not answered for {_PATIENCE:.0f} s; the "
            f"cluster has {ray.available_resources()} left. --resume joins it again."
        )

"""A look of seconds at an environment before it is trained on: is it right, and what is it like?

`look` plays random episodes, and checks them unless told not to. `look_apart` does so in another
process, so that native code that crashes, or a call that never returns, takes nothing with it.
"""

import faulthandler
import json
import os
import select
import signal
import tempfile
import time
from typing import Any, NamedTuple

import numpy as np

from save_rl.envs import make, runs_on_host
from save_rl.envs.check import check_named
from save_rl.envs.check.interface import look_at_names
from save_rl.envs.check.messages import Finding, Report
from save_rl.envs.check.probe import Place, Probe, Wrong
from save_rl.envs.watchdog import EARLY, WATCHDOG, ask_where, place_in
from save_rl.envs.worker_process import IS_WORKER, refuse_in_a_worker
from save_rl.errors import InputError, RunError
from save_rl.processes import ONE_THREAD, die_with, end_group, ending, start_python

_CHECK = 2.0  # approximate seconds of the check
_EPISODES, _STEPS, _SECONDS = 8, 100, 30.0  # random episodes, most steps of one, and of all
_DISCOUNT = 0.95  # of the returns that are looked at
_LARGEST = float(np.finfo(np.float32).max)  # reward that training takes
_START = EARLY.format(2) + (
    "from save_rl.envs.check.look import main; main(*map(int, sys.argv[1:4]), sys.argv[4])"
)


class Look(NamedTuple):
    """Measurements of random play.

    features: numbers of an observation. vector: it is one array with one axis. length: mean steps
    of an episode; of one that did not end, the steps that were looked at. ended: share of the
    episodes that did. returns: size of the discounted returns that are not 0, from all their steps;
    0 without any. findings: of the check.
    """

    num_actions: int
    features: int
    vector: bool
    length: float
    ended: float
    returns: float
    findings: tuple[Finding, ...] = ()

    @property
    def report(self) -> Report:
        return Report(list(self.findings))


def look(env: str, options: dict[str, Any], seed: int = 0, *, check: bool = True) -> Look:
    """Look at an environment in this process; without `check`, only at random episodes.

    Where the check finds something wrong, its findings are all that there is.
    """
    WATCHDOG.name = f"the simulator '{env}'"
    with WATCHDOG:
        simulator = make(env, seed, **options)
        runs_on_host(simulator, env)  # refuses, as training does, what is not an environment
    findings: tuple[Finding, ...] = ()
    if check:
        report = check_named(env, options, seed=seed, seconds=_CHECK, apart=False)
        findings = tuple(report.findings)
        if not report.ok:
            return Look(0, 0, False, 0.0, 0.0, 0.0, findings)
    probe = Probe(simulator)
    try:
        look_at_names(probe, seed)
        return _measured(probe, seed)._replace(findings=findings)
    except Wrong as wrong:
        raise InputError(f"ENV: '{env}': {wrong.text}") from wrong


def _measured(probe: Probe, seed: int) -> Look:
    """Play random episodes; the same ones for the same seed, unless a simulator is very slow.

    What fails costs its episode, as in training; raises Wrong if no episode can begin.
    """
    over, rewards, features, vector = [], [], 0, False
    failed: Wrong | None = None
    probe.end = time.monotonic() + _SECONDS
    for number in probe.in_time(range(seed, seed + _EPISODES), 1):
        probe.rng = np.random.default_rng([number, 1])  # not the generator of the simulator
        try:
            state, seen = probe.reset(number)
        except Wrong as wrong:
            failed = wrong
            continue
        shown = {name: x for name, x in seen.items() if name.startswith("observation")}
        features = sum(x.size for x in shown.values())
        vector = [x.ndim for x in shown.values()] == [1] and "observation" in shown
        rewards.append([])
        for step in probe.in_time(range(_STEPS), 1):
            actions = probe.choose(seen)
            if not actions:  # a mask that allows nothing
                break
            try:
                state, seen = probe.step(state, actions[0], Place(number, step + 1))
            except Wrong:
                break
            reward = float(seen["reward"])
            if not abs(reward) <= _LARGEST:
                break
            rewards[-1].append(reward)
            if seen["terminated"] or seen["truncated"]:
                break
        over.append(bool(seen.get("terminated") or seen.get("truncated")))
    if failed is not None and not rewards:
        raise failed
    return Look(
        num_actions=int(probe.simulator.num_actions),
        features=features,
        vector=vector,
        length=float(np.mean([len(episode) for episode in rewards])),
        ended=float(np.mean(over)),
        returns=_size(rewards),
    )


def _size(rewards: list[list[float]]) -> float:
    """Return the 90th percentile of the discounted returns that are not 0, from every step."""
    found = []
    for episode in rewards:
        total = 0.0
        for reward in reversed(episode):
            total = reward + _DISCOUNT * total
            found.append(abs(total))
    found = [size for size in found if size > 0]
    return float(np.percentile(found, 90)) if found else 0.0


def look_apart(env: str, options: dict[str, Any], seed: int = 0, *, check: bool = True) -> Look:
    """`look` in another process; raises RunError if the simulator ends it."""
    refuse_in_a_worker()
    WATCHDOG.name = f"the simulator '{env}'"
    task = json.dumps([env, options, seed, check])
    with tempfile.TemporaryFile() as crash:
        answers, theirs = os.pipe()
        handed = (theirs, crash.fileno())
        numbers = [str(number) for number in (*handed, os.getpid())]
        try:
            process = start_python(
                _START, *numbers, task, stdout=2, pass_fds=handed,
                env={**os.environ, **ONE_THREAD, "JAX_PLATFORMS": "cpu", IS_WORKER: "1"},
            )  # fmt: skip
        finally:
            os.close(theirs)

        def trace() -> str:
            return ask_where(process, crash.fileno())

        said = b""
        poll = select.poll()
        poll.register(answers, select.POLLIN)
        try:
            while True:
                WATCHDOG.waiting(poll.poll, trace)
                part = os.read(answers, 2**16)
                if not part:
                    break
                said += part
            process.wait()
        finally:
            end_group(process)
            os.close(answers)
        if not said:
            where = place_in(os.pread(crash.fileno(), 2**20, 0).decode(errors="replace"))
            inside = f", in {where}" if where else ""
            raise RunError(
                f"ENV: the simulator '{env}' ended its process: {ending(process.returncode)}"
                f"{inside}; save-rl check {env} plays it alone."
            )
    kind, *found = json.loads(said)
    if kind == "refused":
        raise InputError(found[0])
    if kind == "failed":
        raise RunError(found[0])
    seen = Look(*found)
    return seen._replace(findings=tuple(Finding(*finding) for finding in seen.findings))


def main(answers: int, crash: int, parent: int, task: str) -> None:
    """Look, in a process of its own; write the result as JSON.

    answers, crash: file descriptors: a pipe, and a file for tracebacks.
    """
    die_with(parent)
    crash_file = os.fdopen(crash, "w")
    faulthandler.enable(crash_file)
    faulthandler.register(signal.SIGUSR1, crash_file)
    WATCHDOG.patience = float("inf")  # the parent watches
    env, options, seed, check = json.loads(task)
    try:
        found: list[Any] = ["seen", *look(env, options, seed, check=check)]
    except InputError as error:
        found = ["refused", str(error)]
    except RunError as error:  # of a file that starts processes when it is imported
        found = ["failed", str(error)]
    with os.fdopen(answers, "w") as file:
        json.dump(found, file)

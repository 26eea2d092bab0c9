"""Processes that end with their owner, clusters that a run left behind, and the token."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from save_rl.training.cluster import local_cluster
from tests.training.ray_cluster import ROOT, descendants, exists, wait_for

SLEEP = [
    sys.executable, "-c",
    "import os, time; print('sleeper', os.getpid(), flush=True); time.sleep(9999)",
]  # fmt: skip
OWNER = """
import sys
from save_rl.training.cluster import local_cluster
keeps, *command = sys.argv[1:]
guard = local_cluster.start_guarded(command, 1)
print("guard", guard, flush=True)
if keeps == "keep":
    local_cluster.keep(guard)
    print("kept", flush=True)
sys.stdin.read()
"""


def own(keeps):
    """Start a process that guards one that sleeps; return it, the guard and the sleeper."""
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, keeps, *SLEEP],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
    )  # fmt: skip
    said = [owner.stdout.readline() for _ in range(3 if keeps == "keep" else 2)]
    guard = int(next(line for line in said if line.startswith("guard")).split()[1])
    sleeper = int(next(line for line in said if line.startswith("sleeper")).split()[1])
    return owner, guard, sleeper


def threads(process):
    return len(list(Path(f"/proc/{process}/task").iterdir()))


def test_a_guarded_process_ends_with_its_owner():
    owner, guard, sleeper = own("no")
    assert exists(sleeper)
    owner.kill()
    owner.wait()
    wait_for(lambda: not exists(sleeper) and not exists(guard))
    owner.communicate()


def test_a_process_that_is_kept_outlives_its_owner_and_ends_with_its_guard():
    owner, guard, sleeper = own("keep")
    owner.kill()
    owner.wait()
    wait_for(lambda: threads(guard) == 1)  # it does not watch any more
    assert exists(sleeper)
    os.kill(guard, signal.SIGTERM)
    wait_for(lambda: not exists(sleeper) and not exists(guard))
    owner.communicate()


def test_a_command_that_ignores_the_signal_is_killed_with_its_group():
    stubborn = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); import subprocess; "
    below = "subprocess.run(['sleep', '9999'])"
    reading, writing = os.pipe()
    code = f"from save_rl.training.cluster.guard import guard; guard({reading}, {{}}, patience=0.1)"
    command = [sys.executable, "-c", stubborn + below]
    guard = subprocess.Popen(
        [sys.executable, "-c", code.format(command)], pass_fds=[reading],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
    )  # fmt: skip
    os.close(reading)
    wait_for(lambda: any(x.startswith("sleep") for x in descendants(guard.pid).values()), guard)
    left = descendants(guard.pid)
    os.close(writing)
    guard.wait()
    wait_for(lambda: not any(exists(pid) for pid in left))


@pytest.fixture
def head():
    """Start what looks like the head of a cluster of this port, for a driver."""
    started = []

    def begin(driver, port):
        command = [*SLEEP, "start", "--head", "--block", f"--port={port}"]
        command += [f"--labels=save-rl-driver={driver}", "--num-cpus=4"]
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE))
        started[-1].stdout.readline()
        return started[-1]

    yield begin
    for process in started:
        process.kill()
        process.communicate()


def test_a_cluster_is_abandoned_when_its_driver_is_gone(head):
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    left, used = head(gone.pid, 123401), head(os.getpid(), 123402)
    assert local_cluster.abandoned("10.0.0.1:123401") == [left.pid]
    assert local_cluster.abandoned("10.0.0.1:123402") == []
    assert local_cluster.abandoned("10.0.0.1:1234") == []
    pytest.importorskip("ray")
    local_cluster.end_cluster(left.pid, os.getpid())
    assert left.wait() == -signal.SIGTERM
    assert used.poll() is None


def mode(path):
    return path.stat().st_mode & 0o777


def test_only_its_user_can_read_the_token(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    token = tmp_path / ".ray" / "auth_token"
    before = os.umask(0)
    try:
        local_cluster.make_token()
    finally:
        os.umask(before)
    assert (mode(token.parent), mode(token)) == (0o700, 0o600)
    assert list(token.parent.iterdir()) == [token]
    made = token.read_text()
    assert len(made) == 32

    token.chmod(0o644)
    token.parent.chmod(0o755)
    local_cluster.make_token()
    assert (mode(token.parent), mode(token)) == (0o700, 0o600)
    assert token.read_text() == made

    token.write_text("")  # Ray would take this for none
    local_cluster.make_token()
    assert len(token.read_text()) == 32
    assert mode(token) == 0o600


@pytest.mark.parametrize("name", ["RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"])
def test_a_token_of_the_user_is_left_alone(tmp_path, monkeypatch, name):
    own = tmp_path / "own"
    own.write_text("f" * 32)
    own.chmod(0o640)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv(name, str(own))
    local_cluster.make_token()
    assert mode(own) == 0o640
    assert list(tmp_path.iterdir()) == [own]

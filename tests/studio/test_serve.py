"""The command: address, refusals, and an end by Ctrl-C."""

import signal
import socket
import subprocess
import sys
from urllib.request import ProxyHandler, build_opener

import pytest

from save_rl.cli import main
from save_rl.studio.serve import bind, make_server
from tests.studio.conftest import find_browser
from tests.studio.folders import lines, make_run


def refused(capsys, *arguments):
    with pytest.raises(SystemExit) as stop:
        main(["studio", *map(str, arguments)])
    assert stop.value.code == 2
    return capsys.readouterr().err.strip()


@pytest.mark.parametrize(
    ("required", "outcome"), [("1", pytest.fail.Exception), ("", pytest.skip.Exception)]
)
def test_tests_without_a_browser_say_how_to_get_one(tmp_path, monkeypatch, required, outcome):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("SAVE_RL_REQUIRE_BROWSER", required)
    with pytest.raises(outcome, match="apt-get install chromium"):
        find_browser()


def test_a_missing_folder_says_how_to_make_a_first_run(tmp_path, capsys):
    assert refused(capsys, tmp_path / "none") == (
        f"save-rl: FOLDER: '{tmp_path / 'none'}' does not exist; give the folder of your runs, or "
        "make a first run with: save-rl train tightrope --episodes 3000"
    )


def test_a_file_is_not_a_folder(tmp_path, capsys):
    (tmp_path / "file").touch()
    assert "is not a folder" in refused(capsys, tmp_path / "file")


def test_a_port_in_use_says_what_to_do(tmp_path, capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert refused(capsys, tmp_path, "--port", port) == (
            f"save-rl: --port: {port} is in use, maybe by another studio; choose another one, or 0 "
            "for any that is free."
        )


@pytest.mark.parametrize("port", [-1, 65536])
def test_impossible_ports(tmp_path, capsys, port):
    assert f"--port: {port} is not possible" in refused(capsys, tmp_path, "--port", port)


@pytest.mark.parametrize("host", ["no.such.host.invalid", "203.0.113.7"])
def test_a_host_that_is_not_this_machine(tmp_path, capsys, host):
    assert f"--host: '{host}'" in refused(capsys, tmp_path, "--host", host, "--port", 0)


def test_only_other_hosts_have_the_token_in_their_address(tmp_path):
    with bind("127.0.0.1", 0) as near, bind("0.0.0.0", 0) as far:
        port = near.getsockname()[1]
        assert make_server(tmp_path, near)[1] == f"http://127.0.0.1:{port}/"
        assert "/?token=" in make_server(tmp_path, far, "0.0.0.0")[1]


def test_it_listens_here_alone_answers_and_ends_with_ctrl_c(tmp_path):
    make_run(tmp_path / "run", lines(2))
    command = [sys.executable, "-m", "save_rl", "studio", str(tmp_path), "--port", "0"]
    with subprocess.Popen(
        [*command, "--no-browser"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout
        assert server.stderr
        said = server.stdout.readline()
        address = next(word for word in said.split() if word.startswith("http"))
        assert said.startswith(f"studio of '{tmp_path}': http://127.0.0.1:")
        ask = build_opener(ProxyHandler({})).open
        stream = ask(f"{address}api/stream")  # an open stream does not keep it from ending
        assert stream.readline() == b"event: all\n"
        server.send_signal(signal.SIGINT)
        assert server.wait(1200) == 0
        assert server.stderr.read() == ""
        stream.close()

"""What needs a package that is not installed names the extra that brings it."""

import json
import subprocess
import sys

EXTRAS = {
    "construction": "the Construction tasks need Box2D; install it with: pip install "
    "'save-rl[construction]'.",
    "atari": "the Atari games need ale-py; install it with: pip install 'save-rl[atari]'.",
    "cluster": "--cluster needs Ray; install it with: pip install 'save-rl[cluster]'.",
    "studio": "the studio needs Starlette and uvicorn; install them with: "
    "pip install 'save-rl[studio]'.",
}
NEEDED = {
    "train covering": "construction",
    "evaluate covering --agent scripted": "construction",
    "evaluate gym/CartPole-v1 --agent scripted": "construction",
    "watch covering --out x.gif": "construction",
    "check silhouette": "construction",
    "envs covering --scenes x.png": "construction",
    "reproduce construction --scale smoke": "construction",
    "reproduce construction-ablations --scale smoke": "construction",
    "reproduce marble-run --scale smoke": "construction",
    "bench physics": "construction",
    "bench train --env covering --seconds 1": "construction",
    "train atari/MsPacman --agent r2d2": "atari",
    "watch atari/MsPacman --out x.gif": "atari",
    "check atari/MsPacman": "atari",
    "reproduce atari --scale smoke": "atari",
    "bench atari": "atari",
    "bench train --env atari/MsPacman --seconds 1": "atari",
    "train gym/CartPole-v1 --cluster auto": "cluster",
    "bench train --env gym/CartPole-v1 --cluster": "cluster",
    "studio . --port 0 --no-browser": "studio",
}
# One process answers them all: modules that were refused would get in the way of other tests.
WITHOUT = """
import contextlib, io, json, shlex, sys
sys.modules.update(Box2D=None, ale_py=None, ray=None, starlette=None)
from save_rl.cli import main
answers = {}
for line in json.loads(sys.argv[1]):
    said, code = io.StringIO(), 0
    with contextlib.redirect_stderr(said):
        try:
            main(shlex.split(line))
        except SystemExit as stop:
            code = stop.code
        except BaseException as error:
            code = repr(error)
    answers[line] = [code, said.getvalue()]
print(json.dumps(answers))
"""


def test_missing_packages_are_named_with_their_extra(tmp_path):
    ran = subprocess.run(
        [sys.executable, "-c", WITHOUT, json.dumps(list(NEEDED))],
        cwd=tmp_path, capture_output=True, text=True, check=True,
    )  # fmt: skip
    answers = json.loads(ran.stdout.splitlines()[-1])
    expected = {line: [2, f"save-rl: {EXTRAS[extra]}\n"] for line, extra in NEEDED.items()}
    assert answers == expected
    assert list(tmp_path.iterdir()) == []

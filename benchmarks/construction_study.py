"""Settings of Construction agents, compared: variants train side by side for a given time.

Every variant is an ordinary run folder below --out with all seeds. Calling the script again
continues the runs; --test plays their newest and best parameters at the hardest level; the table
compares them at equal real steps, at equal episodes and at the end.

    python benchmarks/construction_study.py --out runs/study --seconds 500
    python benchmarks/construction_study.py --out runs/study --seconds 0 --test 100
"""

import argparse
import csv
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from save_rl.experiments.runs import thin
from save_rl.report.panels import curve_panels
from save_rl.report.results import write_results

COMMON = {"lanes": 64, "replay-ratio": 4}
# Name: agent and what differs from COMMON. The first word says which agent it is.
VARIANTS = {
    "save": ("save", {}),
    "save-ratio-16": ("save", {"replay-ratio": 16}),
    "save-ratio-64": ("save", {"replay-ratio": 64}),
    "save-lanes-16": ("save", {"lanes": 16}),
    "save-lanes-16-ratio-16": ("save", {"lanes": 16, "replay-ratio": 16}),
    "save-masked": ("save", {"masked": True}),
    "none": ("save-no-amortization", {}),
    "none-ratio-16": ("save-no-amortization", {"replay-ratio": 16}),
    "q": ("q-learning", {}),
    "q-ratio-16": ("q-learning", {"replay-ratio": 16}),
    "q-ratio-64": ("q-learning", {"replay-ratio": 64}),
    "q-lanes-16": ("q-learning", {"lanes": 16}),
    "q-sum": ("q-learning", {"network": "graph-sum"}),
    "q-plain": ("q-learning", {"network": "graph-plain"}),
}


def command(name: str, given: argparse.Namespace) -> list[str]:
    """Return the command that trains a variant, or continues to."""
    folder = given.out / name
    workers = 1 if name.startswith("q") else given.workers  # it hardly simulates
    places = ["--workers", str(workers), "--device", given.device, "--light-checkpoints"]
    places += ["--checkpoint-seconds", "120"]
    if (folder / "config.json").exists():
        return ["train", "--resume", str(folder), *places]
    agent, changed = VARIANTS[name]
    options = {**COMMON, **changed}
    masked = options.pop("masked", False)
    words = [f"--{key}={value}" for key, value in options.items()]
    return [
        "train", given.task, "--agent", agent, "--out", str(folder), *words, *places,
        "--env-options", f"masked={str(masked).lower()}", "--episodes", str(given.episodes),
        "--seed", *map(str, range(given.seeds)),
    ]  # fmt: skip


def together(commands: dict[str, list[str]], out: Path, seconds: float) -> None:
    """Run `save-rl` commands side by side; interrupt those still running after this time."""
    running, end = {}, time.monotonic() + seconds
    for name, words in commands.items():
        log = (out / f"{name}.log").open("a")
        running[name] = subprocess.Popen(
            [sys.executable, "-m", "save_rl", *words], stdout=log, stderr=subprocess.STDOUT
        )
    while time.monotonic() < end and any(job.poll() is None for job in running.values()):
        time.sleep(0.5)
    for job in running.values():
        if job.poll() is None:
            job.send_signal(signal.SIGINT)
    for name, job in running.items():
        if job.wait() not in (0, 130):
            print(f"{name}: exit code {job.returncode}, see {out / name}.log", flush=True)


def metrics(folder: Path) -> dict[int, list[dict[str, float]]]:
    """Return the lines of `metrics.csv` by seed."""
    path = folder / "metrics.csv"
    found: dict[int, list[dict[str, float]]] = {}
    if not path.exists():
        return found
    with path.open(newline="") as file:
        for line in csv.DictReader(file):
            numbers = {key: float(value) for key, value in line.items() if value}
            found.setdefault(int(numbers["seed"]), []).append(numbers)
    return found


def recent(lines: list[dict[str, float]], over: str, until: float) -> float:
    """Return the mean training return in the last tenth of `over` before `until`."""
    within = [x for x in lines if 0.9 * until <= x[over] <= until and "return_mean" in x]
    return float(np.mean([x["return_mean"] for x in within])) if within else float("nan")


def tests(folder: Path, table: str) -> dict[int, list[float]]:
    """Return mean test returns by budget, one per seed."""
    path, found = folder / table, {}
    if path.exists():
        with path.open(newline="") as file:
            for line in csv.DictReader(file):
                key = int(line["budget"]), int(line["seed"])
                found.setdefault(key, []).append(float(line["return"]))
    by_budget: dict[int, list[float]] = {}
    for (budget, _), returns in sorted(found.items()):
        by_budget.setdefault(budget, []).append(float(np.mean(returns)))
    return by_budget


def interval(values: list[float]) -> str:
    return f"{np.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def table(names: list[str], out: Path) -> str:
    """Return the comparison in Markdown: medians and ranges over seeds."""
    runs = {name: found for name in names if (found := metrics(out / name))}
    if not runs:
        return "no run has metrics yet\n"
    ends = {name: [x[-1] for x in seeds.values()] for name, seeds in runs.items()}
    steps = min(min(x["env_steps"] for x in end) for end in ends.values())
    lines = [
        f"Training returns: at {steps:,.0f} real steps per seed (all have them), and at the end.",
        "",
        "| variant | episodes, least | real steps, least | updates | steps/s, all seeds "
        "| return at equal steps | at the end | level |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, seeds in runs.items():
        last = ends[name]
        rate = sum(x["env_steps"] for x in last) / max(x["time_s"] for x in last)
        equal = [recent(x, "env_steps", steps) for x in seeds.values()]
        final = [recent(x, "env_steps", x[-1]["env_steps"]) for x in seeds.values()]
        cells = [
            name, f"{min(x['episodes'] for x in last):,.0f}",
            f"{min(x['env_steps'] for x in last):,.0f}",
            f"{min(x['updates'] for x in last):,.0f}", f"{rate:,.0f}", interval(equal),
            interval(final), f"{min(x.get('level', 0) for x in last):.0f}",
        ]  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    for title, file in (("best", "evaluation.csv"), ("last", "evaluation-last.csv")):
        found = {name: tests(out / name, file) for name in runs}
        budgets = sorted({budget for one in found.values() for budget in one})
        if budgets:
            lines += ["", f"Test returns at the hardest level, {title} parameters:", ""]
            lines.append(f"| variant | {' | '.join(f'budget {x}' for x in budgets)} |")
            lines.append("|---" * (len(budgets) + 1) + "|")
            for name, one in found.items():
                if one:
                    cells = [interval(one[x]) if x in one else "" for x in budgets]
                    lines.append(f"| {' | '.join([name, *cells])} |")
    return "\n".join(lines) + "\n"


def rows(names: list[str], out: Path, task: str) -> list[dict[str, object]]:
    """Return the learning curves in long form, at most 40 points of each seed."""
    found = []
    for name in names:
        for seed, lines in metrics(out / name).items():
            curve = thin([(int(x["env_steps"]), x) for x in lines if "return_mean" in x], 40)
            found += [
                {
                    "experiment": "construction-study", "agent": name, "seed": seed, "task": task,
                    "steps": steps, "episodes": int(x["episodes"]), "seconds": round(x["time_s"]),
                    "metric": "train_reward", "value": x["return_mean"],
                }
                for steps, x in curve
            ]  # fmt: skip
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--task", default="covering-hard")
    parser.add_argument("--only", nargs="*", default=list(VARIANTS), choices=VARIANTS)
    parser.add_argument("--seconds", type=float, default=500.0, help="of training; 0 for none")
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--episodes", type=int, default=300_000)
    parser.add_argument("--workers", type=int, default=2, help="of each run")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--test", type=int, default=0, help="episodes per seed and budget")
    parser.add_argument("--budgets", nargs="*", type=int, default=[0, 5, 10, 20])
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    if given.seconds > 0:
        together({name: command(name, given) for name in given.only}, given.out, given.seconds)
    if given.test > 0:
        words = {}
        for name in given.only:
            folder = given.out / name
            test = ["evaluate", str(folder), "--budgets", *map(str, given.budgets)]
            test += ["--episodes", str(given.test), "--workers", str(given.workers)]
            test += ["--device", given.device, "--baseline", "none"]
            words[name] = test
            words[f"{name}-last"] = [*test, "--last", "--out", str(folder / "evaluation-last.csv")]
        together(words, given.out, float("inf"))
    text = table(given.only, given.out)
    (given.out / "table.md").write_text(text)
    curves = rows(given.only, given.out, given.task)
    if curves:
        write_results(given.out / "results.csv", curves)
        for learns, title in ((False, "curves-save.png"), (True, "curves-q.png")):
            shown = [row for row in curves if str(row["agent"]).startswith("q") == learns]
            curve_panels(
                shown, given.out / title, metric="train_reward", y_label="Reward in training",
                over="steps", x_label="Real steps",
            )  # fmt: skip
    print(text)


if __name__ == "__main__":
    main()

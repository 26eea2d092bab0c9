"""Training and tests that take no time, for experiments that are made of runs."""

import csv
from types import SimpleNamespace

from save_rl.training.run.run_directory import METRICS, RunDirectory, read_settings


def write_tests(path, *returns):
    """An `evaluation.csv` as `evaluate` writes it; `returns` by budget, of seeds 0, 1, …"""
    several = len(returns) > 1
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["budget", "episode", "return", "steps", *["seed"] * several])
        for seed, own in enumerate(returns):
            for budget, values in own.items():
                writer.writerows(
                    [budget, i, value, 9, *[seed] * several] for i, value in enumerate(values)
                )


def seeds_of(folder):
    """The seeds of the run in a folder."""
    return read_settings(folder, "DIR").seeds


def open_run(folder, chosen, resume):
    """The folder of a run, without metrics."""
    directory = (RunDirectory.resume if resume else RunDirectory.create)(folder, chosen, "here")
    directory.cut_metrics(None)
    return directory


def write_line(directory, chosen, **line):
    """A line of metrics of every seed that is empty where nothing is said."""
    empty = dict.fromkeys(METRICS, "") | {"env_steps": line["episodes"]}
    directory.write_metrics([empty | {"seed": seed} | line for seed in chosen.seeds])


def made_up_training(monkeypatch, what, lines):
    """Put training aside; returns what was asked for.

    what: names a run, given its settings. lines: of its metrics, given its settings.
    """
    asked = SimpleNamespace(trained=[], tested=[], fail_after=None)

    def train(chosen, folder, *, resume, device, workers, label, light_checkpoints):
        if asked.fail_after is not None and len(asked.trained) == asked.fail_after:
            raise KeyboardInterrupt
        asked.trained.append((*what(chosen), resume))
        assert (device, workers, light_checkpoints) == ("cpu", 0, False)
        directory = open_run(folder, chosen, resume)
        for line in lines(chosen):
            write_line(directory, chosen, **line)
        directory.close()

    monkeypatch.setattr("save_rl.training.run.loop.train", train)
    return asked


def files(folder):
    """The files of a folder, by name."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}

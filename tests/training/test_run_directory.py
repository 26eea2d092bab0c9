"""What a run folder says about its settings, also one that was written before there were all."""

import json
from dataclasses import asdict, replace

import pytest

from save_rl.errors import InputError
from save_rl.learning.r2d2_settings import NetworkSettings, R2D2Settings, ReplaySettings
from save_rl.training.run_directory import METRICS, RunDirectory, read_settings, settings_from_json
from save_rl.training.settings import TrainSettings

NESTED = TrainSettings(
    "atari/MsPacman",
    "r2d2-save",
    seeds=(3,),
    r2d2=R2D2Settings(
        network=NetworkSettings(profile="small"),
        replay=ReplaySettings(capacity=7, minimum=2),
        refresh=5,
    ),
)
ROW = dict.fromkeys(METRICS, 1.0)


@pytest.mark.parametrize("settings", [TrainSettings(seeds=(1, 2)), NESTED])
def test_settings_come_back_from_json(settings):
    assert settings_from_json(json.loads(json.dumps(asdict(settings)))) == settings


def test_a_config_from_before_there_was_a_setting_has_its_default(tmp_path):
    RunDirectory.create(tmp_path, TrainSettings(budget=3), "cpu")
    config = json.loads((tmp_path / "config.json").read_text())
    del config["settings"]["r2d2"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert read_settings(tmp_path, "DIR") == TrainSettings(budget=3)


def test_a_nested_setting_that_differs_is_named(tmp_path):
    RunDirectory.create(tmp_path, NESTED, "cpu")
    other = replace(NESTED, r2d2=replace(NESTED.r2d2, network=NetworkSettings()))
    with pytest.raises(InputError, match=r"with --r2d2.network.profile small, not paper; repeat"):
        RunDirectory.resume(tmp_path, other, "cpu")
    more = replace(NESTED, episodes=2 * NESTED.episodes, steps=9)
    RunDirectory.resume(tmp_path, more, "cpu").close()


def test_a_run_that_was_begun_without_the_newest_columns_goes_on_without_them(tmp_path):
    settings = TrainSettings()
    RunDirectory.create(tmp_path, settings, "cpu").close()
    old = [name for name in METRICS if name not in ("explored", "changed")]
    (tmp_path / "metrics.csv").write_text(",".join(old) + "\n")
    run = RunDirectory.resume(tmp_path, settings, "cpu")
    run.cut_metrics(None)
    run.write_metrics([{**ROW, "env_steps": 1, "explored": "", "changed": ""}])
    assert run.read_metrics() == [dict.fromkeys(old, 1.0)]
    run.close()
    (tmp_path / "metrics.csv").write_text("time_s,seed\n")
    with pytest.raises(InputError, match="was written by another version"):
        RunDirectory.resume(tmp_path, settings, "cpu")

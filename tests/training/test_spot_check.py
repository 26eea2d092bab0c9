"""An impure simulator is found out while it is trained on, and a pure one is not."""

import numpy as np
import pytest

from save_rl.training.host.trainer import HostTrainer
from save_rl.training.settings import TrainSettings
from tests.envs.broken_simulators import Counting, Ladder

SETTINGS = TrainSettings(
    env="tests.envs.broken_simulators:x", agent="q-learning", lanes=4, batch=4, replay=64,
    min_replay=1000, chunk=2,
)  # fmt: skip


@pytest.mark.parametrize(("simulator", "different"), [(Ladder(), 0), (Counting(), 3)])
def test_episodes_in_progress_are_replayed(simulator, different):
    said: list[str] = []
    trainer = HostTrainer(SETTINGS, [simulator], warn=said.append)
    state = trainer.begin()
    for chunk in range(17):
        state = trainer.advance(state, 2 * chunk, np.ones(1, np.bool_))
    # Due after 4, 8 and 16 chunks; one chunk later where all episodes have just begun.
    assert trainer.spot_checks.made == 3
    assert trainer.spot_checks.different == different
    trainer.close()
    if different:
        assert len(said) == 2  # the first one, and how many there were
        assert "gave another result (the observation is another one)" in said[0]
        assert "save-rl check tests.envs.broken_simulators:x says more" in said[0]
        assert said[1] == "3 of 3 replayed episodes differed."
    else:
        assert said == []

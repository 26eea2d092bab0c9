"""Episodes are played by another process: steps arrive, faults are words, cancelling works."""

import time

import pytest

from save_rl.errors import RunError
from save_rl.studio import jobs
from save_rl.studio.episode_store import Store
from save_rl.studio.episodes import Episodes
from save_rl.studio.jobs import Busy, Jobs
from save_rl.studio.player_process import PlayerProcess
from tests.studio import playing
from tests.studio.playing import LENGTH

# One worker runs them all, with one process that plays.
pytestmark = pytest.mark.xdist_group("studio-episodes")
SETTINGS = {
    "best": False, "of": 0, "seed": 0, "level": None, "most": 50, "budget": 3, "c": 0.25,
}  # fmt: skip
LONG = 1200.0  # ends what hangs


@pytest.fixture(scope="module")
def episodes(tmp_path_factory):
    made = Episodes(False, Jobs(acting=playing.ACTING, patience=LONG))
    made.folder = tmp_path_factory.mktemp("run")
    yield made
    made.close()


def until(condition, job=None):
    end = time.monotonic() + LONG
    while not condition():
        assert time.monotonic() < end, job and (job.state, job.why)
        time.sleep(0.002)


def finish(job):
    until(lambda: job.over, job)
    return job


def play(episodes, **settings):
    job, episode = episodes.play("run", episodes.folder, {**SETTINGS, **settings})
    return finish(job), episode


def look(episodes, episode, number, *actions):
    job, known = episodes.look(episodes.folder, episode, number, [[a, None] for a in actions])
    return known if job is None else finish(job).result


def process_of(episodes):
    return finish(episodes.jobs.add(episodes.folder, {"do": "open"})).result["process"]


def test_an_episode_has_every_step(episodes):
    job, episode = play(episodes)
    assert (job.state, job.why, episode.over) == ("done", "", "terminated")
    assert [action for action, _ in episode.taken] == [0, 1, 2, 0, 1, 2]
    assert episode.rewards == [0.0, 0.5, 1.0, 0.0, 0.5, 1.0]
    assert len(episode.pictures) == LENGTH + 1
    record = episode.step(1)
    assert record["search"]["chosen"] == 1
    assert [row["visits"] for row in record["search"]["actions"]] == [1, 1, 1]
    assert {row["prior"] for row in record["search"]["actions"]} == {0.25}


def test_a_level_is_asked_for(episodes):
    _, episode = play(episodes, level=3, seed=playing.UNDRAWN)
    assert episode.step(0)["text"] == f"({playing.UNDRAWN}, 3, 0, 0)"


def test_a_long_episode_is_stopped(episodes):
    _, episode = play(episodes, most=2)
    assert episode.over == "stopped after 2 steps"
    assert len(episode.rewards) == 2


def test_another_budget_and_c_from_the_same_state(episodes):
    _, episode = play(episodes)
    job = finish(episodes.search(episodes.folder, episode, 4, 2, 0.75))
    search = job.result["search"]
    assert search["chosen"] == 4 % 3
    assert search["tried"] == 2
    assert {row["prior"] for row in search["actions"]} == {0.75}


def test_a_look_along_a_path_reaches_the_state_of_the_episode(episodes):
    _, episode = play(episodes, seed=playing.UNDRAWN)
    found = look(episodes, episode, 2, 2, 0)
    assert found["text"] == episode.step(4)["text"]
    assert found["reward"] == episode.rewards[3]
    assert look(episodes, episode, 4, 1, 2)["over"] == "terminated"


def test_a_look_is_kept(episodes):
    _, episode = play(episodes)
    first = look(episodes, episode, 0, 2)
    job, known = episodes.look(episodes.folder, episode, 0, [[2, None]])
    assert job is None
    assert known == first
    assert known["picture"].startswith("data:image/png;base64,")


def test_a_look_beyond_the_end_is_refused(episodes):
    _, episode = play(episodes)
    job, _ = episodes.look(episodes.folder, episode, LENGTH, [[0, None]])
    assert finish(job).why == "There is no step after the end of an episode (terminated)."


def test_an_error_of_the_simulator_ends_the_job_and_nothing_else(episodes):
    before = process_of(episodes)
    job, episode = play(episodes, seed=playing.RAISES)
    assert job.state == "failed"
    assert job.why.startswith("The simulator failed in step with:\nTraceback")
    assert job.why.endswith("ArithmeticError: the ladder is broken")
    assert len(episode.rewards) == 2
    assert play(episodes)[0].state == "done"
    assert process_of(episodes) == before


def test_a_reward_that_is_not_a_number_ends_the_job(episodes):
    job, _ = play(episodes, seed=playing.NAN)
    assert (job.state, job.why) == ("failed", "step returned a reward of nan, not a number.")


def test_a_picture_that_fails_is_a_note(episodes):
    job, episode = play(episodes, seed=playing.UNDRAWN)
    assert job.state == "done"
    note = "There is no picture: ModuleNotFoundError: No module named 'paint'"
    assert episode.step(0)["note"] == note
    assert not any(episode.pictures)


def test_a_talkative_simulator_does_no_harm(episodes):
    assert play(episodes, seed=playing.TALKS)[0].state == "done"


def test_cancelling_keeps_the_steps_and_the_process(episodes):
    before = process_of(episodes)
    job, episode = episodes.play(
        "run", episodes.folder, {**SETTINGS, "seed": playing.ENDLESS, "most": 10**4}
    )
    until(lambda: len(episode.rewards) > 3, job)
    episodes.jobs.cancel(job)
    finish(job)
    assert job.state == "cancelled"
    assert len(episode.rewards) > 3
    assert process_of(episodes) == before


def test_a_long_search_tells_its_progress_and_can_be_cancelled(episodes):
    _, episode = play(episodes, seed=playing.ENDLESS, most=3)
    job = episodes.search(episodes.folder, episode, 3, 10**5, 1.0)
    until(lambda: job.simulations > 0, job)
    episodes.jobs.cancel(job)
    assert finish(job).state == "cancelled"


def test_a_look_is_answered_while_an_episode_is_played_and_others_wait(episodes):
    _, played = play(episodes)
    job, episode = episodes.play(
        "run", episodes.folder, {**SETTINGS, "seed": playing.ENDLESS, "most": 10**4}
    )
    until(lambda: episode.rewards, job)
    waiting = [episodes.search(episodes.folder, played, 0, 3, 1.0) for _ in range(2)]
    assert look(episodes, played, 1, 1)["reward"] == 0.5
    assert not job.over
    assert [episodes.jobs.ahead_of(other) for other in waiting] == [0, 1]
    episodes.jobs.cancel(waiting[0])
    assert waiting[0].state == "cancelled"
    assert episodes.jobs.ahead_of(waiting[1]) == 0
    episodes.jobs.cancel(job)
    assert finish(waiting[1]).state == "done"


def test_too_many_jobs_are_refused(episodes):
    job, episode = episodes.play(
        "run", episodes.folder, {**SETTINGS, "seed": playing.ENDLESS, "most": 10**4}
    )
    until(lambda: episode.rewards, job)
    waiting = [episodes.jobs.add(episodes.folder, {"do": "open"}) for _ in range(64)]
    with pytest.raises(Busy, match="Too many"):
        episodes.jobs.add(episodes.folder, {"do": "open"})
    for other in [*waiting, job]:
        episodes.jobs.cancel(other)
    finish(job)


def test_two_runs_are_played_at_once(episodes, tmp_path):
    job, episode = episodes.play(
        "run", episodes.folder, {**SETTINGS, "seed": playing.ENDLESS, "most": 10**4}
    )
    until(lambda: episode.rewards, job)
    other = finish(episodes.jobs.add(tmp_path, {"do": "open"}))
    assert other.state == "done"
    assert not job.over
    episodes.jobs.cancel(job)
    finish(job)


def test_a_crash_of_the_process_is_told_and_the_next_one_plays(episodes):
    job, episode = play(episodes, seed=playing.DIES)
    assert job.state == "failed"
    assert "it was killed by SIGKILL" in job.why
    assert len(episode.rewards) == 2
    assert play(episodes)[0].state == "done"


def test_a_simulator_that_hangs_is_cancelled_by_force(episodes, monkeypatch):
    monkeypatch.setattr(jobs, "_GRACE", 0.2)
    job, episode = episodes.play("run", episodes.folder, {**SETTINGS, "seed": playing.HANGS})
    until(lambda: len(episode.rewards) == 2, job)
    episodes.jobs.cancel(job)
    assert finish(job).state == "cancelled"


def test_a_simulator_that_hangs_is_noticed(episodes, monkeypatch):
    monkeypatch.setattr(episodes.jobs, "patience", 0.3)
    job, _ = play(episodes, seed=playing.HANGS)
    assert job.state == "failed"
    assert job.why.startswith("The simulator has not answered for ")
    assert job.why.endswith("so its process was ended.")


def test_an_answer_that_makes_no_sense_ends_the_job_alone(episodes, monkeypatch):
    def nonsense(self, seconds):
        raise ValueError("not JSON")

    with monkeypatch.context() as patched:
        patched.setattr(PlayerProcess, "receive", nonsense)
        job, _ = play(episodes)
    assert job.state == "failed"
    assert job.why.startswith("Its answer can't be used:")
    assert play(episodes)[0].state == "done"


def test_a_missing_package_is_named(tmp_path):
    made = Episodes(False, Jobs(acting="tests.studio.playing:Missing"))
    asked = [made.jobs.add(tmp_path, {"do": "open"}) for _ in range(2)]
    words = "install it with: pip install 'save-rl[atari]'."
    assert [(finish(job).state, job.why) for job in asked] == 2 * [("failed", words)]
    made.close()


def test_closing_ends_what_is_going_on(tmp_path):
    made = Episodes(False, Jobs(acting=playing.ACTING))
    job, episode = made.play("run", tmp_path, {**SETTINGS, "seed": playing.ENDLESS, "most": 10**4})
    until(lambda: episode.rewards, job)
    made.close()
    assert job.state == "cancelled"


def step(size, number=0):
    return {"reward": 1.0, "step": [0, None], "text": "", "size": "x" * size, "n": number}


def test_the_oldest_episodes_are_forgotten():
    store = Store(most_bytes=5000)
    for number in range(8):
        store.add(store.begin(number, "run", {}), step(0), bytes([number]) * 1000)
    kept = [episode.number for episode in store.of_run("run")]
    assert kept == sorted(kept, reverse=True)
    assert kept[0] == 7
    assert 1 < len(kept) < 5
    assert sum(episode.bytes for episode in store.of_run("run")) <= 5000


def test_an_episode_that_is_looked_at_stays():
    store = Store(most_bytes=3500)
    for number in range(5):
        store.add(store.begin(number, "run", {}), step(0), bytes([number]) * 1000)
        store.get(0)
    assert store.get(0) is not None
    assert store.get(1) is None


def test_an_episode_too_large_for_memory_is_stopped(tmp_path):
    store = Store(most_bytes=3000)
    made = Episodes(False, Jobs(acting=playing.ACTING), store)
    job, _ = made.play("run", tmp_path, {**SETTINGS, "seed": playing.ENDLESS, "most": 10**4})
    finish(job)
    made.close()
    assert job.state == "failed"
    assert "play fewer steps" in job.why


def test_equal_pictures_are_kept_once():
    store = Store(most_bytes=3000)
    episode = store.begin(0, "run", {})
    for number in range(5):
        store.add(episode, step(0, number), b"p" * 1000)
    assert episode.bytes < 2000
    store.add(episode, step(0), b"q" * 1000)
    with pytest.raises(RunError, match="play fewer steps"):
        store.add(episode, step(0), b"r" * 1000)

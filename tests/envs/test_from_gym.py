"""Gymnasium environments as simulators; the reference is always a fresh environment, replayed."""

import collections
import random
import subprocess
import sys
import threading

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.envs.toy_text.frozen_lake import FrozenLakeEnv
from gymnasium.utils import EzPickle
from gymnasium.wrappers import OrderEnforcing, TimeLimit
from hypothesis import given, settings
from hypothesis import strategies as st

from save_rl.envs.from_gym import from_gymnasium, gym_simulator
from save_rl.errors import InputError

TAXI = max(name for name in gymnasium.registry if name.startswith("Taxi-"))


class Walk(gymnasium.Env):
    """A noisy walk; it shows the very array it computes with, and remembers earlier episodes."""

    def __init__(self, start=0):
        self.action_space = spaces.Discrete(3, start=start)
        self.observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float64)
        self.place = np.zeros(2)
        self.episodes = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.episodes += 1
        self.place = self.np_random.normal(size=2)
        return self.place, {}

    def noise(self):
        return self.np_random.normal(size=2)

    def step(self, action):
        assert self.action_space.contains(action)
        self.place += self.noise() + self.episodes * int(action - self.action_space.start)
        return self.place, self.place.sum(), abs(self.place[0]) > 6, False, {}


class Cloning(Walk):
    """Can't be deep-copied; has dice beside `np_random` and leaves them out unless it is asked."""

    def __init__(self):
        super().__init__()
        self.place = None
        self.lock = threading.Lock()
        self.dice = random.Random(0)

    def reset(self, *, seed=None, options=None):
        self.dice = random.Random(seed)
        return super().reset(seed=seed)

    def noise(self):
        return super().noise() + self.dice.random()

    def clone_state(self, include_rng=False):
        return self.place, self.episodes, self.dice.getstate() if include_rng else None

    def restore_state(self, state):
        self.place, self.episodes, dice = state
        if dice is not None:
            self.dice.setstate(dice)


class Saving(Walk):
    """Hands out its live array, and takes a state by writing into it."""

    def __init__(self):
        super().__init__()
        self.lock = threading.Lock()

    def get_state(self):
        return {"place": self.place, "episodes": self.episodes}

    def set_state(self, state):
        self.place[:] = state["place"]
        self.episodes = state["episodes"]


class Late(Walk):
    """Can't be saved before its first reset, and has a generator inside its state."""

    def reset(self, *, seed=None, options=None):
        answer = super().reset(seed=seed)
        self.own = np.random.default_rng(seed)
        return answer

    def noise(self):
        return self.own.normal(size=2) + self.np_random.normal()

    def get_state(self):
        return self.own, self.place, self.episodes

    def set_state(self, state):
        self.own, self.place, self.episodes = state


class LateAndForgetful(Late):
    def reset(self, *, seed=None, options=None):
        self.episodes = 0
        return super().reset(seed=seed)


class Strange(Walk):
    """Has methods with the right names for something else."""

    def clone_state(self):
        raise AssertionError("half a pair")

    def get_state(self, what):
        raise AssertionError("takes an argument")

    def set_state(self, position, speed):
        raise AssertionError("takes two arguments")


class Shaky(Walk):
    """Draws from its own action space."""

    def reset(self, *, seed=None, options=None):
        self.action_space.seed(seed)
        return super().reset(seed=seed)

    def noise(self):
        return float(self.action_space.sample())


class Twisted(Walk):
    """Has a generator of another kind."""

    def reset(self, *, seed=None, options=None):
        answer = super().reset(seed=seed)
        self.np_random = np.random.Generator(np.random.MT19937(seed))
        return answer


class TwistedSaving(Twisted, Saving):
    pass


class Lazy(Walk):
    """Makes its generator in its first step."""

    def reset(self, *, seed=None, options=None):
        self.episodes = 1
        self.place = np.zeros(2)
        return self.place, {}

    def noise(self):
        if self._np_random is None:
            self.np_random = np.random.default_rng(5)
        return super().noise()


class LazySaving(Lazy, Saving):
    pass


class Spawning(Walk):
    """Keeps its generator under another name, and makes others from it."""

    def reset(self, *, seed=None, options=None):
        answer = super().reset(seed=seed)
        self.generator = self.np_random
        return answer

    def noise(self):
        (child,) = self.generator.spawn(1)
        return child.normal(size=2) + self.generator.normal() + self.np_random.normal()


class Tired(gymnasium.Wrapper):
    """A wrapper with a state: it pays less at every step."""

    def reset(self, *, seed=None, options=None):
        self.pay = 1.0
        return super().reset(seed=seed, options=options)

    def step(self, action):
        self.pay /= 2
        observation, reward, terminated, truncated, info = super().step(action)
        return observation, reward + self.pay, terminated, truncated, info


class CopyableSaving(Saving):
    def __init__(self):
        Walk.__init__(self)


class Melting(gymnasium.Wrapper):
    """Changes the table of the lake it wraps: what was just done leads back to the start."""

    def step(self, action):
        lake = self.env.unwrapped
        place = int(lake.s)
        answer = super().step(action)
        lake.P[place][action][:] = [(1.0, 0, 0.5, False)]
        return answer


class MeltingLake(FrozenLakeEnv):
    def step(self, a):
        place = int(self.s)
        answer = super().step(a)
        self.P[place][a] = [(1.0, 0, 0.5, False)]
        return answer


class Bag(gymnasium.Env):
    """A dictionary to look at, with one of everything in it."""

    def __init__(self):
        self.action_space = spaces.Discrete(2)
        self.observation_space = spaces.Dict(
            {
                "bits": spaces.MultiBinary((2, 1)),
                "kind": spaces.Discrete(3, start=-1),
                "many": spaces.MultiDiscrete([2, 3], start=[0, 5]),
                "pair": spaces.Tuple((spaces.Box(0, 9, (1, 2)), spaces.Discrete(2))),
            }
        )

    def look(self):
        draw = self.np_random.integers
        return {
            "bits": draw(2, size=(2, 1)).astype(np.int8),
            "kind": draw(-1, 2),
            "many": draw([0, 5], [2, 8]),
            "pair": (self.np_random.uniform(0, 9, (1, 2)).astype(np.float32), draw(2)),
        }

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.look(), {}

    def step(self, action):
        return self.look(), int(action), False, False, {}


def limited(env, limit=5):
    return TimeLimit(OrderEnforcing(env), limit)


FACTORIES = {
    "cart pole": lambda: gymnasium.make("CartPole-v1", max_episode_steps=6),
    "frozen lake": lambda: gymnasium.make("FrozenLake-v1", is_slippery=True),
    "taxi": lambda: gymnasium.make(TAXI),
    "blackjack": lambda: gymnasium.make("Blackjack-v1"),
    "dictionary": lambda: limited(Bag()),
    "walk": lambda: limited(Walk(start=-2)),
    "clone_state": lambda: limited(Cloning()),
    "get_state": lambda: limited(Saving()),
    "get_state with a generator": lambda: limited(LateAndForgetful()),
    "other methods": lambda: limited(Strange()),
    "space drawn from": lambda: limited(Shaky()),
    "another generator": lambda: limited(Twisted()),
    "another generator, get_state": lambda: limited(TwistedSaving()),
    "late generator": lambda: limited(Lazy()),
    "late generator, get_state": lambda: limited(LazySaving()),
    "generator spawned from": lambda: limited(Spawning()),
    "wrapper with a state": lambda: Tired(limited(CopyableSaving())),
    "wrapper over make": lambda: Tired(gymnasium.make("CartPole-v1", max_episode_steps=6)),
    "table changed from outside": lambda: Melting(gymnasium.make("FrozenLake-v1")),
    "table changed from inside": lambda: limited(MeltingLake()),
}
# Those whose randomness is all in `np_random`.
RESEEDED = [
    *("frozen lake", "taxi", "blackjack", "dictionary", "walk", "get_state"),
    *(name for name in FACTORIES if "another" in name or "late" in name),
]
all_environments = pytest.mark.parametrize("name", FACTORIES)


def numbers(env, observation):
    return np.asarray(spaces.flatten(env.observation_space, observation), np.float32)


def replay(factory, seed, actions, reseeded=None):
    """What the last action gives in a fresh environment.

    `reseeded` is the index of an action before which the generator is replaced, and its seed.
    """
    env = factory()
    observation, _ = env.reset(seed=seed)
    last = (0.0, False, False)
    for index, action in enumerate(actions):
        if reseeded and reseeded[0] == index:
            env.unwrapped.np_random = np.random.Generator(np.random.PCG64(reseeded[1]))
        observation, *last, _ = env.step(env.action_space.start + action)
    return numbers(env, observation), *last


def same(simulator, answer, expected):
    state, *last = answer
    observation, *expected_last = expected
    np.testing.assert_array_equal(simulator.observe(state), observation)
    assert last == expected_last


@all_environments
def test_any_branch_is_what_a_fresh_environment_replays(name):
    factory = FACTORIES[name]
    simulator = from_gymnasium(factory)

    @settings(max_examples=12)
    @given(
        seed=st.integers(0, 2**31),
        moves=st.lists(st.tuples(st.integers(0, 99), st.integers(0, 99)), max_size=10),
    )
    def check(seed, moves):
        root = simulator.reset(seed)
        same(simulator, (root, 0.0, False, False), replay(factory, seed, []))
        nodes = [(root, [])]
        taken = []
        for parent, action in moves:
            state, actions = nodes[parent % len(nodes)]
            action %= simulator.num_actions
            answer = simulator.step(state, action)
            expected = replay(factory, seed, [*actions, action])
            same(simulator, answer, expected)
            taken.append((state, action, expected))
            if not answer[2]:
                nodes.append((answer[0], [*actions, action]))
        for state, action, expected in reversed(taken):
            same(simulator, simulator.step(state, action), expected)
        same(simulator, (simulator.reset(seed), 0.0, False, False), replay(factory, seed, []))

    check()


def test_an_episode_is_the_seeds_alone():
    simulator = from_gymnasium(Late)
    steps = [simulator.step(simulator.reset(seed), 2) for seed in (3, 4, 3)]
    same(simulator, steps[2], (simulator.observe(steps[0][0]), *steps[0][1:]))


@pytest.mark.parametrize("name", RESEEDED)
def test_a_sampled_step_is_a_replaced_generator(name):
    factory = FACTORIES[name]
    simulator = from_gymnasium(factory, stochastic=True)

    @settings(max_examples=12)
    @given(seed=st.integers(0, 2**31), other=st.integers(0, 2**31), action=st.integers(0, 99))
    def check(seed, other, action):
        action %= simulator.num_actions
        root = simulator.reset(seed)
        sampled = simulator.step(root, action, other)
        same(simulator, sampled, replay(factory, seed, [action], (0, other)))
        state, *last = simulator.step(root, action)
        same(simulator, (state, *last), replay(factory, seed, [action]))
        if last[1]:
            return
        expected = replay(factory, seed, [action] * 2)
        same(simulator, simulator.step(state, action), expected)
        sampled = simulator.step(state, action, other)
        same(simulator, sampled, replay(factory, seed, [action] * 2, (1, other)))
        same(simulator, simulator.step(state, action), expected)
        if not sampled[2]:
            later = replay(factory, seed, [action] * 3, (1, other))
            same(simulator, simulator.step(sampled[0], action), later)
        again = simulator.step(state, action, other)
        same(simulator, again, replay(factory, seed, [action] * 2, (1, other)))

    check()


def test_sampled_steps_on_ice_slip_to_each_side_a_third_of_the_time():
    simulator = gym_simulator("FrozenLake-v1")
    state = simulator.reset(0)
    count = 3000
    outcomes = collections.Counter(
        int(np.argmax(simulator.observe(simulator.step(state, 2, seed)[0])))
        for seed in range(count)
    )
    assert set(outcomes) == {0, 1, 4}  # to the right of the first field, and up and down from it
    deviation = np.sqrt(count * 1 / 3 * 2 / 3)
    assert all(abs(n - count / 3) < 4 * deviation for n in outcomes.values())


def test_a_replaced_generator_reaches_all_who_hold_it():
    simulator = from_gymnasium(lambda: Spawning(), stochastic=True)
    first, second = (simulator.step(simulator.reset(seed), 0, 7)[0] for seed in (1, 2))
    moved = [
        simulator.observe(after) - simulator.observe(simulator.reset(seed))
        for after, seed in ((first, 1), (second, 2))
    ]
    np.testing.assert_allclose(*moved, rtol=1e-5)


CHANCE = {
    ("FrozenLake-v1", True): {},
    ("FrozenLake-v1", False): {"is_slippery": False},
    ("CliffWalking-v1", True): {"is_slippery": True},
    ("CliffWalking-v1", False): {},
    ("Blackjack-v1", True): {},
    ("CartPole-v1", False): {},
}


@pytest.mark.parametrize(("name", "chance"), CHANCE)
def test_an_environment_is_tried_out_for_chance(name, chance):
    options = CHANCE[name, chance]
    assert gym_simulator(name, **options).stochastic is chance
    for said in (True, False):
        assert gym_simulator(name, stochastic=said, **options).stochastic is said


class Rare(gymnasium.Env):
    """Draws in every step; one step in twenty matters, and some actions raise."""

    observation_space = gymnasium.spaces.Discrete(2)
    action_space = gymnasium.spaces.Discrete(3)

    def __init__(self, matters=True):
        self.matters = matters

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return 0, {}

    def step(self, action):
        if action == 2:
            raise ValueError("not possible")
        drawn = self.np_random.random() < 0.05
        return int(drawn and self.matters), 0.0, False, False, {}


def test_chance_that_shows_rarely_is_found_and_draws_that_do_not_matter_are_not_chance():
    assert from_gymnasium(Rare).stochastic
    assert not from_gymnasium(lambda: Rare(matters=False)).stochastic


def test_the_former_option_is_refused_with_the_new_one():
    with pytest.raises(InputError, match=r"reseed is not possible; .* stochastic=true"):
        gym_simulator("FrozenLake-v1", reseed=True)


def test_the_generator_of_a_state_without_chance_goes_on_as_before():
    """`--stochastic false`: a state includes its luck."""
    simulator = gym_simulator("FrozenLake-v1", stochastic=False)
    state = simulator.reset(3)
    seen = {int(np.argmax(simulator.observe(simulator.step(state, 2)[0]))) for _ in range(20)}
    assert len(seen) == 1


@pytest.mark.parametrize(
    "factory",
    [
        lambda: gymnasium.make("CartPole-v1", max_episode_steps=3),
        lambda: limited(Bag(), 3),
        lambda: limited(limited(Bag(), 3), 4),
        lambda: limited(limited(Bag(), 4), 3),
        lambda: Tired(limited(Bag(), 3)),
        lambda: limited(Tired(Bag()), 3),
        lambda: limited(Cloning(), 3),
        lambda: limited(Saving(), 3),
    ],
)
def test_the_time_limit_holds_along_every_branch(factory):
    simulator = from_gymnasium(factory)

    def walk(state, elapsed):
        if elapsed < 5:
            for action in range(2):
                after, _, _, truncated = simulator.step(state, action)
                assert truncated == (elapsed + 1 >= 3)
                walk(after, elapsed + 1)

    walk(simulator.reset(0), 0)


def test_an_environment_may_truncate_by_itself():
    class Bored(Bag):
        def step(self, action):
            return self.look(), 0, False, np.bool_(action == 1), {}

    simulator = from_gymnasium(lambda: limited(Bored()))
    state = simulator.reset(0)
    assert [simulator.step(state, action)[3] for action in range(2)] == [False, True]


def test_a_way_over_firm_ice():
    simulator = gym_simulator("FrozenLake-v1", is_slippery=False)
    state = simulator.reset(0)
    down, right = 1, 2
    way = []
    for action in (right, right, down, down, down, right):
        state, *last = simulator.step(state, action)
        way.append((int(np.argmax(simulator.observe(state))), *last))
    assert way[:-1] == [(field, 0.0, False, False) for field in (1, 2, 6, 10, 14)]
    assert way[-1] == (15, 1.0, True, False)
    np.testing.assert_array_equal(simulator.observe(state), np.eye(16)[15])


def test_actions_count_from_the_start_of_their_space():
    class Echo(Bag):
        def __init__(self):
            super().__init__()
            self.action_space = spaces.Discrete(3, start=-7)

    simulator = from_gymnasium(Echo)
    state = simulator.reset(0)
    assert simulator.num_actions == 3
    assert [simulator.step(state, action)[1] for action in range(3)] == [-7, -6, -5]
    assert simulator.step(state, np.int64(2))[1] == -5


class Showing(gymnasium.Env):
    """Shows one thing."""

    def __init__(self, space, thing):
        self.action_space = spaces.Discrete(1)
        self.observation_space = space
        self.thing = thing

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.thing, {}

    def step(self, action):
        return self.thing, np.float32(0.5), np.bool_(False), 0, {}


BYTES = spaces.Box(0, 255, (2, 2), np.uint8)
PICTURE = np.array([[0, 51], [102, 255]], np.uint8)
GREYS = [0, 0.2, 0.4, 1]


@pytest.mark.parametrize(
    ("space", "thing", "vector"),
    [
        (spaces.Box(-1, 1, ()), np.float32(0.5), [0.5]),
        (spaces.Box(-9, 9, (2, 2), np.int64), np.array([[1, 2], [3, 4]]), [1, 2, 3, 4]),
        (spaces.Discrete(3), 2, [0, 0, 1]),
        (spaces.Discrete(3, start=5), np.int64(5), [1, 0, 0]),
        (spaces.MultiBinary(3), np.array([1, 0, 1], np.int8), [1, 0, 1]),
        (spaces.MultiDiscrete([2, 3]), np.array([1, 0]), [0, 1, 1, 0, 0]),
        (spaces.MultiDiscrete([[2], [2]], start=[[4], [6]]), np.array([[5], [6]]), [0, 1, 1, 0]),
        (BYTES, PICTURE, GREYS),
        (
            spaces.Dict({"b": BYTES, "a": spaces.Tuple((spaces.Discrete(2), BYTES))}),
            {"b": PICTURE, "a": (1, PICTURE)},
            [0, 1, *GREYS, *GREYS],  # in the order of the keys
        ),
    ],
)
def test_observations_are_one_vector(space, thing, vector):
    simulator = from_gymnasium(lambda: Showing(space, thing))
    seen = simulator.observe(simulator.reset(0))
    assert seen.dtype == np.float32
    assert seen.shape == (len(vector),)
    np.testing.assert_allclose(seen, vector, rtol=1e-6)
    with pytest.raises(ValueError, match="read-only"):
        seen[0] = 1


def test_observations_keep_their_shapes_if_asked():
    space = spaces.Dict(
        {"b": BYTES, "a": spaces.Tuple((spaces.Discrete(2), BYTES, spaces.Box(-1, 1, ())))}
    )
    thing = {"b": PICTURE, "a": (1, PICTURE, np.float32(0.5))}
    simulator = from_gymnasium(lambda: Showing(space, thing), flatten=False)
    seen = simulator.observe(simulator.reset(0))
    assert list(seen) == ["a/0", "a/1", "a/2", "b"]
    assert {x.dtype for x in seen.values()} == {np.dtype(np.float32)}
    np.testing.assert_array_equal(seen["a/0"], [0, 1])
    np.testing.assert_allclose(seen["a/1"], PICTURE / 255, rtol=1e-6)
    np.testing.assert_allclose(seen["b"], PICTURE / 255, rtol=1e-6)
    assert seen["a/2"] == np.float32(0.5)
    picture = from_gymnasium(lambda: Showing(BYTES, PICTURE), flatten=False)
    np.testing.assert_allclose(picture.observe(picture.reset(0)), PICTURE / 255, rtol=1e-6)


def test_rewards_and_flags_are_pythons_own():
    simulator = from_gymnasium(lambda: Showing(spaces.Discrete(2), 0))
    _, *last = simulator.step(simulator.reset(np.int64(3)), 0)
    assert last == [0.5, False, False]
    assert [type(value) for value in last] == [float, bool, bool]


class Drawing(Walk):
    """Every picture it draws makes the next one darker and moves it."""

    def __init__(self, render_mode=None):
        super().__init__()
        self.render_mode = render_mode
        self.ink = 0

    def render(self):
        self.ink += 1
        self.place += 1
        return np.full((2, 2, 3), self.ink + self.episodes, np.uint8)


class DrawingFromState(Drawing):
    def get_state(self):
        return self.place, self.episodes, self.ink

    def set_state(self, state):
        self.place, self.episodes, self.ink = state


@pytest.mark.parametrize("kind", [Drawing, DrawingFromState])
def test_pictures_are_drawn_from_a_state_and_leave_it_alone(kind):
    simulator = from_gymnasium(lambda: limited(kind("rgb_array")))
    state = simulator.reset(0)
    before, *_ = simulator.step(state, 1)
    pictures = [simulator.render(state) for _ in range(3)]
    np.testing.assert_array_equal(pictures, np.full((3, 2, 2, 3), 2))
    after, *_ = simulator.step(state, 1)
    np.testing.assert_array_equal(simulator.observe(before), simulator.observe(after))


@pytest.mark.parametrize("mode", [None, "human", "ansi"])
def test_only_arrays_are_pictures(mode):
    assert not hasattr(from_gymnasium(lambda: limited(Drawing(mode))), "render")


def test_the_environment_of_the_factory_is_left_alone():
    env = gymnasium.make("CartPole-v1")
    inside = str(env)
    simulator = from_gymnasium(lambda: Tired(env))
    simulator.step(simulator.reset(0), 0)
    assert env.unwrapped.state is None
    assert str(env) == inside


def refusal(make):
    with pytest.raises(InputError) as caught:
        make()
    return str(caught.value)


def with_actions(space):
    env = Walk()
    env.action_space = space
    return lambda: env


OBSERVATIONS = "Box, Discrete, MultiBinary, MultiDiscrete, or a Dict or Tuple of these"


@pytest.mark.parametrize(
    ("factory", "sentence"),
    [
        (
            lambda: "CartPole-v1",
            "ENV: the factory returned a str; it must return a gymnasium.Env.",
        ),
        (
            with_actions(spaces.Box(-1, 1, (2,))),
            "ENV: the action space Box(-1.0, 1.0, (2,), float32) is not possible; it must be "
            "Discrete.",
        ),
        (
            with_actions(spaces.MultiDiscrete([2, 2])),
            "ENV: the action space MultiDiscrete([2 2]) is not possible; it must be Discrete.",
        ),
        (
            lambda: Showing(spaces.Text(3), "abc"),
            f"ENV: an observation space of Text is not possible; it must be {OBSERVATIONS}.",
        ),
        (
            lambda: Showing(spaces.Graph(spaces.Discrete(2), None), None),
            f"ENV: an observation space of Graph is not possible; it must be {OBSERVATIONS}.",
        ),
        (
            lambda: Showing(spaces.Dict({"a": spaces.Sequence(spaces.Discrete(2))}), {"a": ()}),
            f"ENV: an observation space of Sequence is not possible; it must be {OBSERVATIONS}.",
        ),
    ],
)
def test_what_has_no_numbered_actions_or_no_fixed_size_is_refused(factory, sentence):
    assert refusal(lambda: from_gymnasium(factory)) == sentence


class LockedFromStart(Walk):
    def __init__(self):
        super().__init__()
        self.lock = threading.Lock()


class LockedFromReset(Walk):
    def reset(self, *, seed=None, options=None):
        self.lock = threading.Lock()
        return super().reset(seed=seed)


class LockedFromStep(Walk):
    def step(self, action):
        self.lock = threading.Lock()
        return super().step(action)


class Rebuilt(Walk, EzPickle):
    def __init__(self):
        Walk.__init__(self)
        EzPickle.__init__(self)


def needs(name, cause):
    return (
        f"ENV: {name} can't be copied ({cause}); it needs clone_state and restore_state, and no "
        "wrappers but those of gymnasium.make."
    )


LOCK = "cannot pickle '_thread.lock' object"


@pytest.mark.parametrize(
    ("factory", "sentence"),
    [
        (LockedFromStart, needs("LockedFromStart", LOCK)),
        (lambda: limited(LockedFromReset()), needs("LockedFromReset", LOCK)),
        (lambda: Tired(Cloning()), needs("Cloning", LOCK)),
        (lambda: Tired(Rebuilt()), needs("Rebuilt", "EzPickle rebuilds it")),
    ],
)
def test_what_cannot_be_copied_is_refused(factory, sentence):
    assert refusal(lambda: from_gymnasium(factory)) == sentence


def test_what_cannot_be_copied_any_more_is_refused():
    simulator = from_gymnasium(LockedFromStep)
    state, *_ = simulator.step(simulator.reset(0), 0)
    assert refusal(lambda: simulator.step(state, 0)) == needs("LockedFromStep", LOCK)


@pytest.mark.parametrize("name", ["Cartpole-v1", "CartPole-v7", "cartpole-v1"])
def test_an_unknown_id_names_the_nearest(name):
    sentence = f"ENV: Gymnasium has no environment '{name}'. Did you mean 'CartPole-v1'?"
    assert refusal(lambda: gym_simulator(name)) == sentence


def test_an_id_like_no_other_names_none():
    assert refusal(lambda: gym_simulator("%")).startswith("ENV: '%' can't be made (Malformed")
    assert refusal(lambda: gym_simulator("q")) == "ENV: Gymnasium has no environment 'q'."


def broken(**_):
    raise gymnasium.error.DependencyNotInstalled("pip install it.\nThen all is well.")


def test_a_missing_package_is_named(monkeypatch):
    spec = gymnasium.envs.registration.EnvSpec("test/Broken-v0", entry_point=broken)
    monkeypatch.setitem(gymnasium.registry, "test/Broken-v0", spec)
    sentence = "ENV: 'test/Broken-v0' can't be made (pip install it)."
    assert refusal(lambda: gym_simulator("test/Broken-v0")) == sentence


def test_wrong_options_are_named():
    sentence = refusal(lambda: gym_simulator("CartPole-v1", gravty=3))
    assert sentence.startswith("ENV: 'CartPole-v1' can't be made with gravty=3 (")
    assert "unexpected keyword argument 'gravty'" in sentence
    sentence = refusal(lambda: gym_simulator("FrozenLake-v1", map_name="9x9"))
    assert sentence == "ENV: 'FrozenLake-v1' can't be made with map_name='9x9' ('9x9')."


def test_our_own_environments_answer_for_themselves():
    name = "save_rl.envs.gym:save_rl/Tightrope-v0"
    sentence = refusal(lambda: gym_simulator(name, reward="big"))
    assert sentence == "--reward: 'big' is not possible; it must be 'sparse' or 'dense'."


def test_workers_need_no_jax():
    lines = (
        "import sys; from save_rl.envs.from_gym import gym_simulator; "
        "s = gym_simulator('CartPole-v1'); s.step(s.reset(0), 0); assert 'jax' not in sys.modules"
    )
    ran = subprocess.run([sys.executable, "-W", "error", "-c", lines], check=False)
    assert ran.returncode == 0

"""A trained agent that acts, from the folder of a run or from one small file.

    policy = save_rl.load("runs/first")
    decision = policy.act(state, budget=10)
    policy.save("policy.npz")

It acts as in tests: without exploration, on the values of its search, or without a budget on Qθ.
"""

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from save_rl.agents import ACTS, Agent, get_agent, usual_budget
from save_rl.envs import make, make_simulator, require_trust, require_trust_in, runs_on_host
from save_rl.envs.layout import allowed_actions, named
from save_rl.errors import InputError, require, require_numbers
from save_rl.networks import trim
from save_rl.players import Move, Player, RootValues, make_move
from save_rl.search import search_list
from save_rl.search.any_network import python_layout
from save_rl.search.decision import Decision, trees_of
from save_rl.search.tree_lanes import tree_pool
from save_rl.training.device.acting import prior_and_value
from save_rl.training.devices import select_device
from save_rl.training.host.acting import act_all
from save_rl.training.host.evaluator import batch_size
from save_rl.training.host.learner import make_learning
from save_rl.training.run import policy_file
from save_rl.training.run.policy_file import Header, Interface
from save_rl.training.run.trained import checked_settings, read_params
from save_rl.training.settings import TrainSettings
from save_rl.types import SearchResult, Simulator, State

_FILE = ".npz"


class Policy:
    """One trained network, with its agent's search; made by `save_rl.load`.

    settings: of its run. seed: of the run that trained it.
    """

    def __init__(
        self, header: Header, params: Any, like: Any, *, device: Any, trust: bool = False,
        simulator: Simulator | None = None,
    ):  # fmt: skip
        """like: the environment, or something with its numbers, for the network."""
        self.settings, self.seed, self.interface = header
        self.agent: Agent = get_agent(self.settings.agent)
        self._device, self._trust = device, trust
        self._simulator, self._pool, self._pool_of = None, None, None
        with jax.default_device(device):
            self._params = jax.tree.map(jnp.asarray, params)
        learning = make_learning(self.settings, like, self.interface.example())
        self._scale = float(learning.scale(self._params))

        def rows(params: Any, observation: Any, mask: Any) -> tuple[Any, Any]:
            head, value = learning.network(params)(observation)
            return prior_and_value(self.agent, head, value, mask)

        self._rows = jax.jit(rows)
        if simulator is not None:
            self._simulator = self._fitting(simulator)

    def __repr__(self) -> str:
        s = self.settings
        return f"Policy({s.agent!r} on {s.env!r}, seed {self.seed}, budget {s.budget})"

    @property
    def num_actions(self) -> int:
        """Number of actions that it chooses among."""
        return self.interface.num_actions

    @property
    def simulator(self) -> Simulator:
        """The environment of its run as a Python simulator, or the one given to `load`."""
        if self._simulator is None:
            s = self.settings
            require_trust(s.env, "this policy", self._trust, "load")
            self._simulator = self._fitting(make_simulator(s.env, self.seed, **s.all_env_options))
        return self._simulator

    def act(
        self, state: State, budget: int | None = None, *, c: float | None = None,
        simulator: Simulator | None = None, mask: Any = None, seed: int = 0,
    ) -> Decision:  # fmt: skip
        """Choose an action in a state, after a search with this budget.

        With budget 0 and no `simulator`, `state` is an observation, and `mask` its allowed actions
        `[A]` if the environment has an action mask. Otherwise it is a state of `policy.simulator`,
        or of the `simulator` given here. budget, c: default those of the run, but budget 0
        for `gumbel`, which searches in JAX alone. seed: breaks ties; the same seed gives the same
        decision.
        """
        masks = None if mask is None else np.asarray(mask)[None]
        return self.act_batch(
            [state], budget, c=c, simulator=simulator, masks=masks, seed=seed
        ).first()

    def act_batch(
        self, states: Sequence[State], budget: int | None = None, *, c: float | None = None,
        simulator: Simulator | None = None, masks: Any = None, seed: int = 0,
    ) -> Decision:  # fmt: skip
        """Choose an action in each of several states, or observations; see `act`.

        All searches run together, one call of the network for each simulation. masks: `[B, A]`.
        """
        s, states = self.settings, list(states)
        budget = usual_budget(self.agent, s.budget) if budget is None else budget
        c = s.c if c is None else float(c)
        require_numbers({"--budget": budget, "--c": c, "--seed": seed}.items())
        require(budget >= 0, "budget", budget, "0 or more")
        require(c >= 0, "c", c, "0 or more")
        require(seed >= 0, "seed", seed, "0 or more")
        require(len(states) > 0, "states", "an empty list", "at least one state")
        allowed = f"0 for '{s.agent}', which searches in JAX alone, as save-rl evaluate does"
        require(budget == 0 or self.agent.searches_anywhere, "budget", budget, allowed)
        with jax.default_device(self._device):
            if budget > 0:
                require(masks is None, "mask", "an array", "left out with a budget: states have it")
                found, prior = self._search(states, simulator, budget, c, seed)
            else:
                seen, masks = self._shown(states, simulator, masks)
                prior, _ = self._evaluate(seen, masks)
                visits = np.zeros(prior.shape, np.int32)
                found = SearchResult(prior, visits, visits > 0)
        action = self._choose(found, budget, c, seed)
        if self.agent.prior == "q":
            prior = self._scale * prior
        q_values = self._scale * found.q_values if budget > 0 else prior
        return Decision(action, q_values, prior, found.visits, found.explored, found.tree)

    def _choose(self, found: SearchResult, budget: int, c: float, seed: int) -> np.ndarray:
        """Return the final actions `[B]`, chosen as in tests."""
        lanes, num_actions = found.q_values.shape
        luck = np.random.default_rng((seed, 1)).integers(2**32, size=lanes, dtype=np.uint32)
        action, none = np.zeros(lanes, np.int64), (lanes, 0)
        act_all(
            np.arange(lanes), luck, budget > 0, ACTS.index(self.agent.act), c, np.full(lanes, -1.0),
            np.ascontiguousarray(found.q_values, np.float32),
            np.ascontiguousarray(found.visits, np.int32), np.zeros(none, np.int32),
            np.zeros(none, np.uint8), num_actions, action,
        )  # fmt: skip
        return action

    def _search(
        self, states: list[State], simulator: Simulator | None, budget: int, c: float, seed: int
    ) -> tuple[SearchResult, np.ndarray]:
        """Return what a search from these states found, and the prior of the roots `[B, A]`."""
        sim = self.simulator if simulator is None else simulator
        if self._pool is None or self._pool_of != (id(sim), len(states)):
            self._fitting(sim)
            self._pool, self._pool_of = tree_pool([sim], [len(states)]), (id(sim), len(states))
        pool, self._pool = self._pool, None  # a search that fails leaves none behind
        first: list[np.ndarray] = []

        def look(observation: Any, mask: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            prior, value = self._evaluate(observation, mask)
            first[:] = first or [prior]
            return prior, value

        found = search_list(
            sim, states, look, self.agent.test_search, seed, budget=budget, c=c,
            discount=self.settings.discount, return_tree=True, pool=pool, scale=self._scale,
        )  # fmt: skip
        self._pool = pool
        # The pool's arrays and trees are those of the next search, too.
        copies = SearchResult(*(np.array(x) for x in found[:3]))
        trees = trees_of(found.tree, len(states), self.agent.test_search, sim, self._scale)
        return copies._replace(tree=trees), first[0]

    def _evaluate(self, observation: Any, mask: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return priors `[n, A]` and values `[n]` of observations `[n, ...]`."""
        count = len(mask)
        missing = batch_size(count) - count
        (observation,) = trim(observation)
        observation, mask = jax.tree.map(
            lambda x: np.concatenate([x, np.repeat(x[-1:], missing, 0)]), (observation, mask)
        )
        prior, value = self._rows(self._params, observation, mask)
        return np.asarray(prior)[:count], np.asarray(value)[:count]

    def _shown(
        self, states: list[Any], simulator: Simulator | None, masks: Any
    ) -> tuple[Any, np.ndarray]:
        """Return observations `[B, ...]` and masks, `[B, A]` or `[B, 0]`; of states if there is a
        simulator."""
        actions = self.num_actions
        if simulator is not None:
            require(masks is None, "mask", "an array", "left out with a simulator, which has it")
            self._fitting(simulator)
            seen = [simulator.observe(state) for state in states]
            if hasattr(simulator, "action_mask"):
                masks = np.stack([allowed_actions(simulator, x, actions) for x in states])
        else:
            seen = states
            if self.interface.masked and masks is None:
                raise InputError(
                    "mask: this policy's environment forbids actions; give the allowed ones of "
                    "this observation, mask=simulator.action_mask(state)."
                )
        if masks is not None:
            masks = np.asarray(masks)
            wanted = (len(states), actions)
            fits = masks.shape == wanted and masks.dtype.kind in "biu" and masks.any(-1).all()
            require(fits, "mask", f"{masks.dtype} {list(masks.shape)}",
                    f"truth values {list(wanted)}, with an action allowed in each row")  # fmt: skip
            masks = masks.astype(np.bool_)
        else:
            masks = np.zeros((len(states), 0), np.bool_)
        return self._stack([named(x) for x in seen]), masks

    def _stack(self, seen: list[dict[str, np.ndarray]]) -> Any:
        """Return observations as one batch; refuse those of another environment."""
        arrays = {}
        for name, kind, shape in self.interface.observation:
            told = f"'{name}' of an observation" if name else "an observation"
            for x in seen:
                array = x.get(name)
                wrong = "nothing" if array is None else f"{array.dtype} {list(array.shape)}"
                fits = array is not None and array.shape == shape and array.dtype.kind in "biuf"
                require(fits, "state", f"{wrong} as {told}", f"{_kind_name(kind)} {list(shape)}; "
                        "with a budget, or with simulator=, give a state")  # fmt: skip
            arrays[name] = np.stack([x[name] for x in seen]).astype(kind)
            require(bool(np.isfinite(arrays[name]).all()), "state", f"{told} with NaN", "finite")
        return arrays[""] if set(arrays) == {""} else arrays

    def _fitting(self, simulator: Simulator) -> Simulator:
        """Return a simulator, if it has the actions and observations of this policy."""
        layout, mine = python_layout(simulator), self.interface
        require(layout.num_actions == mine.num_actions, "simulator",
                f"one with {layout.num_actions} actions",
                f"one with {mine.num_actions}, like that of this policy ('{self.settings.env}')",
                )  # fmt: skip
        theirs, own = ({n: list(s) for n, _, s in x.observation} for x in (layout, mine))
        require(theirs == own, "simulator", f"one with observations {_shapes(theirs)}",
                f"one with {_shapes(own)}, like that of this policy ('{self.settings.env}')",
                )  # fmt: skip
        return simulator

    def player(self, budget: int | None = None, *, c: float | None = None) -> Player:
        """Return it as a player of `policy.simulator`, for `save_rl.players.play`."""
        sim, budget = self.simulator, self.settings.budget if budget is None else budget

        def move(state: State, rng: np.random.Generator) -> Move:
            found = self.act(state, budget, c=c, simulator=sim, seed=int(rng.integers(2**31)))
            made = make_move(sim, state, found.action, rng, self._remark(found))
            if self.agent.prior != "q":  # else values before and after have the same units
                return made
            values = RootValues(found.prior, found.q_values, found.explored, int(found.action))
            return made._replace(values=values)

        return move

    def _remark(self, found: Decision) -> str:
        """Return a few words about a decision, for pictures."""
        value, tried = f"Q {found.q_values[found.action]:.2f}", int(found.explored.sum())
        if tried == 0:
            return value if self.agent.prior == "q" else ""
        actions = "action" if tried == 1 else "actions"
        return f"{value} ({found.visits[found.action]} visits, {tried} {actions} tried)"

    def save(self, path: str | Path) -> Path:
        """Write it to one small file, which `save_rl.load` reads; return the path."""
        path = Path(path)
        require(path.suffix == _FILE, "save", f"'{path}'", f"a file that ends in {_FILE}")
        path.parent.mkdir(parents=True, exist_ok=True)
        header = Header(self.settings, self.seed, self.interface)
        policy_file.write_policy(path, header, self._params)
        return path


def _kind_name(kind: str) -> str:
    """Return the name of a dtype."""
    return np.dtype(kind).name


def _shapes(observation: dict[str, list[int]]) -> str:
    """Return the shapes of an observation in words."""
    return ", ".join(f"{name} {shape}".strip() for name, shape in observation.items())


def load(
    path: str | Path, *, seed: int | None = None, last: bool = False, trust: bool = False,
    simulator: Simulator | None = None, device: str = "auto",
) -> Policy:  # fmt: skip
    """Return the trained agent of a run, given its folder, or of a file that `Policy.save` wrote.

    seed: of a run with several; default the first. last: the last parameters of a run, even if it
    has kept its best. trust: allow a run or a file to import and run the `package.module:factory`
    that it names; an environment that this process has made or trained on needs no permission.
    simulator: of the environment, to use instead of making one by its name. device: see `train`.
    """
    path, chosen = Path(path), select_device(device)
    if path.is_file():
        for option, given in (("seed", seed is not None), ("last", last)):
            require(not given, option, "a value", f"left out with '{path}', one policy's file")
        return _load_file(path, chosen, trust, simulator)
    if path.suffix == _FILE and not path.exists():
        raise InputError(f"load: there is no file '{path}'.")
    settings = checked_settings(path, "load")
    _require_no_memory(settings, path)
    require_trust_in(settings, path, trust, "load", env=simulator is None)
    like, interface = _environment(settings, simulator)
    seeds = settings.seeds
    if seed is not None:
        require(seed in seeds, "seed", seed, f"one of the run's: {', '.join(map(str, seeds))}")
    index = 0 if seed is None else seeds.index(seed)
    template = _template(settings, like, interface)
    every = jax.tree.map(lambda x: jax.ShapeDtypeStruct((len(seeds), *x.shape), x.dtype), template)
    try:
        found, _ = read_params(path, every, "load", last)
    except InputError as error:
        if simulator is None:
            raise
        raise InputError(f"simulator: it does not fit the run in '{path}': {error}") from error
    params = jax.tree.map(lambda x: x[index], found)
    header = Header(settings, seeds[index], interface)
    return Policy(header, params, like, device=chosen, trust=trust, simulator=simulator)


def _load_file(path: Path, device: Any, trust: bool, simulator: Simulator | None) -> Policy:
    header, sha256 = policy_file.read_header(path)
    settings, _, interface = header
    settings.check()
    _require_no_memory(settings, path)
    require_trust_in(settings, path, trust, "load", env=False)
    like = SimpleNamespace(
        num_actions=interface.num_actions, num_states=interface.num_states,
        actions_per_edge=interface.actions_per_edge,
    )  # fmt: skip
    template = _template(settings, like, interface)
    leaves = policy_file.read_params(path, template, sha256)
    params = jax.tree.unflatten(jax.tree.structure(template), leaves)
    return Policy(header, params, like, device=device, trust=trust, simulator=simulator)


def _require_no_memory(settings: TrainSettings, path: Path) -> None:
    if get_agent(settings.agent).recurrent:
        raise InputError(
            f"load: '{path}' is of '{settings.agent}', which remembers an episode and can't act on "
            "a single state; save-rl watch and save-rl evaluate play it."
        )


def _template(settings: TrainSettings, like: Any, interface: Interface) -> Any:
    """Return shapes and dtypes of the parameters of one network."""
    learning = make_learning(settings, like, interface.example())
    return jax.eval_shape(learning.initial, jax.random.PRNGKey(0)).params


def _environment(
    settings: TrainSettings, simulator: Simulator | None = None
) -> tuple[Any, Interface]:
    """Return the environment of a run, or the simulator given for it, and what it looks like."""
    if simulator is not None:
        env, on_host = simulator, True
    else:
        env = make(settings.env, settings.seeds[0], **settings.all_env_options)
        on_host = runs_on_host(env, settings.env)
    if on_host:
        layout = python_layout(env)
        actions, observation = layout.num_actions, layout.observation
    else:
        key = jax.eval_shape(lambda: jax.random.PRNGKey(0))
        seen = jax.eval_shape(lambda key: env.observe(env.reset(key)), key)
        shown = seen if isinstance(seen, dict) else {"": seen}
        observation = tuple((name, x.dtype.str, tuple(x.shape)) for name, x in shown.items())
        actions = env.num_actions
    states: Any = getattr(env, "num_states", None)
    per_edge: Any = getattr(env, "actions_per_edge", 1)
    masked = hasattr(env, "action_mask")
    return env, Interface(
        int(actions), observation, masked, None if states is None else int(states), int(per_edge)
    )

"""Settings of a training run, with the paper's values as defaults."""

from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

import tyro

from save_rl.agents import Agent, get_agent
from save_rl.envs import ENVIRONMENTS
from save_rl.envs.chance import OPTION
from save_rl.errors import InputError, require, require_numbers, unknown_name
from save_rl.learning.r2d2_settings import R2D2Settings
from save_rl.learning.schedules import LinearSchedule, constant
from save_rl.search.rules import Rule
from save_rl.training.layer_settings import LayerSettings
from save_rl.training.options import check_kinds, named_options

# General options without effect on recurrent agents, and the options to use instead.
_NOT_RECURRENT = {
    "--network": "--r2d2.network.profile",
    "--network.hidden": "--r2d2.network.profile",
    "--network.filters": "--r2d2.network.profile",
    "--optimizer": "",
    "--mixed-precision": "",
    "--reward-scale": "",
    "--discount": "--r2d2.sequences.gamma",
    "--learning-rate": "--r2d2.network.learning-rate",
    "--batch": "--r2d2.replay.batch",
    "--replay": "--r2d2.replay.capacity",
    "--min-replay": "--r2d2.replay.minimum",
    "--replay-ratio": "--r2d2.replay.samples-per-insert",
    "--epsilon-start": "",
    "--epsilon-end": "",
    "--epsilon-episodes": "",
    "--epsilon-steps": "",
    "--beta-episodes": "",
    "--temperature": "",
    "--n-step": "--r2d2.sequences.n",
    "--double-q": "",
    "--curriculum": "",
    "--curriculum-steps": "",
    "--target-period": "--r2d2.target-period",
}


# Kinds of final actions that need a search, and what they act on.
_NEEDS_SEARCH = {"visits": "visit counts", "counts": "visit counts", "gumbel": "its search"}


@dataclass(frozen=True)
class TrainSettings:
    """Settings of one training run; `config.json` holds all of them."""

    env: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="ENV")] = "tightrope"
    """Environment by name, `atari/GAME`, `gym/ID` for Gymnasium's, or `package.module:factory`."""
    agent: str = "save"
    """Agent by name; `save-rl agents` lists them."""
    episodes: int = 1_000_000  # paper B.3
    """Training episodes per seed."""
    steps: int = 0
    """Limit of real steps per seed, besides --episodes; 0 for none."""
    budget: int = 10  # paper B.3
    """Simulations per decision while training."""
    seeds: Annotated[tuple[int, ...], tyro.conf.arg(name="seed")] = (0,)
    """Seeds; they train in parallel, each with its own environment."""
    env_options: Annotated[dict[str, Any], tyro.conf.Suppress] = field(default_factory=dict)
    """Options of the environment."""
    stochastic: Literal["auto", "true", "false"] = "auto"
    """The simulator has chance: its `step(state, action, seed)` takes a seed, and searches average
    over outcomes. `auto` is what the simulator says; `gym/ID` is tried out."""
    network: str = "auto"
    """`mlp`, `conv` for images, `dict` for dictionaries of arrays, `graph`, `table` if observations
    are state numbers, or your own, `package.module:factory`; `auto` chooses by the observations.
    `graph-sum` adds up where `graph` averages, and `graph-plain` doesn't normalise either."""
    network_settings: Annotated[LayerSettings, tyro.conf.arg(name="network")] = field(
        default_factory=LayerSettings
    )
    """Sizes of the layers."""
    mixed_precision: bool = False
    """Keep the edges of a graph network in bfloat16."""
    lanes: int = 64  # paper A, actors
    """Episodes played in parallel."""
    c: float = 2.0  # paper A.2
    """Exploration constant of the search, for rewards divided by --reward-scale."""
    reward_scale: float = 1.0
    """Size of typical returns: search and learning work with rewards divided by it. 0 measures it
    while training. Metrics and tests show the rewards as they are."""
    discount: float = 0.99  # not given in the paper
    """Discount factor γ."""
    learning_rate: float = 2e-4  # paper A.1
    """Learning rate of Adam, or of another --optimizer."""
    optimizer: str = "adam"  # paper A.1
    """`adam`, or your own, `package.module:factory`: it takes the learning rate and returns an
    optax.GradientTransformation."""
    batch: int = 16  # paper A.1
    """Transitions per update."""
    replay: int = 4000  # paper A.1
    """Transitions kept."""
    min_replay: int = 100  # paper A.1
    """Transitions before learning starts."""
    replay_ratio: int = 4  # paper A.1
    """Average number of times each transition is replayed."""
    epsilon_start: float = 1.0  # paper A.1
    """ε of the first episode: the probability of a random action, averaged over its steps."""
    epsilon_end: float = 0.01  # paper A.1
    """ε after --epsilon-episodes or --epsilon-steps."""
    epsilon_episodes: float = 1e4  # paper A.1
    """Episodes over which ε falls from its start to its end."""
    epsilon_steps: float = 0.0
    """Real steps over which ε falls, instead of --epsilon-episodes; it is then the same at every
    step of an episode. 0 counts episodes."""
    beta_q: float | None = None
    """Weight of the Q-learning loss; default the agent's, annealed in Construction tasks."""
    beta_a: float | None = None
    """Weight of the amortization loss; default the agent's, annealed in Construction tasks."""
    beta_episodes: float | None = None
    """Episodes over which annealed weights change; default the agent's, 5e4."""
    temperature: float = 1.0  # paper 3.3
    """τ of the softmax in the amortization loss; lower values react to smaller differences."""
    n_step: int | None = None
    """Steps of reward in the targets of values before they bootstrap; default the agent's, 1 for
    all but `gumbel`. Targets stop at the end of an episode."""
    double_q: bool = False
    """Double Q-learning: the network that learns chooses the action of the next state, the target
    network values it."""
    curriculum: str = "auto"
    """Curriculum over the levels of an environment: `linear`, `adaptive` (rises when the agent
    solves a level) or `none`; `auto` is linear in Construction tasks and adaptive in marble-run."""
    # Bapst et al. 2019, supplement (docs/construction/training.md#curricula):
    # 4e4 replayed transitions, each replayed 4 times
    curriculum_steps: int = 10_000
    """Real steps over which a linear curriculum rises to the hardest level."""
    target_period: int = 100  # paper A.1
    """Updates between copies to the target network (made at the end of a lock-step)."""
    chunk: int = 16
    """Lock-steps per compiled call; a run can stop and resume between chunks."""
    test_episodes: int = 0
    """Test episodes at each line of metrics; 0 for none."""
    test_budget: int = -1
    """Budget of those tests; -1 for the training budget (0 if the agent trains without search)."""
    r2d2: R2D2Settings = field(default_factory=R2D2Settings)
    """Only for the recurrent agents `r2d2`, `r2d2-controlled` and `r2d2-save`."""

    @property
    def all_env_options(self) -> dict[str, Any]:
        """Options of the environment, with what was said about chance."""
        said = {} if self.stochastic == "auto" else {OPTION: self.stochastic == "true"}
        return {**said, **self.env_options}

    @property
    def epsilon(self) -> LinearSchedule:
        """The mean ε of an episode, as a schedule over episodes, or over `epsilon_steps`."""
        if get_agent(self.agent).recurrent:
            from save_rl.learning.exploration import epsilon_ladder

            return constant(float(epsilon_ladder(self.lanes).mean()))
        over = self.epsilon_steps or self.epsilon_episodes
        return LinearSchedule(self.epsilon_start, self.epsilon_end, over)

    def mean_epsilon(self, episodes: Any, env_steps: Any) -> Any:
        """Return the mean ε of an episode after this many episodes and real steps."""
        return self.epsilon.at(env_steps if self.epsilon_steps else episodes)

    def lane_epsilon(self, episodes: Any, env_steps: Any, step: Any, length: Any) -> Any:
        """Return the probability of a random action in lanes `[lanes]` of one seed.

        step: `[lanes]`, 0-based in their episodes. length: of a typical episode. A schedule over
        real steps is for any simulator, where the length of a typical episode says little.
        """
        mean = self.mean_epsilon(episodes, env_steps)
        if self.epsilon_steps:
            return mean + 0.0 * step
        from save_rl.learning.exploration import epsilon_at_step  # imports NumPy

        return epsilon_at_step(mean, step, length)

    @property
    def betas(self) -> tuple[LinearSchedule, LinearSchedule]:
        """β_Q and β_A, as schedules over episodes."""
        agent = get_agent(self.agent)
        annealed = self.env in ENVIRONMENTS and ENVIRONMENTS[self.env].curriculum != ""
        rows = (agent.annealed_q, agent.annealed_a) if annealed else (agent.beta_q, agent.beta_a)
        given = (self.beta_q, self.beta_a)
        beta_q, beta_a = (
            row if beta is None else constant(beta) for row, beta in zip(rows, given, strict=True)
        )
        if self.beta_episodes is None:
            return beta_q, beta_a
        return (
            replace(beta_q, episodes=self.beta_episodes),
            replace(beta_a, episodes=self.beta_episodes),
        )

    @property
    def horizon(self) -> int:
        """Steps of reward in the targets of values."""
        return get_agent(self.agent).n_step if self.n_step is None else self.n_step

    @property
    def updates_per_step(self) -> int:
        """Updates after each lock-step, so that the replay ratio holds."""
        return self.lanes * self.replay_ratio // self.batch

    def check(self) -> None:
        """Refuse impossible settings before any work."""
        check_kinds(self)
        require_numbers(named_options(self))
        agent = get_agent(self.agent)
        require(
            agent.learns, "--agent", repr(self.agent), "an agent that learns ('uct' only searches)"
        )
        require(self.episodes > 0, "--episodes", self.episodes, "at least 1")
        require(self.steps >= 0, "--steps", self.steps, "0 (no limit) or more")
        require(self.budget >= 0, "--budget", self.budget, "0 or more")
        needed = _NEEDS_SEARCH.get(agent.act, "")
        allowed = f"at least 1 for '{self.agent}', which acts on {needed}"
        require(self.budget > 0 or not needed, "--budget", self.budget, allowed)
        learns = agent.amortization_loss in ("explored", "weighted")
        allowed = f"at least 1 for '{self.agent}', which learns from actions that were tried"
        require(self.budget > 0 or not learns, "--budget", self.budget, allowed)
        require(len(self.seeds) > 0, "--seed", "()", "at least one number")
        require(len(set(self.seeds)) == len(self.seeds), "--seed", self.seeds, "different numbers")
        require(min(self.seeds) >= 0, "--seed", min(self.seeds), "0 or more")
        require(self.c >= 0, "--c", self.c, "0 or more")
        for option, beta in (("--beta-q", self.beta_q), ("--beta-a", self.beta_a)):
            require(beta is None or beta >= 0, option, beta, "0 or more")
        require(self.chunk > 0, "--chunk", self.chunk, "at least 1")
        require(self.test_episodes >= 0, "--test-episodes", self.test_episodes, "0 or more")
        require(self.test_budget >= -1, "--test-budget", self.test_budget, "-1 or more")
        self._check_effects(agent)
        if agent.recurrent:
            require(self.lanes > 0, "--lanes", self.lanes, "at least 1")
            self.r2d2.check()
        else:
            self._check_transitions()

    def _check_effects(self, agent: Agent) -> None:
        """Refuse settings that this agent ignores."""
        given, usual = dict(named_options(self)), dict(named_options(TrainSettings()))
        for option, value in given.items():
            other = option in _NOT_RECURRENT if agent.recurrent else option.startswith("--r2d2.")
            if other and value != usual[option]:
                instead = _NOT_RECURRENT.get(option)
                hint = f"use {instead}" if instead else "leave it out"
                raise InputError(f"{option}: {value} has no effect on '{self.agent}'; {hint}.")
        for option, value, uses in (
            ("--n-step", self.n_step, ("td", "td-value")), ("--double-q", self.double_q, ("td",)),
        ):  # fmt: skip
            if value != usual[option] and agent.value_loss not in uses:
                hint = f"has no effect on '{self.agent}'; leave it out"
                raise InputError(f"{option}: {value} {hint}.")
        if agent.search == Rule.GUMBEL and self.c != usual["--c"]:
            raise InputError(f"--c: {self.c} has no effect on '{self.agent}'; leave it out.")
        if agent.recurrent:
            learned = agent.amortization_loss != "none"
            allowed = f"left out with '{self.agent}', which learns nothing from searches"
            require(learned or not self.beta_a, "--beta-a", self.beta_a, allowed)
            allowed = f"left out with '{self.agent}', which uses what its searches find"
            wasted = self.r2d2.discard_search and agent.search is not None
            require(not wasted, "--r2d2.discard-search", "true", allowed)

    def _check_transitions(self) -> None:
        """Check the settings of agents that learn from transitions."""
        require(0 <= self.discount <= 1, "--discount", self.discount, "between 0 and 1")
        require(self.learning_rate > 0, "--learning-rate", self.learning_rate, "above 0")
        self.network_settings.check()
        known = self.optimizer == "adam" or ":" in self.optimizer
        require(known, "--optimizer", repr(self.optimizer), "'adam' or package.module:factory")
        allowed = "above 0, or 0 to measure it"
        require(self.reward_scale >= 0, "--reward-scale", self.reward_scale, allowed)
        allowed = f"1 with '{self.agent}', which samples from values as they are"
        sampled = get_agent(self.agent).act == "softmax"
        require(not sampled or self.reward_scale == 1, "--reward-scale", self.reward_scale, allowed)
        require(self.batch > 0, "--batch", self.batch, "at least 1")
        require(self.replay_ratio > 0, "--replay-ratio", self.replay_ratio, "at least 1")
        require(
            self.lanes > 0 and self.lanes * self.replay_ratio % self.batch == 0,
            "--lanes",
            self.lanes,
            "positive, and lanes x replay-ratio a multiple of the batch "
            f"({self.batch}), so that every lock-step is followed by whole updates",
        )
        require(self.min_replay >= 0, "--min-replay", self.min_replay, "0 or more")
        require(
            self.replay >= max(self.batch, self.min_replay, self.lanes),
            "--replay",
            self.replay,
            f"at least {max(self.batch, self.min_replay, self.lanes)} (batch, min-replay, lanes)",
        )
        for option, value in (
            ("--epsilon-start", self.epsilon_start), ("--epsilon-end", self.epsilon_end),
        ):  # fmt: skip
            require(0 <= value <= 1, option, value, "between 0 and 1")
        require(self.epsilon_episodes > 0, "--epsilon-episodes", self.epsilon_episodes, "above 0")
        allowed = "above 0, or 0 to count episodes"
        require(self.epsilon_steps >= 0, "--epsilon-steps", self.epsilon_steps, allowed)
        rows = max(self.replay // max(self.lanes, 1), 1)
        allowed = f"from 1 to {rows}, the steps of a lane that --replay holds"
        fits = self.n_step is None or 1 <= self.n_step <= rows
        require(fits, "--n-step", self.n_step, allowed)
        within = self.beta_episodes is None or self.beta_episodes > 0
        require(within, "--beta-episodes", self.beta_episodes, "above 0")
        require(self.temperature > 0, "--temperature", self.temperature, "above 0")
        softmax = get_agent(self.agent).amortization_loss in ("cross-entropy", "explored")
        allowed = f"1 with '{self.agent}', whose loss has none"
        require(softmax or self.temperature == 1, "--temperature", self.temperature, allowed)
        from save_rl.learning.curriculum import CURRICULA  # imports NumPy; help pages don't

        if self.curriculum not in ("auto", *CURRICULA):
            raise unknown_name("curriculum", self.curriculum, ("auto", *CURRICULA), "--curriculum")
        require(self.curriculum_steps > 0, "--curriculum-steps", self.curriculum_steps, "above 0")
        require(self.target_period > 0, "--target-period", self.target_period, "at least 1")

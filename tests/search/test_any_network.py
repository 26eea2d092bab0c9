"""`save_rl.search(simulator, state, evaluate)`: any function evaluates; its mistakes are named."""

import os
import signal
import time

import numpy as np
import pytest

import save_rl
from save_rl import search
from save_rl.errors import InputError, RunError
from tests.search import reference
from tests.search.reference import Mdp
from tests.search.table_simulators import Place, TableSimulator

STATES, ACTIONS = 7, 4


def random_mdp(seed, rule="save"):
    rng = np.random.default_rng(seed)
    mask = rng.random((STATES, ACTIONS)) < 0.8
    mask[:, 0] = True
    prior = rng.random((STATES, ACTIONS))
    if rule == "puct":
        prior = np.where(mask, np.exp(prior), 0)
        prior /= prior.sum(1, keepdims=True)
    return Mdp(
        next_state=rng.integers(STATES, size=(STATES, ACTIONS)),
        reward=rng.random((STATES, ACTIONS)),
        terminal=rng.random((STATES, ACTIONS)) < 0.2,
        mask=mask,
        prior=prior,
        value=rng.random(STATES),
    )


def refuse(*_):
    raise AssertionError("the literal search found a tie, which this MDP should not have")


@pytest.fixture(scope="module")
def mdp():
    return random_mdp(3)


@pytest.fixture(scope="module")
def sim(mdp):
    return TableSimulator(mdp)


@pytest.mark.parametrize("seed", range(4))
def test_saves_rule_agrees_with_the_equations(seed):
    mdp = random_mdp(seed)
    found = save_rl.search(
        TableSimulator(mdp), Place(2, 0), lambda seen: mdp.prior[seen], budget=20, c=0.7
    )
    expected = reference.search(mdp, 2, "save", 20, 0.7, 0.99, refuse, 1e-9)
    np.testing.assert_array_equal(found.visits, expected.visits)
    np.testing.assert_allclose(found.q_values, expected.q_values, rtol=1e-5)
    np.testing.assert_array_equal(found.explored, expected.explored)
    assert found.action == np.where(expected.explored, expected.q_values, -np.inf).argmax()
    np.testing.assert_allclose(found.prior, np.where(mdp.mask[2], mdp.prior[2], -np.inf), rtol=1e-6)


def test_values_of_its_own_replace_the_maximum(mdp, sim):
    """After one simulation from the best prior: (Qθ + r + γ V) / 2 (equation 4)."""
    found = save_rl.search(
        sim, Place(1, 0), lambda seen: (mdp.prior[seen], mdp.value[seen]), budget=1, discount=0.5
    )
    best = np.where(mdp.mask[1], mdp.prior[1], -np.inf).argmax()
    after = 0 if mdp.terminal[1, best] else 0.5 * mdp.value[mdp.next_state[1, best]]
    assert found.action == best
    assert found.q_values[best] == pytest.approx(
        (mdp.prior[1, best] + mdp.reward[1, best] + after) / 2, rel=1e-6
    )


def test_puct_takes_logits_and_acts_on_visits():
    mdp = random_mdp(5, "puct")

    def evaluate(seen):
        return np.log(np.maximum(mdp.prior[seen], 1e-30)) + 3.0, mdp.value[seen]

    found = search(TableSimulator(mdp), Place(4, 0), evaluate, budget=25, c=1.3, rule="puct")
    # PUCT's first selection is a tie of all actions (√0); only the distribution of visits after
    # many simulations is compared, through the search that is compared with the equations itself.
    expected = search.puct(TableSimulator(mdp), [Place(4, 0)], evaluate, budget=25, c=1.3)
    np.testing.assert_array_equal(found.visits, expected.visits[0])
    assert found.visits[found.action] == found.visits.max()
    np.testing.assert_allclose(found.prior, np.where(mdp.mask[4], mdp.prior[4], -np.inf), rtol=1e-5)


def test_uct_needs_no_function(sim, mdp):
    found = search(sim, Place(0, 0), rule="uct", budget=30)
    expected = search.uct(sim, [Place(0, 0)], budget=30)
    np.testing.assert_array_equal(found.visits, expected.visits[0])
    np.testing.assert_array_equal(found.q_values, expected.q_values[0])
    with_values = search(sim, Place(0, 0), lambda s: (mdp.prior[s], mdp.value[s]), rule="uct")
    assert with_values.visits.sum() == 10


def test_several_states_share_every_call(mdp, sim):
    calls = []

    def evaluate(seen):
        calls.append(len(seen))
        return mdp.prior[seen]

    places = [Place(s, 0) for s in (0, 1, 2)]
    found = search.batch(sim, places, evaluate, budget=6)
    assert calls[0] == 3
    assert len(calls) <= 7
    assert found.visits.sum(1).tolist() == [6, 6, 6]
    assert found.action.shape == (3,)
    assert len(found.tree) == 3


class Tensor:
    """What PyTorch returns, as far as NumPy sees it."""

    def __init__(self, array, grad=False):
        self.array, self.grad = array, grad
        self.shape = array.shape

    def __array__(self, dtype=None, copy=None):
        if self.grad:
            raise RuntimeError("Can't call numpy() on Tensor that requires grad.")
        return np.asarray(self.array, dtype)


@pytest.mark.parametrize(
    "form",
    [
        lambda q, v: q.tolist(),
        lambda q, v: Tensor(q),
        lambda q, v: [q],  # outputs of an ONNX session
        lambda q, v: [q, v],
        lambda q, v: (Tensor(q), Tensor(v)),
        lambda q, v: q.astype(np.float16).astype(np.float64),
    ],
)
def test_whatever_numpy_reads_will_do(mdp, sim, form):
    def evaluate(seen):
        q = np.round(mdp.prior[seen] * 64) / 64  # exact in half precision
        return form(q, q.max(1))

    found = search(sim, Place(2, 0), evaluate, budget=8, seed=3)
    plain = search(sim, Place(2, 0), lambda s: np.round(mdp.prior[s] * 64) / 64, budget=8, seed=3)
    assert found.prior.shape == (ACTIONS,)
    assert found.visits.sum() == plain.visits.sum() == 8


@pytest.mark.parametrize(
    ("said", "message"),
    [
        (
            lambda n: np.zeros((n, 5)),
            "evaluate: priors of shape [1, 5] is not possible; it must be [1, 4], a row of actions "
            "for each state.",
        ),
        (
            lambda n: np.zeros(4),
            "evaluate: priors of shape [4] is not possible; it must be [1, 4], a row of actions "
            "for each state.",
        ),
        (
            lambda n: (np.zeros((n, 4)), np.zeros((n, 1))),
            "evaluate: values of shape [1, 1] is not possible; it must be [1], one value for each "
            "state.",
        ),
        (
            lambda n: np.full((n, 4), np.nan),
            "evaluate: a number of [nan] in its priors is not possible; it must be finite in "
            "single precision.",
        ),
        (
            lambda n: np.full((n, 4), 1e300),
            "evaluate: a number of [inf] in its priors is not possible; it must be finite in "
            "single precision.",
        ),
        (
            lambda n: (np.zeros((n, 4)), np.full(n, -np.inf)),
            "evaluate: a number of [-inf] in its values is not possible; it must be finite in "
            "single precision.",
        ),
        (
            lambda n: np.full((n, 4), -np.inf),
            "evaluate: priors of -inf for all allowed actions of a state.",
        ),
        (
            lambda n: np.zeros((n, 4), complex),
            "evaluate: priors of type complex128 is not possible; it must be real numbers.",
        ),
        (
            lambda n: Tensor(np.zeros((n, 4)), grad=True),
            "evaluate: its priors can't be read as an array (Can't call numpy() on Tensor that "
            "requires grad).",
        ),
        (
            lambda n: None,
            "evaluate: priors of shape [] is not possible; it must be [1, 4], a row of actions "
            "for each state.",
        ),
    ],
)
def test_a_wrong_evaluation_is_said_in_a_sentence(sim, said, message):
    with pytest.raises(InputError) as refused:
        search(sim, Place(0, 0), lambda seen: said(len(seen)))
    assert str(refused.value) == message


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rule": "sav"}, "rule: there is no rule 'sav'; known: puct, save, uct. Did you mean"),
        ({"budget": 0}, "budget: 0 is not possible; it must be at least 1."),
        ({"c": -1}, "c: -1 is not possible; it must be 0 or more."),
        ({"discount": 2}, "discount: 2 is not possible; it must be between 0 and 1."),
        ({"evaluate": None}, "evaluate: the rule 'save' needs one; 'uct' does without."),
        ({"evaluate": 3}, "evaluate: 3 is not possible; it must be a function."),
        ({"rule": "puct"}, "evaluate: the rule 'puct' needs (priors, values), not priors alone."),
        ({"simulator": object()}, "simulator: it is not a Python simulator ("),
    ],
)
def test_a_wrong_question_is_refused(sim, options, message):
    given = {"simulator": sim, "evaluate": lambda seen: np.zeros((len(seen), 4)), **options}
    with pytest.raises(InputError) as refused:
        search(given.pop("simulator"), Place(0, 0), given.pop("evaluate"), **given)
    assert str(refused.value).startswith(message)


def test_a_simulator_that_fails_is_shown_with_its_traceback(mdp):
    broken = TableSimulator(mdp, fails=frozenset((0, a) for a in range(ACTIONS)))
    with pytest.raises(RunError, match=r"failed in a search with:\n(.|\n)*is not possible in stat"):
        search(broken, Place(0, 0), lambda seen: mdp.prior[seen])


def test_an_error_of_the_function_is_its_own(sim):
    def evaluate(seen):
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        search(sim, Place(0, 0), evaluate)


def test_one_interrupt_ends_a_function_that_never_returns(sim):
    def evaluate(seen):
        os.kill(os.getpid(), signal.SIGINT)
        while True:
            time.sleep(0.01)

    with pytest.raises(KeyboardInterrupt):
        search(sim, Place(0, 0), evaluate)


def test_the_module_is_still_a_module(sim, mdp):
    import save_rl.search as module

    assert module is search is save_rl.search
    assert "search.save" in (module.__doc__ or "")
    found = search.save(sim, [Place(2, 0)], lambda seen: mdp.prior[seen], budget=5)
    called = module(sim, Place(2, 0), lambda seen: mdp.prior[seen], budget=5)
    np.testing.assert_array_equal(found.visits[0], called.visits)


def test_a_tree_draws_itself(sim, mdp, tmp_path):
    tree = search(sim, Place(2, 0), lambda seen: mdp.prior[seen], budget=8).tree
    svg = tree._repr_svg_()
    assert svg.startswith("<svg")
    assert svg.count("data-node") == 9  # the root and a node for each simulation
    tree.save(tmp_path / "tree.svg", title="nine nodes")
    assert ">nine nodes<" in (tmp_path / "tree.svg").read_text()
    tree.save(tmp_path / "tree.png")
    data = (tmp_path / "tree.png").read_bytes()
    assert data.startswith(b"\x89PNG\r\n")
    assert repr(tree) == "<tree of 9 nodes; tree.save('tree.png') draws it>"
    with pytest.raises(InputError) as refused:
        tree.save(tmp_path / "tree.jpg")
    assert str(refused.value) == (
        f"path: '{tmp_path}/tree.jpg' is not possible; it must be a file that ends in .svg or .png."
    )


def test_a_png_shows_what_the_svg_does(sim, mdp, tmp_path):
    """The circle of the root is where the SVG has it, in its colour, at two pixels per unit."""
    import io
    import xml.etree.ElementTree as ET

    from matplotlib.image import imread

    from save_rl.search.raster import png

    svg = search(sim, Place(2, 0), lambda seen: mdp.prior[seen], budget=8).tree.svg()
    root, image = ET.fromstring(svg), imread(io.BytesIO(png(svg)))
    assert image.shape[:2] == (2 * int(root.attrib["height"]), 2 * int(root.attrib["width"]))
    groups = [g for g in root if g.attrib.get("data-node")]
    seen = 0
    for group in groups:
        for circle in (x for x in group if x.tag.endswith("circle")):
            at = circle.attrib
            pixel = image[round(2 * float(at["cy"])), round(2 * float(at["cx"])), :3]
            colour = [int(at["fill"][i : i + 2], 16) / 255 for i in (1, 3, 5)]
            np.testing.assert_allclose(pixel, colour, atol=0.01)
            seen += 1
    assert seen >= 3


@pytest.mark.parametrize("rule", ["save", "uct", "puct"])
def test_equal_actions_are_chosen_equally_often(rule):
    """Four actions that are all worth nothing."""
    mdp = random_mdp(0, "save")
    nothing = mdp._replace(
        reward=0 * mdp.reward, terminal=mdp.terminal | True, mask=mdp.mask | True
    )
    sim = TableSimulator(nothing)
    actions = sim.num_actions

    def evaluate(seen):
        return np.zeros((len(seen), actions)), np.zeros(len(seen))

    states = [Place(0, 0)] * 40 * actions
    found = search.batch(sim, states, evaluate, budget=actions, c=1.0, rule=rule, seed=1)
    counts = np.bincount(found.action, minlength=actions)
    assert counts.min() > 0
    assert counts.max() < 80

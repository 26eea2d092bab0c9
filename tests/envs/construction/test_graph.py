"""Observations and masks of any state, bit for bit against plain NumPy, in any order of calls."""

from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from save_rl.envs.construction import TASKS, Construction, State, graph

NAMES = graph.NODE_FEATURES


def numpy_nodes(state, padded):
    """The features of a state: those of its scene, and then each block's, column by column."""
    scene, blocks = state.scene, state.block_array
    task = TASKS[scene.task]
    nodes = graph.node_features(State(scene), padded).copy()
    slots = blocks[:, 0].astype(np.intp)
    sizes = np.array([(shape.width, shape.height) for shape in task.supply.shapes], np.float32)
    kinds = np.eye(3, dtype=np.float32)[[shape.kind for shape in task.supply.shapes]]
    rows = np.zeros((len(blocks), nodes.shape[1]), np.float32)
    rows[:, NAMES.index("x") : NAMES.index("y") + 1] = blocks[:, 2:4]
    rows[:, NAMES.index("cos")] = np.cos(blocks[:, 4])
    rows[:, NAMES.index("sin")] = np.sin(blocks[:, 4])
    rows[:, NAMES.index("width") : NAMES.index("height") + 1] = sizes[slots]
    rows[:, NAMES.index("free")] = 1.0
    rows[:, NAMES.index("sticky")] = blocks[:, 1]
    rows[:, NAMES.index("box") : NAMES.index("ramp") + 1] = kinds[slots]
    rows[:, NAMES.index("is_block")] = 1.0
    if task.replaced:
        first = graph.node_count(scene, 0)
        nodes[first : first + len(blocks)] = rows
    else:
        nodes[slots] = rows
    return nodes


def numpy_actions(sim, state):
    """The mask of a state: pairs of nodes without the diagonal, each for all of its actions."""
    task = TASKS[state.scene.task]
    used = np.arange(sim.max_nodes) < graph.node_count(state.scene, len(state.block_array))
    available = np.arange(sim.max_nodes) < 7
    if not task.replaced:
        available[state.block_array[:, 0].astype(int)] = False
    pairs = available[:7, None] & (used & ~available) if sim.masked else used[:, None] & used
    keep = np.arange(sim.max_nodes) != np.arange(len(pairs))[:, None]
    return np.repeat(pairs[keep], 30)


@st.composite
def states(draw, sim):
    """Scenes with blocks anywhere, as no simulation would leave them."""
    scene = sim.reset(draw(st.integers(0, 2**33))).scene
    most = scene.max_steps if sim.task.replaced else 7
    slots = draw(st.lists(st.integers(0, 6), max_size=most, unique=not sim.task.replaced))
    places, angles = st.floats(-999, 999, width=32), st.floats(-1e9, 1e9, width=32)
    pose = st.tuples(st.booleans(), places, places, st.one_of(st.floats(-1, 1, width=32), angles))
    rows = [(slot, *draw(pose)) for slot in slots]
    return State(scene, np.array(rows, np.float32).tobytes())


simulator = cache(Construction)  # the same for all examples, as it keeps its masks


@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("task", TASKS)
@given(data=st.data())
def test_observations_and_masks_are_those_of_plain_numpy(task, masked, data):
    sim = simulator(task, masked=masked)
    met = data.draw(st.lists(states(sim), min_size=1, max_size=4))
    for state in [*met, *met]:
        seen, mask = sim.observe(state), sim.action_mask(state)
        assert seen["nodes"].tobytes() == numpy_nodes(state, sim.max_nodes).tobytes()
        used = graph.node_count(state.scene, len(state.block_array))
        assert seen["node_mask"].tolist() == [i < used for i in range(sim.max_nodes)]
        assert mask.dtype == bool
        assert mask.tobytes() == numpy_actions(sim, state).tobytes()
        for handed_out in (*seen.values(), mask):  # whatever a caller does to its own
            handed_out[:] = 1 - handed_out


@pytest.mark.parametrize(
    ("task", "slots"), [("covering", [0] * 100), ("covering", [7]), ("covering-hard", [-1])]
)
def test_a_block_without_a_node_is_refused(task, slots):
    sim = Construction(task)
    rows = [(slot, 0, 0.0, 1.0, 0.0) for slot in slots]
    state = State(sim.reset(0).scene, np.array(rows, np.float32).tobytes())
    with pytest.raises(IndexError):
        sim.observe(state)

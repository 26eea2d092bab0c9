"""Pictures of trees show every node once, with its numbers, where it can be read."""

import itertools
import os
import unicodedata
import xml.etree.ElementTree as ET

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from save_rl.errors import InputError
from save_rl.search import host, rules
from save_rl.search.draw import root_table, save_tree, tree_svg
from save_rl.search.rules import TIE_TOLERANCE, Rule
from save_rl.types import SearchResult
from tests.search import mdps, reference
from tests.search.reference import Mdp

SVG = "{http://www.w3.org/2000/svg}"
NAMES = [f"<a & {i}>" for i in range(mdps.ACTIONS)]
BEST = "#D55E00"
each_rule = pytest.mark.parametrize("rule", list(Rule), ids=lambda r: r.name)
BUDGETS, SEEDS = st.integers(0, 60), st.integers(0, 2**31)
CS = st.sampled_from([0.0, 0.3, 2.0])


def host_search(mdp, rule, budget, c=0.3, seed=0):
    """A search from states 1 and 0, and what lane 1 asked of its simulator, by new node."""
    prior, value = mdps.priors(mdp, rule)
    states, lanes, asked = np.zeros((2, budget + 1), int), np.arange(2), {}
    states[:, 0] = 1, 0

    def step(nodes, actions, new):
        before, action = states[lanes, nodes], np.maximum(actions, 0)
        after = mdp.next_state[before, action]
        states[actions >= 0, new] = after[actions >= 0]
        rewards, ends = mdp.reward[before, action], mdp.terminal[before, action]
        if actions[1] >= 0:
            asked[new] = int(nodes[1]), int(actions[1]), float(rewards[1]), bool(ends[1])
        return rewards, ends, prior[after], value[after]

    result = host.search(
        prior[[1, 0]],
        step,
        rule=rule,
        budget=budget,
        c=c,
        discount=0.9,
        seeds=np.array([seed, seed]),
        return_tree=True,
    )
    return result, asked


class Drawn:
    """A node as a reader of the picture sees it."""

    def __init__(self, group):
        self.number = int(group.get("data-node"))
        self.texts = [text.text for text in group.iter(f"{SVG}text")]
        self.title, *lines = group.find(f"{SVG}title").text.split("\n")
        self.ends = "ends the episode" in lines
        self.numbers = dict(line.split(" ") for line in lines if "ends" not in line)
        path, (mark,) = group.find(f"{SVG}path"), [e for e in group if e.tag in MARKS]
        self.square = mark.tag == f"{SVG}rect"
        self.fill = mark.get("fill")
        x0, y0, x1, y1 = mark_box(mark)
        self.area = (x1 - x0) * (y1 - y0) * (1 if self.square else np.pi / 4)
        self.centre = (x0 + x1) / 2, (y0 + y1) / 2
        self.edge = None
        if path is not None:
            words = path.get("d").split()
            self.edge = float(words[1]), float(words[2])
            self.edge_end = float(words[-1])
            self.colour, self.thickness = path.get("stroke"), float(path.get("stroke-width"))


MARKS = (f"{SVG}circle", f"{SVG}rect")


def mark_box(mark):
    if mark.tag == f"{SVG}circle":
        x, y, r = (float(mark.get(name)) for name in ("cx", "cy", "r"))
        return x - r, y - r, x + r, y + r
    x, y, w, h = (float(mark.get(name, 0)) for name in ("x", "y", "width", "height"))
    return x, y, x + w, y + h


def text_box(text):
    """Around a text in a fixed-width font."""
    x, y, size = (float(text.get(name, 11)) for name in ("x", "y", "font-size"))
    cells = sum(
        (unicodedata.combining(c) == 0) + (unicodedata.east_asian_width(c) in "WF")
        for c in text.text
    )
    width = 0.602 * size * cells
    left = x - width if text.get("text-anchor") == "end" else x
    return left, y - 0.8 * size, left + width, y + 0.2 * size


def drawn_nodes(svg):
    groups = ET.fromstring(svg).findall(f"{SVG}g")
    nodes = {node.number: node for node in map(Drawn, groups)}
    assert len(nodes) == len(groups)
    return nodes


@each_rule
@given(data=st.data(), budget=BUDGETS, c=CS, seed=SEEDS)
@settings(max_examples=30)
def test_every_node_is_drawn_once_with_its_numbers(rule, data, budget, c, seed):
    mdp = data.draw(mdps.mdps(rule))
    result, asked = host_search(mdp, rule, budget, c, seed)
    tree = result.tree
    nodes = drawn_nodes(tree_svg(tree, 1, rule=rule, action_names=NAMES))
    assert nodes.keys() == {0, *asked}
    assert nodes[0].title == "root"
    assert nodes[0].texts == ["root", str(budget)]
    assert nodes[0].numbers == {"visits": str(budget)}
    for number, (parent, action, reward, terminal) in asked.items():
        node, at = nodes[number], (1, number)
        visits, prior = tree.visits[at], tree.edge_prior[at]
        value = rules.action_value(rule, prior, tree.total_return[at], visits)
        assert node.title == f"node {number}, action {NAMES[action]}"
        assert node.numbers["visits"] == str(visits)
        told = [float(node.numbers[name]) for name in ("Q", "prior", "reward")]
        np.testing.assert_allclose(told, [value, prior, reward], rtol=1e-5, atol=1e-9)
        name, q, n, *rest = node.texts
        assert (name, n) == (NAMES[action], str(visits))
        assert float(q) == pytest.approx(value, abs=0.006)
        assert [float(text) for text in rest] == pytest.approx([reward] if reward else [], rel=0.01)
        assert node.square == node.ends == terminal
        assert node.edge == pytest.approx(nodes[parent].centre, abs=0.011)
        assert node.edge_end == pytest.approx(node.centre[0], abs=0.011)
        assert node.centre[0] > nodes[parent].centre[0]


@each_rule
@given(data=st.data(), budget=BUDGETS, c=CS, name=st.text(max_size=30), title=st.text())
@settings(max_examples=30)
def test_texts_and_nodes_do_not_overlap(rule, data, budget, c, name, title):
    mdp = data.draw(mdps.mdps(rule))
    result, _ = host_search(mdp, rule, budget, c)
    names = [f"{a} {name}"[: a + 3] for a in range(mdps.ACTIONS)]
    max_nodes = data.draw(st.integers(1, 70))
    svg = tree_svg(result.tree, rule=rule, action_names=names, title=title, max_nodes=max_nodes)
    picture = ET.fromstring(svg)
    marks = [mark_box(e) for e in picture.iter() if e.tag in MARKS and e.get("stroke")]
    boxes = np.array([*marks, *(text_box(e) for e in picture.iter(f"{SVG}text"))])
    width, height = (float(x) for x in picture.get("viewBox").split()[2:])
    assert mark_box(picture.find(f"{SVG}rect")) == (0, 0, width, height)  # white paper
    assert np.all(boxes[:, :2] >= 8)
    assert np.all(boxes[:, 2:] <= [width - 8, height - 8])
    x0, y0, x1, y1 = boxes.T
    apart = (x1[:, None] <= x0) | (x0[:, None] >= x1) | (y1[:, None] <= y0) | (y0[:, None] >= y1)
    np.fill_diagonal(apart, True)
    assert apart.all()


@given(data=st.data(), budget=st.integers(1, 60), c=CS)
@settings(max_examples=30)
def test_looks_tell_visits_values_and_the_best_path(data, budget, c):
    mdp = data.draw(mdps.mdps(Rule.SAVE))
    result, asked = host_search(mdp, Rule.SAVE, budget, c)
    nodes = drawn_nodes(tree_svg(result.tree, 1))
    visits = {number: int(node.numbers["visits"]) for number, node in nodes.items()}
    tree = result.tree
    q = rules.action_value(Rule.SAVE, tree.edge_prior[1], tree.total_return[1], tree.visits[1])
    values = {number: q[number] for number in asked}
    for a, b in itertools.pairwise(sorted(asked, key=lambda number: visits[number])):
        grows = visits[b] > visits[a]
        assert (nodes[b].area > nodes[a].area + 1) == grows
        assert (nodes[b].thickness > nodes[a].thickness) == grows
    if max(values.values()) > min(values.values()):
        assert nodes[max(values, key=values.get)].fill == "#253494"
        assert nodes[min(values, key=values.get)].fill == "#FFFFCC"
    path, at = set(), 0
    while children := [n for n in asked if asked[n][0] == at]:
        at = max(children, key=lambda n: (visits[n], values[n], -n))
        path.add(at)
    assert {number for number in asked if nodes[number].colour == BEST} == path


@given(data=st.data(), budget=BUDGETS, c=CS, max_nodes=st.integers(1, 60))
@settings(max_examples=30)
def test_the_least_visited_are_left_out(data, budget, c, max_nodes):
    mdp = data.draw(mdps.mdps(Rule.SAVE))
    result, asked = host_search(mdp, Rule.SAVE, budget, c)
    svg = tree_svg(result.tree, 1, max_nodes=max_nodes)
    drawn = drawn_nodes(svg).keys()
    hidden = asked.keys() - drawn
    assert len(drawn) == min(max_nodes, 1 + len(asked))
    assert all(asked[number][0] in drawn for number in drawn - {0})
    if hidden:
        visits = result.tree.visits[1]
        assert max(visits[n] for n in hidden) <= min([visits[n] for n in drawn - {0}], default=99)
        assert f">{len(hidden)} less visited node{'s' * (len(hidden) > 1)} not drawn<" in svg
    else:
        assert "not drawn" not in svg


@each_rule
@given(data=st.data(), budget=st.integers(0, 40))
@settings(max_examples=20)
def test_untried_actions_of_the_root_are_counted(rule, data, budget):
    mdp = data.draw(mdps.mdps(rule))
    result, _ = host_search(mdp, rule, budget, c=2.0)
    svg = tree_svg(result.tree, 1, rule=rule)
    untried = np.flatnonzero(mdp.mask[0] & ~result.explored[1])
    texts = [e.text for e in ET.fromstring(svg).findall(f"{SVG}text")]
    lines = [text for text in texts if "untried" in text]
    if untried.size == 0:
        assert not lines
        return
    best = untried[np.argmax(mdp.prior[0, untried])]
    expected = f"{untried.size} action{'s' * (untried.size > 1)} untried"
    if rule != Rule.UCT:
        expected += f", best prior {mdp.prior[0, best]:.3g} ({best})"
    assert lines == [expected]


@pytest.mark.xdist_group("device_search")
@each_rule
@given(data=st.data(), seed=SEEDS)
@settings(max_examples=15)
def test_both_back_ends_draw_the_same_tree(rule, data, seed):
    mdp = data.draw(mdps.mdps(rule))
    outcome = reference.search(
        mdp, 0, rule.name.lower(), 10, 0.3, 0.9, mdps.prefer(seed), TIE_TOLERANCE
    )
    assume(not outcome.ambiguous)
    on_device = mdps.device_search(mdp, np.array([1, 0]), rule, 10, 0.3, 0.9, [seed, seed])
    on_host, _ = host_search(mdp, rule, 10, seed=seed)
    one, other = (
        drawn_nodes(tree_svg(result.tree, 1, rule=rule)) for result in (on_device, on_host)
    )
    assert one.keys() == other.keys()
    for number in one:
        a, b = one[number], other[number]
        assert (a.title, a.square, a.texts[0]) == (b.title, b.square, b.texts[0])
        assert a.numbers["visits"] == b.numbers["visits"]
        for name in b.numbers:
            assert float(a.numbers[name]) == pytest.approx(float(b.numbers[name]), abs=1e-4)


def two_steps() -> Mdp:
    """Of three actions, 0 ends the episode and pays 1, and 1 leads on; the prior prefers 0."""
    shape = (mdps.STATES, mdps.ACTIONS)
    mask, reward, terminal = np.zeros(shape, bool), np.zeros(shape), np.zeros(shape, bool)
    mask[:, :3], reward[:, 0], terminal[:, 0] = True, 1.0, True
    prior = np.tile(np.where(np.arange(mdps.ACTIONS) == 0, 0.5, 0.25), (mdps.STATES, 1))
    prior[:, 2] = -1.0
    return Mdp(np.zeros(shape, int), reward, terminal, mask, prior, np.zeros(mdps.STATES))


def test_a_small_picture():
    result, _ = host_search(two_steps(), Rule.SAVE, 3, c=0.0)
    names = ["<script>alert(1)</script>", 'say "hi" & go\n\x00', *"abcdefghijklmnopqrstuvwxyz12"]
    svg = tree_svg(result.tree, action_names=names, title="<b>\x07")
    assert svg == tree_svg(result.tree, action_names=names, title="<b>\x07")
    picture = ET.fromstring(svg)
    assert {e.tag.removeprefix(SVG) for e in picture.iter()} <= {
        *("svg", "g", "title", "text", "path", "rect", "circle")
    }
    assert not any("href" in name or "url" in x for e in picture.iter() for name, x in e.items())
    texts = [e.text for e in picture.iter(f"{SVG}text")]
    assert "<b>\N{REPLACEMENT CHARACTER}" in texts
    assert "<script>alert(1)</script>" not in texts  # shortened, but the tooltip has it all
    nodes = drawn_nodes(svg)
    assert nodes.keys() == {0, 1}  # the known end costs no further node
    assert nodes[1].title == "node 1, action <script>alert(1)</script>"
    assert nodes[1].texts == ["<script>alert(1)</script"[:23] + "…", "0.88", "3", "+1"]
    assert any(text.startswith("2 actions untried, best prior 0.25 (say") for text in texts)


def test_what_can_not_be_drawn_is_refused():
    result, _ = host_search(two_steps(), Rule.SAVE, 3)
    with pytest.raises(InputError, match="return_tree=True"):
        tree_svg(None)
    with pytest.raises(InputError, match="2 names is not possible; it must be one for each of the"):
        tree_svg(result.tree, action_names=["a", "b"])
    with pytest.raises(InputError, match="max_nodes: 0"):
        tree_svg(result.tree, max_nodes=0)
    with pytest.raises(IndexError):
        tree_svg(result.tree, 2)


def test_a_file_is_written_whole_or_not_at_all(tmp_path):
    result, _ = host_search(two_steps(), Rule.SAVE, 5)
    path = tmp_path / "tree.svg"
    save_tree(path, result.tree, 1, title="größer")
    assert path.read_text("utf-8") == tree_svg(result.tree, 1, title="größer")
    before = path.read_bytes()
    with pytest.raises(InputError):
        save_tree(path, result.tree, max_nodes=0)
    (tmp_path / "folder.svg").mkdir()
    with pytest.raises(OSError, match="folder"):
        save_tree(tmp_path / "folder.svg", result.tree)
    assert path.read_bytes() == before
    assert sorted(os.listdir(tmp_path)) == ["folder.svg", "tree.svg"]


def result_of(q_values, visits):
    visits = np.array([visits])
    return SearchResult(np.array([q_values]), visits, visits > 0)


def test_the_table_of_a_root():
    result = result_of([0.5, -0.25, 0.75, 0.3, 0.1, -np.inf], [4, 1, 4, 0, 0, 0])
    prior = np.array([[0.0, -0.001, 0.5, 0.3, 0.1, -np.inf]])
    names = ["left", "右", "a < b", "up", "down", "masked"]
    assert root_table(prior, result, action_names=names).split("\n") == [
        "action  prior  Q_MCTS  visits",
        "a < b    0.50    0.75       4",
        "left     0.00    0.50       4",
        "右       0.00   -0.25       1",
        "2 actions untried, best prior 0.3 (up)",
    ]
    assert root_table(prior, result, rows=1).split("\n") == [
        "action  prior  Q_MCTS  visits",
        "2       0.500   0.750       4",
        "2 more actions tried, visits up to 4",
        "2 actions untried, best prior 0.3 (3)",
    ]


def test_the_table_of_a_root_without_and_with_all_actions_tried():
    prior = jnp.array([[9.0, 9.0], [0.5, 100.0]])
    untried = SearchResult(prior, jnp.zeros((2, 2), int), jnp.zeros((2, 2), bool))
    assert root_table(prior, untried, 1).split("\n") == [
        "action  prior  Q_MCTS  visits",
        "2 actions untried, best prior 100 (1)",
    ]
    tried = untried._replace(visits=jnp.ones((2, 2), int))
    assert root_table(prior, tried, 1).split("\n") == [
        "action  prior  Q_MCTS  visits",
        "1       100.0   100.0       1",
        "0         0.5     0.5       1",
    ]

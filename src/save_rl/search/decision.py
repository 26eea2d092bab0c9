"""The result of one decision: an action, what speaks for it, and a tree that draws itself."""

import os
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from save_rl.search.rules import Rule


class Tree(NamedTuple):
    """The tree of one search; a notebook shows it as a picture.

    arrays: `search.host.Trees`, copied. lane: of the tree in them. rule: of the search.
    action_names: those of the simulator, or None.
    """

    arrays: Any
    lane: int
    rule: Rule
    action_names: Sequence[str] | None = None

    def svg(self, **options: Any) -> str:
        """Return it as an SVG; options: see `search.draw.tree_svg`."""
        from save_rl.search.draw import tree_svg

        return tree_svg(self.arrays, self.lane, **self._look(options))

    def save(self, path: str | os.PathLike[str], **options: Any) -> None:
        """Write it as a picture, PNG or SVG by the file's name."""
        from save_rl.search.draw import save_tree

        save_tree(path, self.arrays, self.lane, **self._look(options))

    def _look(self, options: dict[str, Any]) -> dict[str, Any]:
        return {"rule": self.rule, "action_names": self.action_names, **options}

    def _repr_svg_(self) -> str:
        return self.svg()

    def __repr__(self) -> str:
        nodes = 1 + int((self.arrays.visits[self.lane] > 0).sum())
        return f"<tree of {nodes} nodes; tree.save('tree.png') draws it>"


class Decision(NamedTuple):
    """An action and what speaks for it, for `A` actions; of a batch, with a leading `[B]`.

    action: the chosen one.
    q_values: `[A]` the values after the search (Q_MCTS), or without a search the prior; untried
        actions keep the prior (0 for UCT and PUCT), forbidden ones are -inf.
    prior: `[A]` as the network gave it: Qθ, or a policy.
    visits: `[A]` simulations through each action.
    explored: `[A]` true where the action was tried at least once.
    tree: of the search, a list of a batch's; None without a search.
    """

    action: Any
    q_values: np.ndarray
    prior: np.ndarray
    visits: np.ndarray
    explored: np.ndarray
    tree: Any = None

    def first(self) -> "Decision":
        """Return the decision of a batch of one."""
        action, q_values, prior, visits, explored = (x[0] for x in self[:-1])
        tree = None if self.tree is None else self.tree[0]
        return Decision(int(action), q_values, prior, visits, explored, tree)


def trees_of(arrays: Any, lanes: int, rule: Rule, simulator: Any, scale: float = 1.0) -> list[Tree]:
    """Return the trees of a search, one per lane; they stay as they are when another begins.

    scale: by which the search divided rewards; the trees are in the units of rewards.
    """
    kept = type(arrays)(*(np.array(x) for x in arrays))
    scaled = ("reward", "total_return", *(("prior", "edge_prior") if rule == Rule.SAVE else ()))
    for name in scaled if scale != 1 else ():
        getattr(kept, name)[...] *= scale
    names = getattr(simulator, "action_names", None)
    return [Tree(kept, lane, rule, names) for lane in range(lanes)]

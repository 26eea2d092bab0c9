"""Imports only go down the layers of docs/design.md, and no file is ever unpickled."""

import ast
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import save_rl

PACKAGE = Path(save_rl.__file__).parent
# From the top. A part may import from its own layer and those below.
LAYERS = (
    {"cli"},
    {"experiments", "report", "bench", "watch", "studio", "comparison"},
    {"training", "evaluation", "policy", "players", "api"},
    {"agents", "search", "learning"},
    {"networks", "envs"},
    {"types", "errors", "files", "processes", "compiled", "rescaling"},
)
# Imports that go up, each with its reason.
UPWARDS = {
    # A run draws its own curve.png. `report` itself stands on next to nothing (see below), so
    # nothing comes back down from there.
    ("training", "report"),
}
REPORT_STANDS_ON = {"report", "errors", "files", "types", "agents"}
DOORS = {"__init__", "__main__"}  # `save_rl.train` and `python -m save_rl` open on any layer


def module_name(path):
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


SOURCES = {module_name(path): ast.parse(path.read_text()) for path in PACKAGE.rglob("*.py")}


def imported(tree):
    """Every module of ours that the statements of a tree name; relative imports are not used."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in SOURCES)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "a relative import"
            if node.module in SOURCES:
                names = [f"{node.module}.{alias.name}" for alias in node.names]
                yield from (name if name in SOURCES else node.module for name in names)


def part(module):
    """`save_rl.training.run.loop` is a file of `training`."""
    return module.split(".")[1] if "." in module else "__init__"


def edges():
    return {
        (part(module), part(target))
        for module, tree in SOURCES.items()
        for target in imported(tree)
        if part(module) not in DOORS
    }


def depth(name):
    return next(i for i, layer in enumerate(LAYERS) if name in layer)


def test_every_part_has_a_layer():
    assert {part(module) for module in SOURCES} - DOORS == set().union(*LAYERS)


def test_imports_go_down():
    upwards = {(a, b) for a, b in edges() if depth(a) > depth(b)}
    assert upwards == UPWARDS


def test_report_stands_on_next_to_nothing():
    assert {b for a, b in edges() if a == "report"} <= REPORT_STANDS_ON


def on_import(tree):
    """What runs on import: not the bodies of functions, nor what is for type checkers."""
    return ast.Module([n for n in tree.body if isinstance(n, ast.Import | ast.ImportFrom)], [])


def cycle(graph):
    """Modules each of which imports the next, the last being the first; or []."""
    try:
        list(TopologicalSorter(graph).static_order())
    except CycleError as error:
        return error.args[1][::-1]
    return []


def test_no_module_waits_for_itself_to_be_imported():
    graph = {
        module: set(imported(on_import(tree))) - {"save_rl"} for module, tree in SOURCES.items()
    }
    assert cycle(graph) == []


def test_no_modules_need_each_other():
    """Imports inside functions count, too. Only a package may have its own parts imported there:
    whoever imports a part has imported the package."""
    graph = {
        module: {
            *imported(on_import(tree)),
            *(name for name in imported(tree) if not name.startswith(f"{module}.")),
        }
        - {"save_rl"}
        for module, tree in SOURCES.items()
    }
    assert cycle(graph) == []


def test_a_cycle_is_found():
    graph = {"loop": {"tests"}, "tests": {"settings", "loop"}, "settings": set()}
    assert cycle(graph) in (["loop", "tests", "loop"], ["tests", "loop", "tests"])


LOADERS = {"np.load", "numpy.load", "jnp.load", "npy.read_array"}


def calls(tree):
    return [node for node in ast.walk(tree) if isinstance(node, ast.Call)]


@pytest.mark.parametrize("module", SOURCES)
def test_nothing_is_unpickled(module):
    tree = SOURCES[module]
    for node in ast.walk(tree):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module] if isinstance(node, ast.ImportFrom) else []
        roots = {name.split(".")[0] for name in names if name}
        assert not roots & {"pickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"}
    for call in calls(tree):
        options = {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}
        if ast.unparse(call.func) in LOADERS:
            assert options.get("allow_pickle") == "False"
        assert options.get("allow_pickle", "False") == "False"


def test_the_rule_about_loading_is_looked_at():
    found = {ast.unparse(call.func) for tree in SOURCES.values() for call in calls(tree)}
    assert found & LOADERS

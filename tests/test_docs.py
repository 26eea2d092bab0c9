"""The documentation says what is so: links, commands, code, tables and measured numbers."""

import ast
import json
import re
import shlex
from pathlib import Path

import pytest

from save_rl.agents import AGENTS
from save_rl.cli.commands import parse
from save_rl.errors import InputError
from save_rl.experiments import EXPERIMENTS
from save_rl.training.run.run_directory import METRICS

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
SHELL = ("", "sh", "bash", "console", "shell")  # what fenced commands are marked with
each_page = pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))

_FENCE = re.compile(r"^ *```(\w*)\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)(?:\s[^)]*)?\)")
_SOURCE = re.compile(r"`((?:src|tests|examples|results|docs)/[\w./-]*)`")
_COMMAND = re.compile(r"(?:\$ )?(?:[A-Z_]+=\S* )*save-rl( .+)")
_PLACEHOLDER = re.compile(r"(?<![\w-])[A-Z][A-Z_]+(?![\w=])|\.\.\.|…")


def blocks(page: Path, *languages: str) -> list[str]:
    """The fenced blocks of a page in these languages."""
    return [body for language, body in _FENCE.findall(page.read_text()) if language in languages]


def prose(page: Path) -> str:
    """A page without its fenced blocks."""
    return _FENCE.sub("", page.read_text())


def anchors(page: Path) -> set[str]:
    """The anchors that the headings of a page get."""
    headings = re.findall(r"^#+ +(.*)$", prose(page), re.MULTILINE)
    words = [re.sub(r"[^\w\s-]", "", heading).strip().lower() for heading in headings]
    return {re.sub(r"[-\s]+", "-", word) for word in words}


def commands(text: str) -> list[list[str]]:
    """Arguments of the `save-rl` commands in a block, those with placeholders left out."""
    found = []
    for line in text.replace("\\\n", " ").splitlines():
        command = _COMMAND.fullmatch(line.strip())
        words = shlex.split(command[1], comments=True) if command else []
        if command and not _PLACEHOLDER.search(" ".join(words)):
            found.append(words)
    return found


@each_page
def test_links_and_images_lead_somewhere(page):
    for target in _LINK.findall(prose(page)):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path) if path else page
        assert file.exists(), target
        if anchor and file.suffix == ".md":
            assert anchor in anchors(file), target


@each_page
def test_named_files_exist(page):
    for name in _SOURCE.findall(prose(page)):
        assert (ROOT / name).exists(), name


@each_page
def test_commands_parse(page):
    for block in blocks(page, *SHELL):
        for arguments in commands(block):
            parse(arguments)  # raises, and so fails, where the command line would refuse


@each_page
def test_python_compiles(page):
    for block in blocks(page, "python"):
        compile(block, str(page), "exec")


@each_page
def test_what_python_imports_exists(page):
    for block in blocks(page, "python"):
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("save_rl"):
                exec(ast.unparse(node), {})


@pytest.mark.slow
def test_the_page_about_the_library_runs_from_top_to_bottom(tmp_path, monkeypatch):
    """One block after the other, as in a notebook: nothing collides, and nothing is left out."""
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "page"}
    for block in blocks(DOCS / "library.md", "python"):
        exec(compile(block, "docs/library.md", "exec"), names)
    assert {path.name for path in (tmp_path / "runs").iterdir()} == {
        "first", "q-learning", "second", "early",
    }  # fmt: skip
    written = {"policy.npz", "tree.svg", "compare.png"}
    assert written <= {path.name for path in tmp_path.iterdir()}


def test_a_command_that_does_not_exist_is_noticed():
    text = "save-rl train tightrope --no-such-option 3\nsave-rl evaluate DIR\nA=b save-rl envs\n"
    wrong, right = commands(text)  # the placeholder is skipped
    assert right == ["envs"]
    with pytest.raises(InputError, match="no-such-option"):
        parse(wrong)


def test_the_documentation_shows_the_main_commands():
    shown = {a[0] for page in PAGES for b in blocks(page, *SHELL) for a in commands(b) if a}
    assert {"train", "evaluate", "reproduce", "demo", "bench"} <= shown


def table_rows(page: Path) -> dict[str, list[str]]:
    """Rows of the tables of a page whose first cell is `code`, by that code."""
    rows = re.findall(r"^\| `([^`]+)` \|(.*)\|$", page.read_text(), re.MULTILINE)
    return {name: [cell.strip() for cell in rest.split(" | ")] for name, rest in rows}


def test_every_agent_is_in_the_table():
    rows = table_rows(DOCS / "agents.md")
    assert {name for name in AGENTS if name not in rows} == set()
    for name, agent in AGENTS.items():
        search, test_search = rows[name][:2]
        assert search == ("none" if agent.search is None else agent.search.name)
        assert test_search == agent.test_search.name


def test_every_column_of_metrics_is_explained():
    rows = table_rows(DOCS / "run-directory.md")
    assert {column for column in METRICS if column not in rows} == set()


RECORDED = [name for name in sorted(EXPERIMENTS) if (ROOT / "results" / name).exists()]


@pytest.mark.parametrize("experiment", sorted(EXPERIMENTS))
def test_an_experiment_says_where_its_results_are_or_that_there_are_none(experiment):
    said = (DOCS / "experiments" / f"{experiment}.md").read_text()
    assert (f"`results/{experiment}/`" in said) == (experiment in RECORDED)
    assert ("No results are recorded yet" in said) == (experiment not in RECORDED)


@pytest.mark.parametrize("experiment", RECORDED)
def test_an_experiment_reports_every_claim_with_its_verdict(experiment):
    rows = table_rows(DOCS / "experiments" / f"{experiment}.md")
    claims = json.loads((ROOT / "results" / experiment / "claims.json").read_text())
    words = {True: "yes", False: "no", None: "can't tell"}
    assert {c["id"]: rows[c["id"]][-1] for c in claims} == {
        c["id"]: words[c["holds"]] for c in claims
    }


@pytest.mark.parametrize("experiment", RECORDED)
def test_figures_are_those_of_the_results(experiment):
    shown = DOCS / "images" / f"{experiment}.png"
    assert shown.read_bytes() == (ROOT / "results" / experiment / "figure.png").read_bytes()


def test_the_environment_on_the_page_is_that_of_the_example():
    example = (ROOT / "examples" / "custom_environment.py").read_text()
    code = example[example.index("from typing") :]
    assert code in blocks(DOCS / "jax-environments.md", "python")


TEXTS = [*PAGES, *sorted((ROOT / "results").rglob("README.md")), *sorted(ROOT.glob("C*.md"))]


@pytest.mark.parametrize("page", TEXTS, ids=lambda p: str(p.relative_to(ROOT)))
def test_lines_fit_a_screen(page):
    """Rows of tables can't be broken."""
    lines = [line for line in prose(page).splitlines() if not line.startswith("|")]
    assert [line for line in lines if len(line) > 120] == []


SOURCES = sorted(path for part in ("src", "tests") for path in (ROOT / part).rglob("*.py"))
_CITED = re.compile(r"(?<![\w/])((?:docs|results|benchmarks)/[\w/.-]+\.md)(?:#([\w-]+))?")


def test_documents_that_the_source_cites_are_in_this_repository():
    cited = {found for path in SOURCES for found in _CITED.findall(path.read_text())}
    assert cited
    for name, anchor in cited:
        assert (ROOT / name).exists(), name
        assert not anchor or anchor in anchors(ROOT / name), f"{name}#{anchor}"


@pytest.mark.parametrize("part", ["src/save_rl", "examples"])
def test_docstrings_say_what_is_returned_or_done(part):
    """Not that something could be asked: what it is, whether it is so, how it is done."""
    asks = re.compile(r'"""(?:What|Whether|How)\b.*')
    found = {
        f"{path.relative_to(ROOT)}: {line}"
        for path in (ROOT / part).rglob("*.py")
        for line in asks.findall(path.read_text())
    }
    assert found == set()

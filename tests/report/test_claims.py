"""Claims: the verdicts, the file, the table."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from save_rl.report.claims import Claim, compare, print_claims, write_claims

HIGH, LOW = np.linspace(0.8, 1.0, 6), np.linspace(0.1, 0.5, 5)
CLAIMS = st.builds(
    Claim,
    *[st.text()] * 4,
    st.booleans() | st.none(),
    st.integers(0, 100),
    st.floats(0, 1) | st.none(),
    st.text(),
)


def compared(a, b, **options):
    return compare("save-beats-puct", "SAVE is better than PUCT", "Fig. 2b", a, b, **options)


def test_a_claim_holds_when_the_first_sample_is_larger():
    claim = compared(HIGH, LOW, names=("SAVE", "PUCT"), note="Budget 10.")
    assert claim.holds is True
    assert claim.p_value == pytest.approx(1 / 462)  # one order of C(11, 5) is this extreme
    assert claim.measured == "median 0.9 (SAVE) against 0.3 (PUCT)"
    assert (claim.seeds, claim.note) == (5, "Budget 10.")


@pytest.mark.parametrize(("a", "b"), [(LOW, HIGH), (HIGH, HIGH), ([1.0] * 5, [1.0] * 5)])
def test_a_claim_does_not_hold_when_it_is_smaller_or_equal(a, b):
    claim = compared(a, b)
    assert claim.holds is False
    assert claim.p_value is not None
    assert claim.p_value > 0.05


@pytest.mark.parametrize(("a", "b"), [(HIGH[:4], LOW), (HIGH, LOW[:4]), (HIGH, [])])
def test_few_seeds_are_too_small_to_tell(a, b):
    claim = compared(a, b, note="Budget 10.")
    assert claim.holds is None
    assert claim.p_value is None
    assert claim.seeds == min(len(a), len(b))
    assert claim.note == f"{claim.seeds} seeds; at least 5 of each are needed to tell. Budget 10."


def test_a_value_that_is_not_finite_decides_nothing(tmp_path):
    claim = compared([*HIGH, float("nan")], LOW)
    assert claim.holds is None
    assert "finite" in claim.note
    write_claims(tmp_path / "claims.json", [claim])


@given(claims=st.lists(CLAIMS, max_size=4))
@settings(max_examples=30)
def test_round_trip(tmp_path_factory, claims):
    path = tmp_path_factory.mktemp("claims") / "claims.json"
    write_claims(path, claims)
    assert [Claim(**entry) for entry in json.loads(path.read_text("utf-8"))] == claims


def test_the_file_has_the_fields_the_documentation_names(tmp_path):
    write_claims(tmp_path / "claims.json", [compared(HIGH, LOW), compared([], [])])
    first, second = json.loads((tmp_path / "claims.json").read_text())
    fields = ["id", "claim", "where", "measured", "holds", "seeds", "p_value", "note"]
    assert list(first) == list(second) == fields
    assert (first["holds"], second["holds"]) == (True, None)


def test_a_p_value_that_json_cannot_hold_is_refused(tmp_path):
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_claims(tmp_path / "c.json", [Claim("i", "c", "w", "m", False, 5, float("nan"))])
    assert list(tmp_path.iterdir()) == []


def test_every_claim_is_printed_with_its_verdict_and_what_was_measured():
    claims = [
        compared(np.arange(20) + 20, np.arange(20)),
        compared(LOW, HIGH),
        compared([], LOW, note="[see docs]"),
    ]
    console = Console(width=200)
    with console.capture() as capture:
        print_claims(claims, console)
    lines = capture.get().splitlines()
    verdicts = [line.strip().split("  ")[0] for line in lines if not line.startswith(" " * 18)]
    assert verdicts[1:] == ["holds", "does not hold", "too small to tell"]
    facts = [line for line in lines if "Fig. 2b" in line]
    expected = [("20 seeds", "p < 0.001"), ("5 seeds", "p = 1.000"), ("0 seeds",)]
    for line, words in zip(facts, expected, strict=True):
        assert all(word in line for word in words)
    assert "p " not in facts[2].split("Fig. 2b")[1]
    assert "[see docs]" in capture.get()

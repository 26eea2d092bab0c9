"""Batches on their way to a GPU: their sizes; side by side as bytes, and back."""

import jax
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from save_rl.training.host.evaluator import few_pieces, joined, parts

KINDS = (np.float32, np.int32, np.bool_, np.uint8, np.int8, np.uint16)
fields = st.tuples(
    st.sampled_from(KINDS), st.lists(st.integers(0, 3), max_size=3).map(tuple), st.booleans()
)


@given(st.lists(fields, min_size=1, max_size=4), st.integers(1, 3), st.integers(1, 4))
def test_arrays_come_back_from_bytes(wanted, seeds, lanes):
    rng = np.random.default_rng(0)
    arrays = []
    for kind, shape, strided in wanted:
        full = rng.normal(scale=50, size=(seeds, lanes, *shape, 2)).astype(kind)
        arrays.append(full[..., 0] if strided else np.ascontiguousarray(full[..., 0]))
    data = joined(arrays)
    assert data.shape == (seeds, lanes, sum(x[0, 0].nbytes for x in arrays))
    shapes, kinds = [shape for _, shape, _ in wanted], [np.dtype(kind) for kind, _, _ in wanted]
    back = jax.vmap(lambda own: parts(own, kinds, shapes))(data)
    for before, after in zip(arrays, back, strict=True):
        assert after.dtype == before.dtype
        np.testing.assert_array_equal(after, before)


@given(st.integers(1, 5000), st.integers(1, 300), st.integers(1, 16))
def test_a_round_is_few_batches(count, small, times):
    large = small * times
    sizes = few_pieces(count, small, large)
    assert set(sizes) <= {small, large}
    assert sizes == sorted(sizes, reverse=True)
    assert sum(sizes) >= count > sum(sizes[:-1])  # none is empty
    assert len(sizes) <= -(-count // large) + 1  # one more than the fewest, at most
    if sizes[-1] == small < large:
        assert sum(sizes) < count + small  # small batches are there to fill less
    if count % large == 0:
        assert len(sizes) == count // large


def test_the_batches_of_a_search_of_ten_simulations():
    assert few_pieces(387, 43, 430) == [430]
    assert few_pieces(80, 43, 430) == [43, 43]  # a second round of a few lanes
    assert few_pieces(43, 43, 43) == [43]  # where a lane simulates one state per round

"""Batches on their way to a GPU: side by side as bytes, and back."""

import jax
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from save_rl.training.host.evaluator import joined, parts

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

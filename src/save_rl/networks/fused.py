"""Functions of rows as single GPU kernels, in Pallas.

A graph network is a chain of small functions that act on every row of a large array alike: a few
matrix products of width 64, with sums, normalisations and gates between them. XLA makes several
kernels of each, so the rows travel through memory dozens of times. `apply_rows` computes such a
function in one kernel: a program loads a tile of rows, applies the whole function, and stores the
results.

The gradient is one kernel and two small operations. The kernel computes the function of its tile
again and pulls the cotangents back through it. It stores the cotangents of the rows, those of all
sums of products (*taps*), and all that was multiplied by weights (*inputs*): the gradients of the
weights are blocks of one product, `inputsᵀ @ taps`. Nothing is added up in the order in which
programs happen to finish, so results do not depend on timing.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton

from save_rl.types import Array


class RowFunction(NamedTuple):
    """A function of rows for `apply_rows`.

    body: called as `body(affine, *tiles)`, returns tiles `[T, width]`. `affine(pairs, bias)` is the
    sum of `x @ W_k` over pairs `(x, k)`, plus `b_bias` unless that is None. Products have the
    precision of the weights, all else is float32. kind: dtype of the results. constants: the last
    so many arrays have no gradient. interpret: run without a GPU, slowly, for tests. tile, warps:
    rows and warps of a program, of the function and of its gradient.
    """

    body: Callable[..., tuple[Array, ...]]
    width: int
    kind: Any
    constants: int = 0
    interpret: bool = False
    tile: tuple[int, int] = (64, 32)
    warps: tuple[int, int] = (4, 4)


def apply_rows(
    function: RowFunction, arrays: Sequence[Array], weights: Array, biases: Array
) -> tuple[Array, ...]:
    """Apply a function to the rows of arrays `[R, n]`; n is a power of 2.

    weights: `[K * width, width]`, one below the other. biases: `[M * width]`.
    """
    return _apply(function, tuple(arrays), weights, biases)


class _Affine:
    """Sums of products with weights; keeps what was multiplied by which.

    times: maps x and k to `x @ W_k`. bias: returns a bias. taps: added to the sums, if given; their
    cotangents are those of the sums.
    """

    def __init__(
        self, times: Callable[[Any, int], Any], bias: Callable[[int], Any], taps: Any = None
    ):
        self._times, self._bias, self._taps = times, bias, taps
        self.inputs: list[Any] = []
        self.products: list[tuple[int, int, int]] = []  # input, weight, tap
        self.added: list[tuple[int, int]] = []  # bias, tap
        self.sums = 0

    def __call__(self, pairs: Sequence[tuple[Any, int]], bias: int | None = None) -> Any:
        total = self._product(*pairs[0])
        for pair in pairs[1:]:
            total = total + self._product(*pair)
        if bias is not None:
            self.added.append((bias, self.sums))
            total = total + self._bias(bias)
        if self._taps is not None:
            total = total + self._taps[self.sums]
        self.sums += 1
        return total

    def _product(self, x: Any, k: int) -> Any:
        number = next((i for i, old in enumerate(self.inputs) if old is x), len(self.inputs))
        if number == len(self.inputs):
            self.inputs.append(x)
        self.products.append((number, k, self.sums))
        return self._times(x, k)


def _trace(function: RowFunction, arrays: Any) -> tuple[_Affine, int]:
    """Return which products a function makes, and the number of its results."""
    affine = _Affine(lambda x, _: x, lambda _: 0.0)
    tiles = [jax.ShapeDtypeStruct((function.tile[0], x.shape[1]), jnp.float32) for x in arrays]
    results = jax.eval_shape(partial(function.body, affine), *tiles)
    return affine, len(results)


def _loaded(weights: Any, biases: Any, taps: Any = None) -> _Affine:
    """Return sums of products in a kernel, with or without a gradient.

    Weights are loaded where they are used, and again for the gradient: `volatile` stops the
    compiler from keeping all of them in registers.
    """
    width = weights.shape[1]

    def load(k: int) -> Any:
        return triton.load(weights.at[pl.ds(k * width, width)], volatile=taps is not None)

    def times(x: Any, k: int) -> Any:
        product = jax.custom_vjp(lambda x: _dot(x, load(k)))
        product.defvjp(lambda x: (_dot(x, load(k)), None), lambda _, y: (_dot(y, load(k).T),))
        return product(x) if taps is not None else _dot(x, load(k))

    return _Affine(times, lambda k: biases[pl.ds(k * width, width)][None], taps)


def _dot(x: Any, weight: Any) -> Any:
    return jnp.dot(x.astype(weight.dtype), weight, preferred_element_type=jnp.float32)


def _where(tile: int, rows: int) -> tuple[Array, Array]:
    """Return the rows of this program `[T, 1]`, and which of them exist."""
    at = pl.program_id(0) * tile + jax.lax.broadcasted_iota(jnp.int32, (tile, 1), 0)
    return at, at < rows


def _load(ref: Any, at: Array, exist: Array) -> Array:
    columns = jax.lax.broadcasted_iota(jnp.int32, (1, ref.shape[1]), 1)
    mask = jnp.broadcast_to(exist, (len(at), ref.shape[1]))
    return triton.load(ref.at[at, columns], mask=mask, other=0).astype(jnp.float32)


def _store(ref: Any, x: Array, at: Array, exist: Array, first: int = 0) -> None:
    columns = first + jax.lax.broadcasted_iota(jnp.int32, (1, x.shape[1]), 1)
    mask = jnp.broadcast_to(exist, x.shape)
    triton.store(ref.at[at, columns], x.astype(ref.dtype), mask=mask)


def _call(
    function: RowFunction, kernel: Any, rows: int, gradient: bool, made: list[Any]
) -> Callable[..., Any]:
    return pl.pallas_call(
        kernel,
        grid=(pl.cdiv(rows, function.tile[gradient]),),
        out_shape=made,
        compiler_params=triton.CompilerParams(num_warps=function.warps[gradient], num_stages=1),
        interpret=function.interpret,
        name=function.body.__name__.strip("_") + ("_gradient" if gradient else ""),
    )


@partial(jax.custom_vjp, nondiff_argnums=(0,))
@partial(jax.jit, static_argnums=0)  # the steps of a network share what is traced
def _apply(function: RowFunction, arrays: Any, weights: Any, biases: Any) -> Any:
    _, results = _trace(function, arrays)
    rows, count = arrays[0].shape[0], len(arrays)

    def kernel(*refs: Any) -> None:
        where = _where(function.tile[0], rows)
        tiles = [_load(ref, *where) for ref in refs[:count]]
        found = function.body(_loaded(*refs[count : count + 2]), *tiles)
        for ref, x in zip(refs[count + 2 :], found, strict=True):
            _store(ref, x, *where)

    made = [jax.ShapeDtypeStruct((rows, function.width), function.kind)] * results
    return tuple(_call(function, kernel, rows, False, made)(*arrays, weights, biases))


def _forward(function: RowFunction, arrays: Any, weights: Any, biases: Any) -> Any:
    return _apply(function, arrays, weights, biases), (arrays, weights, biases)


@partial(jax.jit, static_argnums=0)
def _backward(function: RowFunction, saved: Any, cotangents: Any) -> Any:
    arrays, weights, biases = saved
    traced, results = _trace(function, arrays)
    rows, count, width = arrays[0].shape[0], len(arrays), function.width
    moving, tile, last = count - function.constants, function.tile[1], count + 2 + results

    def kernel(*refs: Any) -> None:
        where = _where(tile, rows)
        tiles = [_load(ref, *where) for ref in refs[:count]]
        after = tuple(_load(ref, *where) for ref in refs[count + 2 : last])
        *of_arrays, of_taps, of_inputs = refs[last:]

        def run(moving_tiles: Any, taps: Any) -> Any:
            affine = _loaded(refs[count], refs[count + 1], taps)
            return function.body(affine, *moving_tiles, *tiles[moving:]), affine.inputs

        zeros = [jnp.zeros((tile, width))] * traced.sums
        _, pull_back, inputs = jax.vjp(run, tiles[:moving], zeros, has_aux=True)
        changes, taps = pull_back(after)
        for ref, x in zip(of_arrays, changes, strict=True):
            _store(ref, x, *where)
        for ref, parts in ((of_taps, taps), (of_inputs, inputs)):
            for k, x in enumerate(parts):
                _store(ref, x, *where, first=k * width)

    made = [
        *(jax.ShapeDtypeStruct(x.shape, x.dtype) for x in arrays[:moving]),
        jax.ShapeDtypeStruct((rows, traced.sums * width), weights.dtype),
        jax.ShapeDtypeStruct((rows, len(traced.inputs) * width), weights.dtype),
    ]
    call = _call(function, kernel, rows, True, made)
    *of_arrays, taps, inputs = call(*arrays, weights, biases, *cotangents)
    blocks = jnp.dot(inputs.T, taps, preferred_element_type=jnp.float32)
    total = jnp.sum(taps, 0, dtype=jnp.float32)

    def part(k: int) -> slice:
        return slice(k * width, (k + 1) * width)

    of_weights = [
        sum(blocks[part(x), part(tap)] for x, which, tap in traced.products if which == k)
        for k in range(len(weights) // width)
    ]
    of_biases = [
        sum(total[part(tap)] for which, tap in traced.added if which == k)
        for k in range(len(biases) // width)
    ]
    return (
        (*of_arrays, *(jnp.zeros_like(x) for x in arrays[moving:])),
        jnp.concatenate(of_weights).astype(weights.dtype),
        jnp.concatenate(of_biases).astype(biases.dtype),
    )


_apply.defvjp(_forward, _backward)

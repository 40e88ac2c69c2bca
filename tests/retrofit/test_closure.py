"""What is absent from a table does not exist to the full variant."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from oflax.retrofit.tabpfn_v3 import TabPFNV3
from oflax.retrofit.tabpfn_v3 import calibrated
from oflax.retrofit.tabpfn_v3.table import standardized
from tests.retrofit import host
from tests.retrofit import oracle

# Of 13 train rows, 6 test rows and 8 columns, those that are there.
TRAIN, TEST = [0, 2, 3, 4, 6, 7, 8, 10, 11], [13, 14, 16, 18]
PLACES = {
  "nothing": ([*range(9), *range(13, 17)], [*range(5)]),
  "interleaved": (TRAIN + TEST, [1, 2, 4, 6, 7]),
  "in front": ([*range(4, 13), *range(15, 19)], [*range(3, 8)]),
}


@pytest.fixture(scope="module")
def variables():
  module, variables = host.model()
  return calibrated(module, variables)


@pytest.fixture(scope="module")
def small():
  """A table with odd cells: 9 train rows, 4 test rows, 5 columns."""
  x, y = oracle.table(13, 5, 9)
  x[2, 1], x[10, 3], x[4, 0] = np.nan, np.inf, -np.inf
  x[:, 2] = 0.7
  return x, y


def spread(x, y, rows, columns, filling):
  """The table among absent rows and columns, full of something else."""
  table = np.full((19, 8), filling, np.float32)
  table[np.ix_(rows, columns)] = x
  targets = np.full(13, filling, np.float32)
  targets[rows[:9]] = y
  present = np.zeros(19, bool), np.zeros(8, bool)
  present[0][rows] = present[1][columns] = True
  return table, targets, *present


def test_calibrated_the_full_variant_stays_close_to_the_host(variables):
  before = host.model()[1]
  shapes = jax.tree.map(jnp.shape, (before, variables))
  assert shapes[0] == shapes[1]
  assert all(tau != 1 for tau in jax.tree.leaves(variables["calibration"]))
  x, y = oracle.table(14, 3, 9)
  want = host.program("host")(variables, x, y)
  got = host.program("full")(variables, x, y)
  assert 0 < np.abs(got - want).max() < 0.02 * np.abs(want).max()


@pytest.mark.parametrize("filling", [np.nan, 1e30, 0.0], ids=str)
@pytest.mark.parametrize("place", PLACES)
def test_the_full_variant_equals_dropping(variables, small, place, filling):
  run = host.program("full")
  want = np.asarray(run(variables, *small))
  rows, columns = PLACES[place]
  got = np.asarray(run(variables, *spread(*small, rows, columns, filling)))
  present = np.array(rows[9:]) - 13
  np.testing.assert_array_equal(np.delete(got, present, 0), 0)
  largest = np.abs(want).max()
  np.testing.assert_allclose(got[present], want, atol=1e-5 * largest)


@pytest.mark.parametrize("variant", ["host", "attention"])
def test_other_variants_are_not_closed(variables, small, variant):
  run = host.program(variant)
  want = np.asarray(run(variables, *small))
  rows, columns = PLACES["interleaved"]
  got = np.asarray(run(variables, *spread(*small, rows, columns, 0.0)))
  got = got[np.array(TEST) - 13]
  assert np.abs(got - want).max() > 1e-2 * np.abs(want).max()


def test_absence_is_missing_data_to_the_host(variables, small):
  run = host.program("host")
  rows, columns = PLACES["interleaved"]
  table, targets, *present = spread(*small, rows, columns, 3.0)
  nan = spread(*small, rows, columns, np.nan)
  np.testing.assert_array_equal(
    run(variables, table, targets, *present), run(variables, *nan[:2])
  )


def test_another_pattern_compiles_nothing(variables, small):
  run = host.program("full")
  run(variables, *spread(*small, *PLACES["nothing"], np.nan))
  programs = run._cache_size()
  for place in PLACES.values():
    run(variables, *spread(*small, *place, np.nan))
  assert run._cache_size() == programs


def test_batch_axes_are_tables_apart(variables, small):
  run = host.program("full")
  tables = [spread(*small, *place, np.nan) for place in PLACES.values()]
  batch = tuple(
    jnp.stack(parts)[:, None] for parts in zip(*tables, strict=True)
  )
  got = run(variables, *batch)
  for i, table in enumerate(tables):
    want = run(variables, *table)
    np.testing.assert_allclose(got[i, 0], want, atol=2e-6)


@pytest.mark.parametrize("kind", ["rows", "columns"])
def test_a_table_of_nothing_is_finite(variables, small, kind):
  table, targets, rows, columns = spread(*small, TRAIN + TEST, [*range(5)], 1)
  if kind == "rows":
    rows = np.arange(19) >= 13  # No train row is there.
  else:
    columns = np.zeros(8, bool)
  got = host.program("full")(variables, table, targets, rows, columns)
  assert bool(jnp.all(jnp.isfinite(got)))


def test_a_table_in_half_precision_is_standardised_in_single():
  x = 1000 * np.arange(8, dtype=np.float16)[None]
  got = standardized(jnp.asarray(x), jnp.ones(6))
  assert got.dtype == jnp.float16
  want = standardized(jnp.asarray(x, jnp.float32), jnp.ones(6))
  np.testing.assert_array_equal(got, want.astype(jnp.float16))


def test_test_rows_do_not_see_each_other(variables, small):
  x, y = small
  run = host.program("full")
  want = run(variables, x, y)
  more = np.concatenate([x, x[9:], 7 * x[9:]])
  np.testing.assert_allclose(run(variables, more, y)[:4], want, atol=1e-6)


@pytest.mark.parametrize("filling", [np.nan, 3.4e38], ids=str)
def test_cells_of_what_is_absent_have_no_derivative(small, filling):
  module = TabPFNV3(host.TINY, "full", tau=1e-3)
  variables = jax.jit(module.init)(jax.random.key(0), *small)
  x, y, rows, columns = spread(*small, *PLACES["interleaved"], filling)

  @jax.jit
  def gradient(x):
    present = {"row_present": rows, "column_present": columns}
    return jax.grad(
      lambda x: jnp.sum(module.apply(variables, x, y, **present) ** 2)
    )(x)

  got = np.asarray(gradient(x))
  there = np.isfinite(x) & rows[:, None] & columns
  np.testing.assert_array_equal(got[~there], 0)
  assert np.all(np.isfinite(got))
  assert np.any(got[there] != 0)


def test_gradients_are_closed_and_finite_and_train(small):
  module = TabPFNV3(host.TINY, "full", tau=1e-3)
  variables = jax.jit(module.init)(jax.random.key(0), *small)
  labels = jnp.array([3, 7, 7, 15])

  @jax.jit
  def gradient(params, places, x, y, rows=None, columns=None):
    def loss(params):
      logits = module.apply(
        {**variables, "params": params},
        x,
        y,
        row_present=rows,
        column_present=columns,
      )
      log_p = jax.nn.log_softmax(logits[places])
      return -jnp.mean(jnp.take_along_axis(log_p, labels[:, None], -1))

    return jax.value_and_grad(loss)(params)

  params, places = variables["params"], jnp.arange(4)
  first, want = gradient(params, places, *small)
  table = spread(*small, *PLACES["interleaved"], np.nan)
  _, got = gradient(params, jnp.array(TEST) - 13, *table)
  scale = max(float(jnp.max(jnp.abs(leaf))) for leaf in jax.tree.leaves(want))
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, atol=1e-4 * scale), got, want
  )
  for leaf in jax.tree.leaves(want):
    assert bool(jnp.any(leaf != 0))

  for _ in range(20):
    last, step = gradient(params, places, *small)
    params = jax.tree.map(lambda p, g: p - 0.1 * g, params, step)
  assert last < 0.8 * first


X, Y = jnp.zeros((6, 3)), jnp.zeros(4)


@pytest.mark.parametrize(
  ("args", "patterns", "message"),
  [
    ((X, Y.astype(int)), {}, "y must be floating point, got int32"),
    ((X[0], Y), {}, r"x must be .*got shape \(3,\)"),
    ((X, Y[:0]), {}, r"y must be \[..., N\].*got shapes \(0,\) and \(6, 3\)"),
    ((X, jnp.zeros(7)), {}, r"got shapes \(7,\) and \(6, 3\)"),
    ((X[None], Y), {}, r"got shapes \(4,\) and \(1, 6, 3\)"),
    ((X[:, :0], Y), {}, r"x must have a column, got shape \(6, 0\)"),
    ((X, Y), {"row_present": X[:, 0] > 0, "column_present": X[0]}, "boolean"),
    ((X, Y), {"row_present": jnp.ones(4, bool)}, r"row_present .*got \(4,\)"),
  ],
)
def test_wrong_arguments_are_named_with_their_values(args, patterns, message):
  module, variables = host.model()
  with pytest.raises(ValueError, match=message):
    module.apply(variables, *args, **patterns)


def test_an_unknown_variant_is_named():
  module, variables = host.model()
  with pytest.raises(ValueError, match=r"variant must be .*'half'"):
    module.clone(variant="half").apply(variables, X, Y)

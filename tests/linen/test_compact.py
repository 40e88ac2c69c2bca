"""OTransformer(compact=True) is OTransformer, exact to the bit."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import oflax
from oflax import laws
from oflax import linen

D, TOKENS = 8, 40
FIELDS = {"num_layers": 1, "num_heads": 2, "mlp_dim": 12, "rotary": True}
RNG = np.random.default_rng(0)
H = RNG.normal(size=(2, TOKENS, D)).astype(np.float32)
H *= RNG.random((2, TOKENS, 1)) > 0.5


def pair(**fields):
  plain = linen.OTransformer(**FIELDS, **fields)
  compact = linen.OTransformer(**FIELDS, compact=True, **fields)
  variables = jax.jit(plain.init)(jax.random.key(0), H)
  variables["params"] = jax.tree.map(lambda x: x + 0.1, variables["params"])
  return plain, compact, variables


@pytest.mark.parametrize(
  ("fields", "arguments"),
  [
    ({"is_causal": True}, {}),
    ({}, {"mask": RNG.random((2, 1, TOKENS, TOKENS)) > 0.3}),
    ({}, {"positions": 2 * np.arange(TOKENS)}),
    ({}, {"segments": np.arange(TOKENS) // 10}),
    ({"scan_layers": True, "remat": True}, {}),
  ],
)
def test_it_is_the_plain_model(fields, arguments):
  plain, compact, variables = pair(**fields)

  def run(model):
    def loss(variables, h):
      out = model.apply(variables, h, **arguments)
      return jnp.sum(jnp.sin(out)), out

    return jax.jit(jax.grad(loss, has_aux=True))(variables, H)

  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, atol=1e-4),
    run(compact),
    run(plain),
  )


@pytest.mark.parametrize(
  ("dtype", "count"), [(jnp.float32, 30), (jnp.float32, 32), (jnp.bfloat16, 33)]
)
def test_nulls_change_no_bit(dtype, count):
  _, compact, variables = pair(is_causal=True)
  h = jnp.asarray(RNG.normal(size=(2, count, D)), dtype)
  apply = jax.jit(compact.apply)
  for positions in ([0], [*range(1, 40, 2)], [*range(60)]):
    laws.assert_o_closure(
      lambda h: apply(variables, h), h, positions, bitwise=True
    )


def test_it_has_the_variables_of_the_plain_model():
  plain, compact, variables = pair()
  again = jax.eval_shape(compact.init, jax.random.key(0), H)
  assert jax.tree.structure(again) == jax.tree.structure(variables)
  tau = oflax.calibrate(compact, variables, H)["calibration"]
  assert tau == oflax.calibrate(plain, variables, H)["calibration"]


def test_what_is_recorded_is_that_of_all_tokens():
  _, compact, variables = pair()
  _, seen = compact.apply(
    variables, H, mutable=["intermediates"], sow_weights=True
  )
  (weights,) = seen["intermediates"]["block_0"]["attention"][
    "attention_weights"
  ]
  assert weights.shape == (2, 2, TOKENS, TOKENS)


def test_nulls_stay_null_under_dropout():
  _, compact, variables = pair(dropout_rate=0.5)
  out = compact.apply(
    variables, H, deterministic=False, rngs={"dropout": jax.random.key(1)}
  )
  assert not np.any(np.asarray(out)[~H.any(-1)])
  assert np.all(np.isfinite(out))


def test_nan_and_vanished_presence_are_not_null():
  _, compact, variables = pair()
  h = jnp.asarray(H[0, :6]).at[2].set(1e-25)
  np.testing.assert_array_equal(compact.apply(variables, h)[2], h[2])
  out = compact.apply(variables, h.at[1, 0].set(jnp.nan))
  assert bool(jnp.all(jnp.isnan(out[1])))


def test_only_what_is_closed_can_be_compacted():
  host = linen.OTransformer(**FIELDS, compact=True, variant="host")
  with pytest.raises(ValueError, match=r"compact=True needs .*got 'host'"):
    host.init(jax.random.key(0), H)
  _, compact, variables = pair()
  with pytest.raises(ValueError, match=r"mask must have shape .*\(41, 41\)"):
    compact.apply(variables, H, mask=np.ones((41, 41), bool))

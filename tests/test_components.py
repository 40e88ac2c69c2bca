"""The functions around attention: values, dtypes, and refusals."""

from flax import linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import oflax

H = jax.random.normal(jax.random.key(0), (3, 5, 8))
P = jnp.array([1.0, 0.5, 0.0, 1.0, 0.25])


@pytest.mark.parametrize("scale", [1e-20, 1e-10, 1.0, 1e10, 1e20, 1e38])
def test_presence_depends_on_the_ratio_of_norm_and_tau_alone(scale):
  h = jnp.array([0.6, 0.8]) * scale
  gradient = jax.grad(oflax.presence)(h)
  assert bool(jnp.all(jnp.isfinite(gradient)))
  square = min(float(scale), 1e18) ** 2
  want = square / (1 + square)
  np.testing.assert_allclose(oflax.presence(h), want, rtol=1e-5, atol=1e-37)


def test_presence_has_curvature_2_over_tau_at_a_null():
  hessian = jax.hessian(lambda h: oflax.presence(h, 4.0))(jnp.zeros(3))
  np.testing.assert_allclose(hessian, 0.5 * np.eye(3), rtol=1e-6)


def test_presence_has_the_right_derivative_with_respect_to_tau():
  h = jnp.array([3.0, 4.0])
  gradient = jax.grad(lambda tau: oflax.presence(h, tau))(25.0)
  np.testing.assert_allclose(gradient, -25 / 50**2, rtol=1e-6)


def test_calibration_gives_the_presence_asked_for():
  h = H.at[:, 2].set(0).reshape(-1, 8)
  tau = oflax.calibrate_tau(h, presence=0.9, quantile=0.0)
  p = oflax.presence(h, tau)
  assert float(jnp.min(p[p > 0])) == pytest.approx(0.9, rel=1e-5)


@pytest.mark.parametrize("kind", ["layer", "rms"])
def test_a_norm_does_not_overflow(kind):
  h = jnp.array([[1.0, -1.0, 3.0, 0.0], [0.0] * 4])
  norm = lambda h: oflax.o_norm(h, oflax.presence(h, 1e-6), kind=kind)
  np.testing.assert_allclose(norm(h * 1e20), norm(h), atol=1e-5)
  gradient = jax.grad(lambda h: norm(h)[0, 0])(h * 1e20)
  assert bool(jnp.all(jnp.isfinite(gradient)))


def test_standardising_does_not_overflow():
  x = jnp.array([[1e20], [-1e20], [0.0]])
  fn = lambda x: oflax.o_standardize(x, oflax.presence(x))
  np.testing.assert_allclose(fn(x), [[1.0], [-1.0], [0.0]], rtol=1e-6)
  gradient = jax.grad(lambda x: fn(x)[0, 0])(x)
  assert bool(jnp.all(jnp.isfinite(gradient)))


@pytest.mark.parametrize("tau", [0.0, 1e-44, 1e-38, float("inf")])
def test_a_tau_that_leaves_its_range_under_jit_keeps_nulls_null(tau):
  p = jax.jit(oflax.presence)(jnp.array([[0.0], [1.0]]), jnp.float32(tau))
  assert p[0] == 0
  assert 0 <= p[1] <= 1


@pytest.mark.parametrize("kind", ["layer", "rms"])
def test_a_present_norm_is_that_of_flax(kind):
  module = nn.LayerNorm() if kind == "layer" else nn.RMSNorm()
  want = module.apply(module.init(jax.random.key(0), H), H)
  got = oflax.o_norm(H, jnp.ones(5), kind=kind)
  np.testing.assert_allclose(got, want, atol=2e-6)


def test_weighted_statistics_follow_presence():
  x, p = np.asarray(H, np.float64), np.asarray(P, np.float64)[:, None]
  mean = (p * x).sum(1, keepdims=True) / p.sum()
  variance = (p * (x - mean) ** 2).sum(1, keepdims=True) / p.sum()
  want = p * (x - mean) / np.sqrt(variance + 1e-6)
  np.testing.assert_allclose(oflax.o_standardize(H, P), want, atol=2e-6)
  np.testing.assert_allclose(oflax.o_pool(H, P), mean[:, 0], atol=2e-7)


@pytest.mark.parametrize("p", [1e-30, 1e-37])
def test_tiny_presences_weigh_as_large_ones(p):
  presence = jnp.array([p, 0.0, 2 * p])
  h = H[0, :3]
  pool = lambda presence: oflax.o_pool(h, presence)
  want = (h[0] + 2 * h[2]) / 3
  np.testing.assert_allclose(pool(presence), want, rtol=1e-5, atol=1e-6)
  if p >= 1e-30:
    gradient = jax.grad(lambda p: jnp.sum(pool(p)))(presence)
    assert bool(jnp.all(jnp.isfinite(gradient)))


def test_no_gradient_of_the_mean_loss_flows_through_presence():
  gradient = jax.grad(lambda p: oflax.present_mean(H[0, :, 0], p))(P)
  np.testing.assert_array_equal(gradient, np.zeros(5))


def test_compose_applies_the_first_function_first():
  double, increment = (lambda h: 2 * h), (lambda h: h + 1)
  assert oflax.compose(double, increment)(3.0) == 7.0
  assert oflax.compose()(3.0) == 3.0
  assert oflax.residual(oflax.compose(double, increment))(3.0) == 10.0


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.float16])
def test_outputs_have_the_carriers_dtype(dtype):
  h = H.astype(dtype)
  p = oflax.presence(h)
  assert p.dtype == jnp.float32
  outputs = (
    oflax.o_gate(h, p),
    oflax.o_norm(h, p, scale=jnp.ones(8)),
    oflax.o_inject(h, H, p),
    oflax.o_standardize(h, p),
    oflax.o_pool(h, p),
    oflax.nullify(h, p > 0.5),
  )
  assert {x.dtype for x in outputs} == {jnp.dtype(dtype)}


@pytest.mark.parametrize(
  ("call", "message"),
  [
    (lambda: oflax.presence(H.astype(int)), "carrier must be floating"),
    (lambda: oflax.presence(H, 0.0), "tau must be positive .*got 0.0"),
    (lambda: oflax.presence(H, -1.0), "tau must be positive .*got -1.0"),
    (lambda: oflax.presence(H, float("nan")), "tau must be .*got nan"),
    (lambda: oflax.presence(H, 1e-40), "tau must be positive .*got 1e-40"),
    (lambda: jax.jit(oflax.presence)(H, jnp.ones(3)), "tau must be a scalar"),
    (lambda: oflax.presence(H, jnp.ones(3)), r"tau must be a scalar.*\(3,\)"),
    (lambda: oflax.presence(1.0), r"carrier must be .*got shape \(\)"),
    (lambda: oflax.calibrate_tau(0 * H), "carriers hold no present token"),
    (lambda: oflax.calibrate_tau(H / 0), "carriers must be finite"),
    (lambda: oflax.calibrate_tau(H, presence=1.0), "presence .*got 1.0"),
    (lambda: oflax.calibrate_tau(H, quantile=2.0), "quantile .*got 2.0"),
    (lambda: oflax.nullify(H, P), "present must be boolean, got float32"),
    (lambda: oflax.nullify(H, P[:2] > 0), r"present must have .*got \(2,\)"),
    (lambda: oflax.o_gate(H, P[:2]), r"presence must have .*got \(2,\)"),
    (lambda: oflax.o_gate(H[0, 0], P), r"update must be .*got shape \(8,\)"),
    (lambda: oflax.o_norm(H, P, kind="group"), "kind must be .*'group'"),
    (lambda: oflax.o_norm(H, P, epsilon=0.0), "epsilon must be .*got 0.0"),
    (lambda: oflax.o_norm(H, P, scale=P), r"scale must have .*got \(5,\)"),
    (lambda: oflax.o_inject(H, H[:, :2], P), r"signal of shape \(3, 2, 8\)"),
    (lambda: oflax.o_standardize(H, P, epsilon=-1.0), "epsilon .*got -1.0"),
    (lambda: oflax.present_mean(H, P), r"presence must have .*got \(5,\)"),
  ],
)
def test_wrong_input_is_named_with_its_value(call, message):
  with pytest.raises(ValueError, match=message):
    call()

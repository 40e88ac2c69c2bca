"""A module on a mesh: its state, cut as the rules say, and a train step."""

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import contextlib
import functools
from typing import Any
from typing import NamedTuple

from flax import linen as nn
import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec
import numpy as np
import optax

from oflax.linen import placement
from oflax.linen.placement import Rules
from oflax.sharding import rules as tables
from oflax.training import state as states
from oflax.training.state import TrainState
from oflax.training.step import Loss
from oflax.training.step import Step
from oflax.training.step import train_step


class Sharded(NamedTuple):
  """A state on a mesh, and the step that trains it there: what `shard` returns.

  Attributes:
    state: Before the first step, cut from the start.
    step: ``(state, batch) -> (state, metrics)``, as of
      `oflax.training.train_step`. It puts what it is given where it belongs.
    state_shardings: Where each array of the state lies; in and out.
    batch_shardings: Where each array of a batch lies.
    mesh: The mesh.
    rules: What cuts what on it.
    program: The jitted step, to be lowered and looked at within `on_mesh`.

  Example:
    >>> Sharded._fields[:2]
    ('state', 'step')
  """

  state: TrainState
  step: Step
  state_shardings: Any
  batch_shardings: Any
  mesh: Mesh
  rules: Rules
  program: Any


def shard(
  module: nn.Module,
  mesh: Mesh,
  rules: Rules = tables.RULES,
  *,
  tx: optax.GradientTransformation,
  key: jax.Array,
  batch: Any,
  loss_fn: Loss,
  forward: Callable[..., Any] = states.whole,
  variables: Mapping[str, Any] | None = None,
  names: Sequence[tuple[str, tuple[str, ...]]] = (),
  batch_axes: Sequence[str | None] = ("batch",),
  microbatches: int = 1,
) -> Sharded:
  """Puts a module on a mesh: to train there is to train on one device.

  Which parallelism it is, the axes of the mesh say: "data" cuts samples, "fsdp"
  samples and parameters, "tensor" heads and hidden features, "sequence" tokens.
  Each may be there or not. Sequences are filled up with nulls where the mesh
  does not divide them; of a parameter such an axis stays whole.

  Args:
    module: What to train.
    mesh: Devices, such as ``jax.make_mesh((4, 2), ("data", "tensor"))``.
    rules: Logical axes and the mesh axes that cut them, the first ones first.
    tx: The optimizer.
    key: As of `oflax.training.create_state`.
    batch: Arrays, or their shapes, of all processes together.
    loss_fn: As of `oflax.training.train_step`; it sees the whole batch.
    forward: As of `oflax.training.create_state`.
    variables: Start from these instead of initialising.
    names: Ends of paths and names of axes, for parameters of your own. Those
      that a module boxes by `nn.with_logical_partitioning` have names already.
    batch_axes: Names of the leading axes of every array of a batch.
    microbatches: As of `oflax.training.train_step`.

  Returns:
    State, step and their shardings.

  Raises:
    ValueError: `mesh` has an axis that no rule names.

  Example:
    >>> import jax, jax.numpy as jnp, optax, oflax
    >>> from oflax.linen import OTransformer
    >>> model = OTransformer(num_layers=1, num_heads=2, mlp_dim=8)
    >>> def loss_fn(variables, h, rng):
    ...   errors = jnp.sum((model.apply(variables, h) - h) ** 2, -1)
    ...   return oflax.present_mean(errors, oflax.presence(h)), {}
    >>> mesh = jax.make_mesh((1, 1), ("data", "sequence"))
    >>> h = jnp.ones((2, 3, 4))
    >>> state, step, *_ = shard(
    ...   model, mesh, tx=optax.sgd(0.1), key=jax.random.key(0), batch=h,
    ...   loss_fn=loss_fn,
    ... )
    >>> state, metrics = step(state, h)
    >>> int(state.step)
    1

  Reference: flax.linen.spmd; jax.sharding.
  """
  mesh = Mesh(mesh.devices, mesh.axis_names)  # JAX places what is between.
  _check(mesh, rules)
  place = functools.partial(_place, mesh, rules)
  shapes = jax.tree.map(
    lambda x: jax.ShapeDtypeStruct(np.shape(x), jnp.result_type(x)), batch
  )
  init = functools.partial(module.init, method=forward)

  def initial(key: jax.Array, variables: Any) -> Any:
    if variables is not None:
      return variables
    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
    return init(jax.random.split(key)[0], zeros)

  def create(key: jax.Array, variables: Any) -> TrainState:
    variables = {"params": {}, **nn.meta.unbox(initial(key, variables))}
    return states.create_state(
      module, tx, key, None, forward=forward, variables=variables
    )

  boxed = jax.eval_shape(initial, key, variables).get("params", {})
  params = jax.tree_util.tree_map_with_path(
    lambda path, x: _placed_parameter(place, path, x, (*names, *tables.NAMES)),
    boxed,
    is_leaf=_is_boxed,
  )
  like = jax.eval_shape(create, key, variables)
  whole = place((), ())
  state_shardings = jax.tree.map(lambda _: whole, like).replace(
    params=params,
    opt_state=optax.tree_utils.tree_map_params(
      tx,
      _as_parameter,
      like.opt_state,
      params,
      transform_non_params=lambda _: whole,
    ),
  )
  batch_shardings = jax.tree.map(
    lambda x: place([*batch_axes, *[None] * x.ndim][: x.ndim], x.shape),
    shapes,
  )
  state = jax.jit(create, out_shardings=state_shardings)(key, variables)
  program = jax.jit(
    train_step(loss_fn, microbatches=microbatches),
    in_shardings=(state_shardings, batch_shardings),
    out_shardings=(state_shardings, whole),
  )

  def step(state: TrainState, batch: Any) -> Any:
    placed = jax.device_put(state, state_shardings)
    with on_mesh(mesh, rules):
      return program(placed, put(batch, batch_shardings))

  return Sharded(
    state, step, state_shardings, batch_shardings, mesh, rules, program
  )


@contextlib.contextmanager
def on_mesh(mesh: Mesh, rules: Rules = tables.RULES) -> Iterator[None]:
  """A context in which modules compute on a mesh, under jit.

  Args:
    mesh: The mesh.
    rules: What cuts what on it.

  Example:
    >>> import jax, jax.numpy as jnp
    >>> from oflax.linen import OTransformer
    >>> model = OTransformer(num_layers=1, num_heads=2, mlp_dim=8)
    >>> h = jnp.ones((2, 3, 4))
    >>> variables = model.init(jax.random.key(0), h)
    >>> with on_mesh(jax.make_mesh((1,), ("sequence",))):
    ...   jax.jit(model.apply)(variables, h).shape
    (2, 3, 4)

  Reference: flax.linen.logical_axis_rules; jax.set_mesh.
  """
  automatic = Mesh(mesh.devices, mesh.axis_names)
  with jax.set_mesh(automatic), nn.logical_axis_rules(rules):
    yield


def put(batch: Any, shardings: Any) -> Any:
  """A batch on the devices: of several processes, each has its own rows.

  Args:
    batch: Arrays; those that lie on all devices already stay there.
    shardings: Where each is to lie.

  Returns:
    Arrays of all devices.

  Example:
    >>> import jax
    >>> device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    >>> put([1.0, 2.0], [device, device])[1].item()
    2.0
  """

  def one(x: Any, sharding: Any) -> jax.Array:
    if jax.process_count() == 1:
      return jax.device_put(x, sharding)
    if isinstance(x, jax.Array) and not x.is_fully_addressable:
      return x
    return jax.make_array_from_process_local_data(sharding, np.asarray(x))

  return jax.tree.map(one, batch, shardings)


def _check(mesh: Mesh, rules: Rules) -> None:
  known = {
    axis
    for _, axes in rules
    for axis in ((axes,) if isinstance(axes, str) else axes or ())
  }
  for axis in mesh.axis_names:
    if axis not in known:
      raise ValueError(
        f"mesh has the axis {axis!r}, which no rule names: they know"
        f" {sorted(known)}."
      )


def _place(
  mesh: Mesh, rules: Rules, names: Sequence[str | None], shape: Sequence[int]
) -> NamedSharding:
  spec = placement.spec(names, shape, dict(mesh.shape), rules)
  return NamedSharding(mesh, spec)


def _is_boxed(x: Any) -> bool:
  return isinstance(x, nn.LogicallyPartitioned)


def _placed_parameter(place: Any, path: Any, x: Any, table: Any) -> Any:
  if _is_boxed(x):
    return place(x.names, x.value.shape)
  name = jax.tree_util.keystr(path, simple=True, separator="/")
  return place(tables.names_of(name, x.ndim, table), x.shape)


def _as_parameter(moment: Any, sharding: NamedSharding) -> NamedSharding:
  """Where a moment of a parameter lies; whole if it is of another shape."""
  sizes, spec = sharding.mesh.shape, sharding.spec
  fits = len(spec) <= moment.ndim and all(
    size % placement.count(axes, dict(sizes)) == 0
    for axes, size in zip(spec, moment.shape, strict=False)
  )
  return sharding if fits else NamedSharding(sharding.mesh, PartitionSpec())

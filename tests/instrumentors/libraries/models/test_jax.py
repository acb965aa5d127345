"""JAX: the calls of jitted functions, their compilation, and the waits for their results."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from stagelens.instrumentors.api import request
from stagelens.instrumentors.libraries.jax import JaxInstrumentor
from tests.instrumentors.libraries.drivers import instrumenting
from tests.instrumentors.libraries.models.beside import beside

if TYPE_CHECKING:
    from conftest import Finished

pytestmark = pytest.mark.stacks
# Large enough that a call takes longer than 20 µs, and its result longer than the call.
X = np.ones((500, 500), np.float32)


@pytest.fixture
def jax() -> Generator[Any]:
    with instrumenting(JaxInstrumentor()):
        yield beside("models", "jax")


def network(x: Any) -> Any:
    return x @ x @ x @ x


def test_the_first_call_is_a_load_and_a_later_one_a_forward(jax: Any, finished: Finished) -> None:
    jitted = jax.jit(network)
    stages: list[str] = []
    for size in (500, 500, 400):
        with request("predict"):
            jitted(X[:size, :size]).block_until_ready()
        stages += [stage for stage in finished.stages() if stage == "load"] or ["warm"]
        assert "forward" in finished.stages()
        assert finished.facts() == {"@model": "network"}
        finished.clear()

    assert stages == ["load", "warm", "load"]


def test_a_wait_for_a_result_is_a_forward(jax: Any, finished: Finished) -> None:
    jitted = jax.jit(network)
    jitted(X)
    waits = (
        lambda y: y.block_until_ready(),
        jax.block_until_ready,
        lambda y: jax.block_until_ready((y, y)),
        lambda y: y.tolist(),
        lambda y: float(y[0, 0]),
        lambda y: y[0, 0].item(),
        *([np.asarray, memoryview] if sys.version_info >= (3, 12) else []),
    )
    for wait in waits:
        stages: list[str] = []
        while not stages:
            result = jitted(X)
            with request("wait"):
                wait(result)
            stages = finished.stages()
            finished.clear()
        assert set(stages) == {"forward"}


def test_the_creation_of_an_array_is_a_preprocess(jax: Any, finished: Finished) -> None:
    rows = X.tolist()
    jitted = jax.jit(lambda x: x + jax.numpy.asarray(rows))
    with request("predict"):
        x = jax.numpy.array(rows)
        jax.numpy.asarray(rows)
    assert finished.stages() == ["preprocess", "preprocess"]
    finished.clear()
    with request("predict"):
        jitted(x).block_until_ready()
    assert "preprocess" not in finished.stages()


def test_an_operation_keeps_its_place_in_the_code(jax: Any) -> None:
    def copy(x: Any) -> Any:
        return jax.numpy.array(x)

    assert f"{Path(__file__).name}:" in jax.make_jaxpr(copy)(X).pretty_print(source_info=True)


def test_the_buffer_of_an_array_is_unchanged(jax: Any) -> None:
    x = jax.device_put(X, may_alias=False)
    first, second = np.asarray(x), np.asarray(x)
    assert np.shares_memory(first, second)
    assert not first.flags.writeable
    del x, second
    assert np.array_equal(first, X)
    with pytest.raises(BufferError, match="BF16"):
        memoryview(jax.numpy.ones(3, jax.numpy.bfloat16))


def test_jitted_functions_look_unchanged(jax: Any, finished: Finished) -> None:
    class Model:
        @functools.partial(jax.jit, static_argnums=0)
        def scale(self, x: Any) -> Any:
            return inner(x) * 2

    @jax.jit
    def inner(x: Any) -> Any:
        return (x**2).sum()

    plain = inner.jitted
    assert (inner.__name__, inner.__doc__, inner.__wrapped__) == (plain.__name__, plain.__doc__, plain.__wrapped__)
    assert inspect.signature(inner) == inspect.signature(plain)
    assert isinstance(inner, jax.stages.Wrapped)
    assert repr(inner) == repr(plain)
    assert jax.grad(inner)(3.0) == 6
    assert jax.vmap(inner)(X).shape == (500,)
    assert jax.eval_shape(inner, X).shape == ()
    assert inner.lower(X).compile()(X) == X.size
    model = Model()
    with request("predict"):
        model.scale(X).block_until_ready()
    assert finished.facts() == {"@model": "Model.scale"}
    assert finished.stages().count("load") == 1

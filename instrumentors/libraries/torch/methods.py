"""Methods of `torch.Tensor` that are replaced, so that nothing but their time is noticed."""

from __future__ import annotations

import functools
import threading
import types
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from typing import Any


class Method:
    """What stands in the place of a method of `torch.Tensor`.

    Torch hands the method itself to `__torch_function__`, where tensor subclasses look it up in sets and dicts of their
    own: ours equals the original, whichever of the two they were built with. As with the original, an attribute that is
    set on a tensor itself comes before it.
    """

    def __init__(self, function: Callable[..., Any], original: Any) -> None:
        # What it is bound to shows the names of the original, and is pickled by them.
        self._function = functools.update_wrapper(function, original)
        self.original = original
        # Whether Dynamo is tracing: whoever has kept `torch.Tensor.to` may call it where it does.
        self.is_traced: Callable[[], bool] = bool

    def __get__(self, tensor: Any, owner: type | None = None) -> Any:
        """Bind as a method does."""
        return self if tensor is None else types.MethodType(self._function, tensor)

    def __call__(self, *args: Any, **options: Any) -> Any:
        """Work unbound: `torch.Tensor.to(x, "cpu")`."""
        # Without a tensor the original says so.
        return (self.original if self.is_traced() or not args else self._function)(*args, **options)

    def __eq__(self, other: object) -> bool:
        """Be equal to the original, and to whatever else stood in its place."""
        return other is self.original or (isinstance(other, Method) and other.original is self.original)

    def __hash__(self) -> int:
        """Be found where the original is."""
        return hash(self.original)

    def __repr__(self) -> str:
        """Look like the original."""
        return repr(self.original)

    def __reduce__(self) -> Any:
        """Pickle as the original does: by name."""
        return self.original.__reduce__()


class Methods:
    """The methods of `torch.Tensor` that copy, replaced; away while anything is compiled.

    Dynamo knows a tensor's method by being the one in C, and cannot trace another: what it compiles must find the
    originals. Copies of other threads are not timed meanwhile.

    Attributes:
        compiling: How many compilations are going on.
    """

    def __init__(self) -> None:
        self._ours: dict[str, Method] = {}
        self._owner: Any = None
        self._lock = threading.Lock()
        self.compiling = 0

    def put(self, owner: Any, makers: Mapping[str, Callable[[Any], Method]], is_traced: Callable[[], bool]) -> None:
        """Replace methods of *owner*, `torch.Tensor`; what it does not inherit was replaced by somebody else."""
        with self._lock:
            if self._ours:
                return
            self._owner = owner
            for name, make in makers.items():
                if name not in vars(owner) and hasattr(owner, name):
                    original = getattr(owner, name)
                    self._ours[name] = method = make(original)
                    method.is_traced = is_traced
                    functools.update_wrapper(method, original)
            if not self.compiling:
                self._set()

    def remove(self) -> None:
        """Leave them to the base class again."""
        with self._lock:
            self._unset()
            self._ours = {}

    def hide(self, attributes: dict[str, Any]) -> None:
        """Put the originals into a table of attributes that has ours."""
        for name, method in self._ours.items():
            if attributes.get(name) is method:
                attributes[name] = method.original

    @contextmanager
    def away(self) -> Generator[None]:
        """Have the originals in place for as long as the context lasts."""
        with self._lock:
            self.compiling += 1
            self._unset()
        try:
            yield
        finally:
            with self._lock:
                self.compiling -= 1
                if not self.compiling:
                    self._set()

    def _set(self) -> None:
        for name, method in self._ours.items():
            if name not in vars(self._owner):
                setattr(self._owner, name, method)

    def _unset(self) -> None:
        for name, method in self._ours.items():
            if vars(self._owner).get(name) is method:
                delattr(self._owner, name)


methods = Methods()

"""Pipelines of transformers: `preprocess`, `forward`, `postprocess`.

Each pipeline, also one of the user's, has its own `preprocess` and `postprocess`; only `forward` is everybody's. So it is
not these methods that are replaced, but what calls them: of the time an item takes, what lies before the last `forward`
is `preprocess` and what lies after it is `postprocess`. In a batch the first item waits for the batch, and the others are
only unrolled from it: they are `postprocess`.
"""

from __future__ import annotations

import threading
from typing import Any

from ...instrumentor import report
from ...records import MAX_MARKS, OPEN, Marks, clock, current
from .pretrained import describe


class _Thread(threading.local):
    """The item that this thread works on, and when its last `forward` began and ended, by `clock`; 0 before it."""

    inside_item = inside_forward = False
    begun = ended = 0


_thread = _Thread()


def item(original: Any) -> Any:
    """Wrap a method that takes one item all the way: `run_single` of a pipeline, `__next__` of its outermost iterator."""

    def call(self: Any, *args: Any, **options: Any) -> Any:
        marks = current.get()
        if marks is None or marks[0] != OPEN or _thread.inside_item:
            return original(self, *args, **options)
        _thread.inside_item = True
        _thread.begun = _thread.ended = 0
        # What follows if no forward comes: all was in vain before it, or all was done before the item.
        alone = "preprocess"
        begun = clock()
        try:
            result = original(self, *args, **options)
            alone = "postprocess"
            return result  # noqa: TRY300 - the stage is known only here
        except StopIteration:
            alone = ""
            raise
        finally:
            _thread.inside_item = False
            _mark(marks, begun, alone)

    return call


def forward(original: Any) -> Any:
    """Wrap `Pipeline.forward`, which takes the tensors to the device and back around the pipeline's own `_forward`."""

    def forward(self: Any, model_inputs: Any, **options: Any) -> Any:
        marks = current.get()
        if marks is None or marks[0] != OPEN or _thread.inside_forward:
            return original(self, model_inputs, **options)
        _thread.inside_forward = True
        begun = _thread.begun = clock()
        try:
            return original(self, model_inputs, **options)
        finally:
            ended = _thread.ended = clock()
            _thread.inside_forward = False
            if len(marks) < MAX_MARKS:
                marks.extend(("forward", begun, ended))
                _describe(marks, self)

    return forward


def get_iterator(original: Any) -> Any:
    """Wrap `Pipeline.get_iterator`, which is given a list for the items of a request."""

    def get_iterator(self: Any, inputs: Any, *args: Any, **options: Any) -> Any:
        marks = current.get()
        if marks is not None and marks[0] == OPEN and isinstance(inputs, list) and len(marks) < MAX_MARKS:
            marks.extend(("@batch", len(inputs), 0))
        return original(self, inputs, *args, **options)

    return get_iterator


def _mark(marks: Marks, begun: int, alone: str) -> None:
    if len(marks) >= MAX_MARKS:
        return
    if _thread.ended:
        marks.extend(("preprocess", begun, _thread.begun, "postprocess", _thread.ended, clock()))
    elif alone:
        marks.extend((alone, begun, clock()))


def _describe(marks: Marks, pipeline: Any) -> None:
    try:
        marks.extend(describe(pipeline.model))
    except Exception:
        report("naming the model of a pipeline")

"""What a thread needs from the driver of a device before it may ask for events.

It must have the context of a device that is in use: a thread without one is given that of the first device, and where that
has none it is made there, which takes half a gigabyte of its memory (https://github.com/pytorch/pytorch/pull/135273). And it
must not count during the captures of others: a capture forbids all threads to ask for events, and fails if one does; a
thread in the relaxed mode may.
"""

from __future__ import annotations

import ctypes
import threading

# cudaStreamCaptureModeRelaxed. https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__STREAM.html
RELAXED = 2


class Driver:
    """The driver's library, of which AMD's has the same functions by other names.

    Args:
        library: Its file.
        prefix: What its functions begin with.
    """

    def __init__(self, library: str, prefix: str) -> None:
        self._library = library
        self._prefix = prefix
        self._prepared = threading.local()

    def prepare(self, device: int) -> None:
        """Get this thread ready for asking events, once.

        Args:
            device: The index of one that is in use.

        Raises:
            AttributeError: The library lacks a function.
            OSError: There is no such library.
            RuntimeError: It refused.
        """
        if getattr(self._prepared, "done", False):
            return
        context, handle = ctypes.c_void_p(), ctypes.c_int()
        self._call("CtxGetCurrent", ctypes.byref(context))
        if not context:
            self._call("DeviceGet", ctypes.byref(handle), device)
            self._call("DevicePrimaryCtxRetain", ctypes.byref(context), handle)
            self._call("CtxSetCurrent", context)
        self._call("ThreadExchangeStreamCaptureMode", ctypes.byref(ctypes.c_int(RELAXED)))
        self._prepared.done = True

    def _call(self, name: str, *args: object) -> None:
        function = f"{self._prefix}{name}"
        error = getattr(ctypes.CDLL(self._library), function)(*args)
        if error:
            message = f"{function} must return 0 before events may be asked for, got {error}"
            raise RuntimeError(message)

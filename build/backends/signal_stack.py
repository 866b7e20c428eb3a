"""The stack that signal handlers of this thread run on, kept as it was around an engine's work.

An engine on the CPU (OpenVINO 2026.4.1) puts one of its own in place and leaves its address behind when the
engine is gone. Python's handlers run on that stack (SA_ONSTACK, since Python 3.11), so the next Ctrl-C, or
SIGTERM that is handled, would end the process with a segmentation fault.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator


class _SignalStack(ctypes.Structure):
    """`stack_t` of Linux."""

    _fields_ = (("sp", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t))


@contextlib.contextmanager
def kept_signal_stack() -> Iterator[None]:
    """Put the calling thread's alternate signal stack back at the end, whatever was done to it meanwhile."""
    library = ctypes.CDLL(None)
    before = _SignalStack()
    library.sigaltstack(None, ctypes.byref(before))
    try:
        yield
    finally:
        library.sigaltstack(ctypes.byref(before), None)

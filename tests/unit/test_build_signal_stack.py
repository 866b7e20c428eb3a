"""The stack of signal handlers is as it was, whatever an engine did to it."""

from __future__ import annotations

import subprocess
import sys

# as an engine does: a stack is put in place, and its memory is gone when it is next needed
CHILD = """
import ctypes, mmap, signal, sys
from trtb.build.backends.signal_stack import _SignalStack, kept_signal_stack

library = ctypes.CDLL(None, use_errno=True)
library.mmap.restype = ctypes.c_void_p

def leave_a_stack_behind():
    size = 1 << 16
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    at = library.mmap(None, ctypes.c_size_t(size), mmap.PROT_READ | mmap.PROT_WRITE, flags, -1, 0)
    assert library.sigaltstack(ctypes.byref(_SignalStack(at, 0, size)), None) == 0
    library.munmap(ctypes.c_void_p(at), ctypes.c_size_t(size))

if sys.argv[1] == "kept":
    leave_a_stack_behind = kept_signal_stack()(leave_a_stack_behind)
leave_a_stack_behind()
signal.signal(signal.SIGTERM, lambda *_: print("heard"))
signal.raise_signal(signal.SIGTERM)
"""


def outcome(kind: str) -> tuple[int, str]:
    done = subprocess.run([sys.executable, "-c", CHILD, kind], capture_output=True, text=True, check=False)
    return done.returncode, done.stdout


def test_a_signal_is_heard_after_a_stack_was_left_behind():
    assert outcome("kept") == (0, "heard\n")


def test_without_that_the_process_dies():
    """Else this would test nothing: Python's handlers run on that stack from 3.11 on."""
    code, told = outcome("not kept")
    assert (code, told) == ((-11, "") if sys.version_info >= (3, 11) else (0, "heard\n"))

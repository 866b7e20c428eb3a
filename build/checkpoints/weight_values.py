"""Whether a checkpoint's weights are numbers: one that is not is found before hours of work on it.

A training that diverged, or a file that was damaged before it was hashed, leaves NaN or infinity; what is
made of one answers nothing but noise. Read at the disk's speed, memory holds a part of one tensor.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from trtb.build.checkpoints.safetensors_file import StoredTensor
from trtb.build.errors import CheckpointError

if TYPE_CHECKING:
    import numpy as np

_CHUNK_VALUES: Final = 1 << 22
# dtype -> numpy's type of the bits, and those of the exponent: all of them set mean NaN or infinity
_EXPONENTS: Final = {
    "BF16": ("<u2", 0x7F80),
    "F16": ("<u2", 0x7C00),
    "F32": ("<u4", 0x7F800000),
    "F64": ("<u8", 0x7FF0000000000000),
}


def check_finite(tensors: Iterable[StoredTensor]) -> None:
    """Read every value of tensors in floating point.

    Raises:
        CheckpointError: One is NaN or infinite; the message names its tensor.
    """
    for tensor in tensors:
        if tensor.dtype in _EXPONENTS and not _is_finite(tensor):
            raise not_finite(tensor)


def not_finite(tensor: StoredTensor) -> CheckpointError:
    """Return the error that names a tensor with a value that is not finite."""
    return CheckpointError(
        f"{tensor.path}: {tensor.name}: NaN or infinity in the checkpoint's own weights; "
        "expected finite numbers",
        "fetch the checkpoint again; where it is the same there, choose another",
    )


def _is_finite(tensor: StoredTensor) -> bool:
    import numpy as np

    kind, exponent = _EXPONENTS[tensor.dtype]
    dtype = np.dtype(kind)
    mask = dtype.type(exponent)
    with tensor.path.open("rb") as file:
        file.seek(tensor.offset)
        num_left = tensor.size_bytes // dtype.itemsize
        while num_left:
            bits: np.ndarray[Any, Any] = np.fromfile(file, dtype, min(_CHUNK_VALUES, num_left))
            if not bits.size:
                raise CheckpointError(
                    f"{tensor.path}: {tensor.name}: cut off; expected {num_left} values more"
                )
            bits &= mask
            if bits.max() == mask:
                return False
            num_left -= bits.size
    return True

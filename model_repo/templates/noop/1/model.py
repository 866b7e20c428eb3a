"""A model of the same contract that answers at once: what remains is the cost of everything around it."""

from __future__ import annotations

import numpy as np
import triton_python_backend_utils as pb_utils

from trtb.model_repo import contract

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
NUM_TOKENS = 16


class TritonPythonModel:
    """Triton's interface of a python-backend model."""

    def execute(self, requests: list) -> None:
        """Answer each request with the same few tokens (ids 1000 up, as many as asked, at most 16)."""
        for request in requests:
            wanted = pb_utils.get_input_tensor_by_name(request, contract.REQUEST_OUTPUT_LEN.name)
            num_tokens = min(NUM_TOKENS, int(wanted.as_numpy().reshape(-1)[0]))
            tokens = np.arange(1000, 1000 + num_tokens, dtype=np.int32).reshape(1, 1, -1)
            length = np.array([[num_tokens]], dtype=np.int32)
            response = pb_utils.InferenceResponse(
                [
                    pb_utils.Tensor(contract.OUTPUT_IDS.name, tokens),
                    pb_utils.Tensor(contract.SEQUENCE_LENGTH.name, length),
                ]
            )
            request.get_response_sender().send(response, flags=FINAL)

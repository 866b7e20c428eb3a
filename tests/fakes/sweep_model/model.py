"""A model of the contract that streams at once, and misbehaves.

With FAILS_FROM requests in flight every tenth fails; the first prompt of STALLS_AT tokens is never answered.
"""

from __future__ import annotations

import threading
import time

import numpy as np
import triton_python_backend_utils as pb_utils

from trtb.model_repo import contract

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
FAILS_FROM = 12
STALLS_AT = 13
TOKEN_S = 0.005


class TritonPythonModel:
    """Triton's interface of a python-backend model."""

    def initialize(self, args: dict[str, str]) -> None:
        self._lock = threading.Lock()
        self._num_in_flight = 0
        self._num_seen = 0
        self._has_stalled = False

    def execute(self, requests: list) -> None:
        for request in requests:
            wanted = pb_utils.get_input_tensor_by_name(request, contract.REQUEST_OUTPUT_LEN.name)
            num_tokens = int(wanted.as_numpy().reshape(-1)[0])
            prompt = pb_utils.get_input_tensor_by_name(request, contract.INPUT_IDS.name)
            sender = request.get_response_sender()
            if prompt.as_numpy().size == STALLS_AT and not self._has_stalled:
                self._has_stalled = True
                continue  # and never answers
            with self._lock:
                self._num_in_flight += 1
                self._num_seen += 1
                load, number = self._num_in_flight, self._num_seen
            threading.Thread(
                target=self._answer, args=(sender, num_tokens, load, number), daemon=True
            ).start()

    def _answer(self, sender: object, num_tokens: int, load: int, number: int) -> None:
        for index in range(num_tokens):
            time.sleep(TOKEN_S)
            sender.send(pb_utils.InferenceResponse(token_tensors([1000 + index])))
        if load >= FAILS_FROM and number % 10 == 0:
            error = pb_utils.TritonError("one in ten fails", pb_utils.TritonError.INTERNAL)
            sender.send(pb_utils.InferenceResponse(error=error), flags=FINAL)
        else:
            sender.send(pb_utils.InferenceResponse(token_tensors([])), flags=FINAL)
        with self._lock:
            self._num_in_flight -= 1


def token_tensors(tokens: list[int]) -> list:
    ids = np.array([[tokens]], dtype=np.int32)
    length = np.array([[len(tokens)]], dtype=np.int32)
    return [
        pb_utils.Tensor(contract.OUTPUT_IDS.name, ids),
        pb_utils.Tensor(contract.SEQUENCE_LENGTH.name, length),
    ]

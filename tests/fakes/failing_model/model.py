"""A model that answers at once, or fails a request, as `plan.json` beside it says while the server runs.

`fails` lists lines of the file that fail, or is "all"; `first` counts the requests that fail before any
is answered, from the time the plan was written.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils

from trtb.model_repo import contract

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
PLAN = Path(__file__).with_name("plan.json")


class TritonPythonModel:
    """Triton's interface of a python-backend model."""

    def initialize(self, args: dict) -> None:
        self._text = ""
        self._num_seen = 0

    def execute(self, requests: list) -> None:
        for request in requests:
            sender = request.get_response_sender()
            if self._fails(request.request_id()):
                error = pb_utils.TritonError("the engine is sick")
                sender.send(pb_utils.InferenceResponse(error=error), flags=FINAL)
                continue
            tokens = np.arange(1000, 1002, dtype=np.int32).reshape(1, 1, -1)
            response = pb_utils.InferenceResponse(
                [
                    pb_utils.Tensor(contract.OUTPUT_IDS.name, tokens),
                    pb_utils.Tensor(contract.SEQUENCE_LENGTH.name, np.array([[2]], dtype=np.int32)),
                ]
            )
            sender.send(response, flags=FINAL)

    def _fails(self, request_id: str) -> bool:
        if request_id == "probe":
            return False
        text = PLAN.read_text() if PLAN.exists() else "{}"
        if text != self._text:
            self._text, self._num_seen = text, 0
        self._num_seen += 1
        plan = json.loads(text)
        fails = plan.get("fails", [])
        if fails == "all" or self._num_seen <= plan.get("first", 0):
            return True
        return int(request_id.split("-")[1]) in fails

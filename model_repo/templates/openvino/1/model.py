"""The CPU twin of TensorRT-LLM's `tensorrt_llm` model: tensors on one side, the engine on the other.

Triton checks neither that a required input is there (once a model has optional ones) nor any value, and
an exception here would send a traceback with this machine's paths to the client. So everything is
checked in this file, and every failure is answered with an error of our own.
"""

from __future__ import annotations

import json
import os
import secrets
import sys
import threading
import time
from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils

# openvino sends usage events through this package, and leaves files in the home folder, unless it is absent
sys.modules["openvino_telemetry"] = None

from openvino_engine import Engine  # noqa: E402
from openvino_metrics import Metrics  # noqa: E402
from openvino_requests import Job, Sampling, Sequence, device_properties  # noqa: E402

from trtb.model_repo import contract  # noqa: E402

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
PARENT_POLL_S = 0.5


class RequestRefused(Exception):  # noqa: N818 (it is an answer, not a fault)
    """A request that cannot be run; the message is for the client."""


class TritonPythonModel:
    """Triton's interface of a python-backend model."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load the engine named by the model's parameters."""
        if int(np.__version__.split(".")[0]) >= 2:
            raise pb_utils.TritonModelException(
                "numpy 2 corrupts this backend's outputs; expected numpy 1.26"
            )
        config = json.loads(args["model_config"])
        parameters = {key: value["string_value"] for key, value in config["parameters"].items()}
        engine_dir = Path(args["model_repository"], parameters["engine_dir"]).resolve()
        manifest = json.loads((engine_dir / "manifest.json").read_text())
        limits = manifest["limits"]
        self._tokens_per_block = limits["tokens_per_block"]
        self._num_kv_blocks = int(parameters["num_kv_blocks"])
        self._max_batch_size = int(parameters["max_batch_size"])
        self._max_queue_size = int(parameters["max_queue_size"])
        _watch_parent()
        self._metrics = Metrics()
        self._engine = Engine(
            str(engine_dir),
            vocab_size=manifest["model"]["vocab_size"],
            max_seq_len=limits["max_seq_len"],
            num_kv_blocks=self._num_kv_blocks,
            tokens_per_block=self._tokens_per_block,
            max_num_tokens=int(parameters["max_num_tokens"]),
            max_batch_size=self._max_batch_size,
            is_reusing=parameters[contract.KV_REUSE_PARAMETER] == "true",
            properties=device_properties(
                deterministic=parameters["deterministic"] == "true",
                is_kv_quantised=parameters[contract.KV_DTYPE_PARAMETER] == "int8",
            ),
            log=pb_utils.Logger.log_warn,
            on_idle=self._update_metrics,
            on_fatal=_exit,
        )

    def execute(self, requests: list) -> None:
        """Hand each request to the engine; answers go out through its response sender."""
        for request in requests:
            sender = request.get_response_sender()
            try:
                self._submit(request, sender)
            except (RequestRefused, ValueError, RuntimeError) as exc:
                _send_error(sender, str(exc), pb_utils.TritonError.INVALID_ARG)

    def finalize(self) -> None:
        """End the engine's thread; the backend has waited for every request before it calls this.

        The bound is short: a metric that the thread is just sending is no longer taken, and blocks it.
        """
        self._engine.stop(timeout_s=1)

    def _submit(self, request: object, sender: object) -> None:
        if self._max_queue_size and self._engine.num_waiting >= self._max_queue_size:
            _send_error(sender, "Exceeds maximum queue size", pb_utils.TritonError.UNAVAILABLE)
            return
        inputs = read_inputs(request)
        ids, sampling = read_request(inputs)
        answer = _Answer(
            sender,
            prompt=[] if inputs.get(contract.EXCLUDE_INPUT_IN_OUTPUT.name, False) else ids,
            log_probs=sampling.log_probs,
            perf_metrics=inputs.get(contract.RETURN_PERF_METRICS.name, False),
            num_input=inputs.get(contract.RETURN_NUM_INPUT_TOKENS.name, False),
            num_output=inputs.get(contract.RETURN_NUM_OUTPUT_TOKENS.name, False),
            tokens_per_block=self._tokens_per_block,
            observe_ttft=self._metrics.ttft.observe,
        )
        streaming = inputs.get(contract.STREAMING.name, False)
        self._engine.submit(
            Job(
                ids=ids,
                sampling=sampling,
                on_tokens=answer.send_tokens if streaming else None,
                on_done=answer.send_final,
                on_error=answer.send_failure,
                is_cancelled=sender.is_cancelled,
            )
        )

    def _update_metrics(self) -> None:
        self._metrics.update(self._engine, self._num_kv_blocks, self._tokens_per_block, self._max_batch_size)


class _Answer:
    """Sends one request's responses, in the layout of the contract."""

    def __init__(
        self,
        sender,
        *,
        prompt,
        log_probs,
        perf_metrics,
        num_input,
        num_output,
        tokens_per_block,
        observe_ttft,
    ) -> None:
        self._sender = sender
        self._prompt = prompt
        self._log_probs = log_probs
        self._perf_metrics = perf_metrics
        self._num_input = num_input
        self._num_output = num_output
        self._tokens_per_block = tokens_per_block
        self._observe_ttft = observe_ttft

    def send_tokens(self, tokens: list[int]) -> None:
        """Send a streamed part: the new tokens only."""
        self._sender.send(pb_utils.InferenceResponse(_token_tensors(tokens, 0)))

    def send_final(self, job: Job) -> None:
        """Send what has not been streamed yet: a response for each sequence, the last one final."""
        self._observe_ttft((job.first_token_ns - job.arrival_ns) / 1e9)
        sequences = [job.sequences[index] for index in sorted(job.sequences)] or [Sequence()]
        for index, sequence in enumerate(sequences):
            tokens = sequence.tokens[job.num_sent :] if job.on_tokens else self._prompt + sequence.tokens
            tensors = _token_tensors(tokens, index)
            if self._log_probs:
                tensors.append(_tensor(contract.OUTPUT_LOG_PROBS, [[sequence.log_probs]], np.float32))
                tensors.append(_tensor(contract.CUM_LOG_PROBS, [[sum(sequence.log_probs)]], np.float32))
            if self._num_input:
                tensors.append(_tensor(contract.NUM_INPUT_TOKENS, [[len(job.ids)]], np.int32))
            if self._num_output:
                tensors.append(_tensor(contract.NUM_OUTPUT_TOKENS, [[len(tokens)]], np.int32))
            if self._perf_metrics:
                tensors += self._perf_tensors(job)
            is_last = index == len(sequences) - 1
            self._sender.send(pb_utils.InferenceResponse(tensors), flags=FINAL if is_last else 0)

    def send_failure(self, job: Job, message: str) -> None:
        """Answer with an error; a client that has cancelled no longer listens."""
        code = pb_utils.TritonError.CANCELLED if job.cancelled else pb_utils.TritonError.INTERNAL
        if job.has_no_room:
            code = pb_utils.TritonError.UNAVAILABLE  # as where the queue is full: it can be sent again
        _send_error(self._sender, message, code)

    def _perf_tensors(self, job: Job) -> list:
        num_blocks = -(-(len(job.ids) + len(job.tokens)) // self._tokens_per_block)
        return [
            _tensor(contract.KV_CACHE_ALLOC_TOTAL_BLOCKS, [[num_blocks]], np.int32),
            _tensor(contract.ARRIVAL_TIME_NS, [[job.arrival_ns]], np.int64),
            _tensor(contract.FIRST_SCHEDULED_TIME_NS, [[job.first_scheduled_ns]], np.int64),
            _tensor(contract.FIRST_TOKEN_TIME_NS, [[job.first_token_ns]], np.int64),
            _tensor(contract.LAST_TOKEN_TIME_NS, [[job.last_token_ns]], np.int64),
        ]


def read_inputs(request: object) -> dict[str, object]:
    """Return the request's tensors by name: scalars as Python values, the others as arrays without batch."""
    values: dict[str, object] = {}
    for spec in contract.INPUTS:
        tensor = pb_utils.get_input_tensor_by_name(request, spec.name)
        if tensor is None:
            continue
        array = tensor.as_numpy()
        if array.shape[:1] != (1,):
            raise RequestRefused(f"{spec.name} has the shape {list(array.shape)}; expected a batch of 1")
        values[spec.name] = array.reshape(-1)[0].item() if spec.scalar else array[0]
    return values


def read_request(inputs: dict[str, object]) -> tuple[list[int], Sampling]:
    """Check a request's values and return its prompt and its sampling.

    Raises:
        RequestRefused: A required tensor is missing, or a value is out of range.
    """
    for spec in (contract.INPUT_IDS, contract.INPUT_LENGTHS, contract.REQUEST_OUTPUT_LEN):
        if spec.name not in inputs:
            raise RequestRefused(f"{spec.name} is missing")
    ids = inputs[contract.INPUT_IDS.name].tolist()
    if inputs[contract.INPUT_LENGTHS.name] != len(ids):
        raise RequestRefused(
            f"input_lengths is {inputs[contract.INPUT_LENGTHS.name]}; expected {len(ids)}, the ids sent"
        )
    if inputs[contract.REQUEST_OUTPUT_LEN.name] < 1:
        raise RequestRefused(
            f"request_output_len is {inputs[contract.REQUEST_OUTPUT_LEN.name]}; expected at least 1"
        )
    return ids, _read_sampling(inputs)


def _read_sampling(inputs: dict[str, object]) -> Sampling:
    stop_words = []
    if contract.STOP_WORDS_LIST.name in inputs:
        rows = inputs[contract.STOP_WORDS_LIST.name]
        stop_words = contract.unpack_stop_words(rows[0].tolist(), rows[1].tolist())
    num_sequences = inputs.get(contract.NUM_RETURN_SEQUENCES.name, 1)
    top_k = inputs.get(contract.TOP_K.name, 0)
    if num_sequences < 1 or (num_sequences > 1 and top_k == 1):
        raise RequestRefused(
            f"num_return_sequences is {num_sequences}; expected at least 1, and 1 where runtime_top_k is 1"
        )
    top_p = inputs.get(contract.TOP_P.name, 1.0)
    seed = inputs.get(contract.SEED.name)
    return Sampling(
        max_tokens=inputs[contract.REQUEST_OUTPUT_LEN.name],
        end_id=inputs.get(contract.END_ID.name),
        stop_words=stop_words,
        temperature=inputs.get(contract.TEMPERATURE.name, 1.0),
        top_k=top_k,
        top_p=top_p if top_p > 0 else 1.0,  # TensorRT-LLM takes 0 as unset
        repetition_penalty=inputs.get(contract.REPETITION_PENALTY.name, 1.0),
        presence_penalty=inputs.get(contract.PRESENCE_PENALTY.name, 0.0),
        frequency_penalty=inputs.get(contract.FREQUENCY_PENALTY.name, 0.0),
        min_tokens=inputs.get(contract.MIN_TOKENS.name, 0),
        # the library's seed 0 is a fixed seed, not a random one
        seed=seed if seed is not None else secrets.randbits(63),
        log_probs=inputs.get(contract.RETURN_LOG_PROBS.name, False),
        num_sequences=num_sequences,
        guide=_read_guide(inputs),
    )


def _read_guide(inputs: dict[str, object]) -> tuple[str, str] | None:
    kind = inputs.get(contract.GUIDED_DECODING_GUIDE_TYPE.name)
    if kind is None:
        return None
    text = inputs.get(contract.GUIDED_DECODING_GUIDE.name)
    return kind[0].decode(), "" if text is None else text[0].decode()


def _token_tensors(tokens: list[int], index: int) -> list:
    return [
        _tensor(contract.OUTPUT_IDS, [[tokens]], np.int32),
        _tensor(contract.SEQUENCE_LENGTH, [[len(tokens)]], np.int32),
        _tensor(contract.SEQUENCE_INDEX, [[index]], np.int32),
    ]


def _tensor(spec: contract.TensorSpec, value: list, dtype: type) -> object:
    return pb_utils.Tensor(spec.name, np.array(value, dtype=dtype))


def _send_error(sender: object, message: str, code: int) -> None:
    sender.send(pb_utils.InferenceResponse(error=pb_utils.TritonError(message, code)), flags=FINAL)


def _watch_parent() -> None:
    """End this process when the server is gone: a stub that blocks in send() would stay for good."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(PARENT_POLL_S)
        os._exit(1)

    threading.Thread(target=watch, name="watch-parent", daemon=True).start()


def _exit(message: str) -> None:
    """End the process; whoever watches the server starts it again."""
    pb_utils.Logger.log_error(message)
    os._exit(1)

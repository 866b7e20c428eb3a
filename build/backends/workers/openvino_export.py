"""Worker of the optimum toolchain: a Hugging Face folder becomes OpenVINO IR with float16 weights.

Runs in the toolchain's python and reads only what its request names. The same weights are run once by
torch over the reference texts, so that the caller can hold the exported model to the one it came from.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import protocol

TASK = "text-generation-with-past"  # stateful: the KV cache is inside the model, as GenAI needs it


def export(request: dict[str, Any], progress: protocol.Progress) -> dict[str, Any]:
    """Write `openvino_model.xml` and `.bin` into `output_dir`, and score the reference texts.

    Request:
        model_dir: The Hugging Face folder: config.json and safetensors.
        output_dir: A folder to be made; gets configurations that nobody needs, too.
        trust_remote_code: Whether code in the folder may run.
        reference_ids: Texts as token ids.

    Reply:
        reference_log_probs: Of each text, the log probability of each token but the first, by torch.
        num_parameters, load_s, export_s.
    """
    started_s = time.monotonic()
    progress("load", "reading the weights")
    model = _load(Path(request["model_dir"]), trust_remote_code=request["trust_remote_code"])
    loaded_s = time.monotonic()
    progress("reference", f"scoring {len(request['reference_ids'])} texts by torch")
    log_probs = _score(model, request["reference_ids"])
    num_parameters = sum(parameter.numel() for parameter in model.parameters())
    scored_s = time.monotonic()
    progress("export", "tracing, float16 weights")
    _to_float16(model)
    _export(model, Path(request["output_dir"]))
    return {
        "reference_log_probs": log_probs,
        "num_parameters": num_parameters,
        "load_s": loaded_s - started_s,
        "export_s": time.monotonic() - scored_s,
    }


def _load(folder: Path, *, trust_remote_code: bool) -> Any:
    from transformers import AutoModelForCausalLM

    if not (folder / "config.json").is_file():  # transformers would take the path for a name on the hub
        raise protocol.InvalidError(f"{folder}: no config.json; expected a Hugging Face folder")
    model = AutoModelForCausalLM.from_pretrained(
        folder,
        dtype="auto",
        local_files_only=True,
        use_safetensors=True,
        trust_remote_code=trust_remote_code,
    )
    return model.eval()


def _score(model: Any, texts: list[list[int]]) -> list[list[float]]:
    """Return the log probability of each token but the first, of all texts in one batch.

    What fills a shorter text stands after it, where its tokens do not look.
    """
    import torch

    width = max(len(ids) for ids in texts)
    tokens = torch.tensor([ids + [0] * (width - len(ids)) for ids in texts])
    with torch.inference_mode():
        logits = model(input_ids=tokens, use_cache=False).logits
        scores = []
        for row, ids in zip(logits, texts, strict=True):
            log_probs = torch.log_softmax(row[: len(ids) - 1].float(), dim=-1)
            scores.append(log_probs.gather(1, torch.tensor(ids[1:])[:, None])[:, 0].tolist())
    return scores


def _to_float16(model: Any) -> None:
    """Convert the weights, not the buffers: a rotary frequency in half precision turns late positions."""
    import torch

    for name, parameter in model.named_parameters():
        parameter.data = parameter.data.to(torch.float16)
        if not torch.isfinite(parameter.data).all():
            raise protocol.UnsupportedError(
                f"{name}: a weight that is not a number, or beyond float16's largest, 65504",
                "this checkpoint needs an engine of another precision",
            )


def _export(model: Any, output_dir: Path) -> None:
    from optimum.exporters.openvino.convert import export_from_model
    from optimum.intel import OVConfig

    export_from_model(
        model=model,
        output=output_dir,
        task=TASK,
        ov_config=OVConfig(dtype="fp16"),  # without it, a model of over 1e9 weights comes out in 8 bits
        stateful=True,
        patch_16bit_model=True,
    )


if __name__ == "__main__":
    protocol.run(export)

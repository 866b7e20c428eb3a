"""A trtllm-build that computes nothing: it knows every flag, reads a checkpoint as strictly as the real one,
changes what the real one changes, and leaves a folder of the same form.

`install` puts it on a PATH with a python of its own, in which the libraries that trtb asks for their
versions can be imported. FAKE_TRTLLM, a JSON object, says what the machine is like and what goes wrong.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import signal
import stat
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

VARIABLE = "FAKE_TRTLLM"
FLAGS = Path(__file__).parents[1] / "data" / "trtllm_build_flags.json"
MACHINE: dict[str, Any] = {
    "tensorrt_llm": "1.2.1",
    "tensorrt": "10.14.1.48",
    "torch": "2.10.0a0",
    "driver": "590.44.01",
    "gpus": [["NVIDIA H100 80GB HBM3", 9, 0]],
    "fail": None,
}
GREETING = "[TensorRT-LLM] TensorRT-LLM version: {}"
FP8_ATTENTION = ("FP8", "W4A8_AWQ", "NVFP4")
FUSED_REDUCTIONS = {"LlamaForCausalLM", "Gemma2ForCausalLM", "MedusaForCausalLM"}
# of the real one's models, those with the layers that are looked for here
MODELS = {f"{name}ForCausalLM" for name in ("Llama", "Mistral", "Qwen2", "Qwen3", "Gemma")}
LINEARS = ("attention.qkv", "attention.dense", "mlp.fc", "mlp.gate", "mlp.proj")
# quant_algo -> dtype of the weights, and what stands beside each
SCHEMES: dict[str | None, tuple[str | None, tuple[str, ...]]] = {
    None: (None, ()),
    "W8A16": (None, ()),  # quantised as they are loaded
    "W4A16": (None, ()),
    "FP8": ("F8_E4M3", ("weights_scaling_factor", "activation_scaling_factor")),
    "W4A16_AWQ": ("I8", ("weights_scaling_factor", "prequant_scaling_factor")),
    "W4A8_AWQ": (
        "I8",
        (
            "weights_scaling_factor",
            "prequant_scaling_factor",
            "activation_scaling_factor",
            "weights_scaling_factor_2",
        ),
    ),
    "W8A8_SQ_PER_CHANNEL": (
        "I8",
        ("weights_scaling_factor", "activation_scaling_factor", "prequant_scaling_factor"),
    ),
    "NVFP4": ("U8", ("weights_scaling_factor", "weights_scaling_factor_2", "activation_scaling_factor")),
}
DTYPES = {"float16": "F16", "bfloat16": "BF16", "float32": "F32"}
# What is printed before it ends badly, and the status.
FAILURES = {
    "gpu_memory": (
        "[TRT] [W] Requested amount of GPU memory (24793579520 bytes) could not be allocated.",
        "[TRT] [E] [virtualMemoryBuffer.cpp::resizePhysical::151] Error Code 2: OutOfMemory",
        "[TRT-LLM] [E] Engine building failed, please check the error log.",
    ),
    "host_memory": ("Traceback (most recent call last):", "MemoryError"),
    "disk": ("OSError: [Errno 28] No space left on device",),
    "tensorrt_version": (
        "[TRT] [E] Error Code 6: (The engine plan file is not compatible with this version of TensorRT,",
        "expecting library version 10.14.1.48 got 10.13.3.9, please rebuild.)",
    ),
    "driver": ("CUDA driver version is insufficient for CUDA runtime version",),
    "mpi": ("It looks like orte_init failed for some reason; your parallel process is likely to abort.",),
    "crash": ("Traceback (most recent call last):", "AssertionError: something never seen before"),
}


def read_machine() -> dict[str, Any]:
    """Return what the environment says of the machine, over what a usual one is like."""
    return {**MACHINE, **json.loads(os.environ.get(VARIABLE, "{}"))}


def install(folder: Path) -> Path:
    """Make `bin/trtllm-build` and `bin/python3` below a folder, and return `bin`."""
    modules, programs = folder / "modules", folder / "bin"
    modules.mkdir(parents=True)
    programs.mkdir()
    for name in ("tensorrt_llm", "tensorrt"):
        greet = f"print({GREETING!r}.format(__version__))" if name == "tensorrt_llm" else ""
        (modules / f"{name}.py").write_text(
            f"from fake_machine import read\n__version__ = read()[{name!r}]\n{greet}\n"
        )
    (modules / "fake_machine.py").write_text(
        f"import json, os\ndef read():\n"
        f"    return {{**json.loads({json.dumps(json.dumps(MACHINE))}), "
        f"**json.loads(os.environ.get({VARIABLE!r}, '{{}}'))}}\n"
        "if read()['fail'] == 'no_libcuda':\n"
        "    raise ImportError('libcuda.so.1: cannot open shared object file: No such file or directory')\n"
    )
    (modules / "torch.py").write_text(
        "import types\nfrom fake_machine import read\n__version__ = read()['torch']\n"
        "def _properties(index):\n"
        "    name, major, minor = read()['gpus'][index]\n"
        "    return types.SimpleNamespace(name=name, major=major, minor=minor)\n"
        "cuda = types.SimpleNamespace(\n"
        "    device_count=lambda: len(read()['gpus']), get_device_properties=_properties)\n"
    )
    (modules / "pynvml.py").write_text(
        "from fake_machine import read\nclass NVMLError(Exception): pass\n"
        "def nvmlInit(): pass\ndef nvmlSystemGetDriverVersion(): return read()['driver']\n"
    )
    _write_program(
        programs / "python3", f'#!/bin/sh\nPYTHONPATH="{modules}" exec "{sys.executable}" -S "$@"\n'
    )
    _write_program(
        programs / "trtllm-build",
        f"#!{programs / 'python3'}\nimport runpy\n"
        f"runpy.run_path({str(Path(__file__))!r}, run_name='__main__')\n",
    )
    return programs


def _write_program(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the real flags; what it does not know, it refuses as the real one does."""
    parser = argparse.ArgumentParser(prog="trtllm-build")
    for row in _rows():
        if "alias_of" in row:
            continue
        names = [f"--{row['name']}"]
        names += [f"--{other['name']}" for other in _rows() if other.get("alias_of") == row["name"]]
        if row["kind"] == "bare":
            parser.add_argument(*names, action="store_true")
        else:
            parser.add_argument(
                *names,
                type=int if row["kind"] == "int" else str,
                nargs="+" if row["kind"] == "list" else None,
                choices=row.get("choices"),
                default=row.get("default"),
            )
    return parser


@functools.cache
def _rows() -> list[dict[str, Any]]:
    return json.loads(FLAGS.read_text())["flags"]


def say(text: str) -> None:
    print(f"[10/12/2026-15:46:16] {text}", flush=True)


def warn(text: str) -> None:
    say(f"[TRT-LLM] [W] {text}")


def main(arguments: list[str]) -> None:
    machine = read_machine()
    print(GREETING.format(machine["tensorrt_llm"]), flush=True)
    args = make_parser().parse_args(arguments)
    check_plugins(args, machine)
    if not machine["gpus"]:
        raise ValueError("max_workers must be greater than 0")
    config = json.loads(Path(args.checkpoint_dir, "config.json").read_text())
    output = Path(args.output_dir)
    output.mkdir(parents=True, exist_ok=True)
    world_size = config["mapping"]["world_size"]
    for rank in range(world_size):
        build_rank(rank, args, config, output, machine)
    say("[TRT-LLM] [I] Total time of building all engines: 00:00:47")


def check_plugins(args: argparse.Namespace, machine: dict[str, Any]) -> None:
    sm = compute_capability(machine)
    plugins = ("gemm_swiglu_plugin", "fp8_rowwise_gemm_plugin", "low_latency_gemm_plugin")
    for name in (*plugins, "low_latency_gemm_swiglu_plugin"):
        if sm == 100 and getattr(args, name) != "disable":
            raise NotImplementedError(f"{name}={getattr(args, name)} is not supported on SM {sm}.")
    if args.multiple_profiles == "enable" and args.opt_num_tokens is not None:
        raise RuntimeError("multiple_profiles is enabled, while opt_num_tokens is set.")
    if args.gather_context_logits and args.max_draft_len > 0:
        raise RuntimeError("Gather context logits is not support with draft len > 0.")


def compute_capability(machine: dict[str, Any]) -> int:
    if not machine["gpus"]:
        return 0
    _, major, minor = machine["gpus"][0]
    return major * 10 + minor


def build_rank(
    rank: int, args: argparse.Namespace, config: dict[str, Any], output: Path, machine: dict[str, Any]
) -> None:
    if config["architecture"] not in MODELS:
        raise AssertionError(f"Unsupported model architecture: {config['architecture']}")
    check_tensors(Path(args.checkpoint_dir), rank, config)
    build_config = resolve(args, config, compute_capability(machine))
    say("[TRT-LLM] [I] Total time of constructing network from module object 2.79 seconds")
    num_profiles = 5 if args.multiple_profiles == "enable" else 1
    say(f"[TRT-LLM] [I] Total optimization profiles added: {num_profiles}")
    say("[TRT-LLM] [I] Build TensorRT engine Unnamed Network 0")
    fail(machine["fail"])
    say("[TRT] [I] Engine generation completed in 15.4544 seconds.")
    peak = "[TRT] [I] [MemUsageStats] Peak memory usage"
    say(f"{peak} of TRT CPU/GPU memory allocators: CPU 8 MiB, GPU 19386 MiB")
    say(f"{peak} during Engine building and serialization: CPU: 40291 MiB")
    say("[TRT-LLM] [I] Total time of building Unnamed Network 0: 00:00:22")
    if rank == 0:
        Path(args.output_timing_cache).write_bytes(b"timing cache")
        say(f"[TRT-LLM] [I] Timing cache serialized to {args.output_timing_cache}")
    say("[TRT-LLM] [I] Build phase peak memory: 40294.03 MB, children: 16.96 MB")
    save(rank, output, build_config, config, machine)


def fail(how: str | None) -> None:
    """Go wrong as a compiler does while it chooses kernels."""
    if how in FAILURES:
        for line in FAILURES[how]:
            print(line, flush=True)
        sys.exit(1)
    if how == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "hang":
        subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"])
        time.sleep(600)


def save(
    rank: int, output: Path, build_config: dict[str, Any], config: dict[str, Any], machine: dict[str, Any]
) -> None:
    how = machine["fail"]
    version = "1.1.0" if how == "other_version" else machine["tensorrt_llm"]
    if how == "unasked":
        build_config["max_batch_size"] = 8
    if rank == 0:
        written = {"version": version, "pretrained_config": config, "build_config": build_config}
        (output / "config.json").write_text(json.dumps(written, indent=4))
    if how == "stray":
        (output / "rank9.engine").write_bytes(b"ftrt" * 1024)
    say(f"[TRT-LLM] [I] Serializing engine to {output}/rank{rank}.engine...")
    is_last = rank == config["mapping"]["world_size"] - 1
    if not (how == "missing_rank" and is_last):
        size = 16 if how == "partial" and is_last else 4096
        (output / f"rank{rank}.engine").write_bytes((b"ftrt" * 4096)[:size])
    say("[TRT-LLM] [I] Engine serialized. Total time: 00:00:19")


def check_tensors(folder: Path, rank: int, config: dict[str, Any]) -> None:
    """Refuse a rank that lacks what its scheme needs, or has it in another type."""
    tensors = read_header(folder / f"rank{rank}.safetensors")
    mapping, quantization = config["mapping"], config["quantization"]
    stage = rank // mapping["tp_size"]
    num_layers = config["num_hidden_layers"] // mapping["pp_size"]
    dtype, companions = SCHEMES[quantization["quant_algo"]]
    required = set()
    if stage == 0:
        required.add("transformer.vocab_embedding.weight")
    if stage == mapping["pp_size"] - 1:
        required |= {"transformer.ln_f.weight", "lm_head.weight"}
    for layer in range(num_layers):
        prefix = f"transformer.layers.{layer}"
        required |= {f"{prefix}.input_layernorm.weight", f"{prefix}.post_layernorm.weight"}
        required |= {f"{prefix}.{name}.{part}" for name in LINEARS for part in ("weight", *companions)}
        if quantization["kv_cache_quant_algo"]:
            required.add(f"{prefix}.attention.kv_cache_scaling_factor")
    if missing := required - set(tensors):
        raise RuntimeError(f"Required but not provided tensors:{missing}")
    for name, row in tensors.items():
        expected = dtype if name.endswith(tuple(f"{linear}.weight" for linear in LINEARS)) else None
        if expected and row["dtype"] != expected:
            raise AssertionError(f"{name}: {row['dtype']}, expected {expected}")
    if stage == mapping["pp_size"] - 1:
        assert tensors["lm_head.weight"]["dtype"] == DTYPES[config["dtype"]], "lm_head of another type"


def read_header(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        (size,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(size))
    header.pop("__metadata__", None)
    return header


def resolve(args: argparse.Namespace, config: dict[str, Any], sm: int) -> dict[str, Any]:
    """Return the build_config as the real one writes it, with what it changes changed."""
    plugins = {
        row["name"]: getattr(args, row["name"])
        for row in _rows()
        if row.get("is_plugin") and "alias_of" not in row
    }
    plugins = {name: {"enable": True, "disable": False}.get(value, value) for name, value in plugins.items()}
    plugins = {
        name: None if value is False and name.endswith("_plugin") else value
        for name, value in plugins.items()
    }
    plugins["tokens_per_block"] = int(args.tokens_per_block)
    plugins |= {"dtype": config["dtype"], "paged_kv_cache": True, "paged_state": False}
    built = {
        **{name: getattr(args, name) for name in ("max_batch_size", "max_beam_width", "opt_num_tokens")},
        "max_seq_len": args.max_seq_len or config["max_position_embeddings"],
        "opt_batch_size": 8,
        "kv_cache_type": (args.kv_cache_type or "paged").upper(),
        "gather_context_logits": args.gather_context_logits,
        "gather_generation_logits": args.gather_generation_logits,
        "strongly_typed": True,
        "force_num_profiles": None,
        "profiling_verbosity": args.profiling_verbosity,
        "max_draft_len": args.max_draft_len,
        "max_prompt_embedding_table_size": args.max_prompt_embedding_table_size,
        "input_timing_cache": args.input_timing_cache,
        "output_timing_cache": args.output_timing_cache,
        "weight_streaming": args.weight_streaming,
        "weight_sparsity": args.weight_sparsity,
        "monitor_memory": args.monitor_memory,
        "plugin_config": plugins,
    }
    clamp_lengths(built, args)
    switch_off(plugins, config, sm)
    refuse_by_capability(config["quantization"], sm)
    return built


def clamp_lengths(built: dict[str, Any], args: argparse.Namespace) -> None:
    seq_len, tokens = built["max_seq_len"], args.max_num_tokens
    if tokens > 16384:
        warn(f"Specifying a `max_num_tokens` larger than 16384 is usually not recommended, got {tokens}")
    if tokens > seq_len * args.max_batch_size:
        warn(f"max_num_tokens ({tokens}), specifying to {seq_len * args.max_batch_size}.")
        tokens = seq_len * args.max_batch_size
    if tokens < int(args.tokens_per_block):
        warn(f"max_num_tokens ({tokens}) should be at least it, specifying to tokens_per_block")
        tokens = int(args.tokens_per_block)
    if built["opt_num_tokens"] is None and args.multiple_profiles != "enable":
        built["opt_num_tokens"] = min(args.max_batch_size * args.max_beam_width, tokens)
    built["max_input_len"] = min(args.max_input_len, seq_len)
    if args.remove_input_padding == "enable" and args.context_fmha == "enable":
        warn("padding removal and fMHA are both enabled, max_input_len is not required and will be ignored")
    if args.speculative_decoding_mode:
        built["max_seq_len"] += args.max_draft_len
        tokens = max(tokens, args.max_batch_size * (args.max_draft_len + 1))
    built["max_num_tokens"] = tokens


def switch_off(plugins: dict[str, Any], config: dict[str, Any], sm: int) -> None:
    """Switch features off where the real one does, with its words."""
    algo, kv_algo = (config["quantization"][name] for name in ("quant_algo", "kv_cache_quant_algo"))
    tp_size = config["mapping"]["tp_size"]
    if plugins["reduce_fusion"] and (tp_size == 1 or config["architecture"] not in FUSED_REDUCTIONS):
        warn("Overriding reduce_fusion to False")
        plugins["reduce_fusion"] = False
    if plugins["user_buffer"] and not plugins["reduce_fusion"]:
        warn("Overriding user_buffer to False")
        plugins["user_buffer"] = False
    has_fp8_attention = algo in FP8_ATTENTION and sm >= 89
    if not plugins["context_fmha"]:
        plugins["use_fp8_context_fmha"] = plugins["use_paged_context_fmha"] = False
        warn("Context FMHA is disabled, FP8 Context FMHA and Paged Context FMHA are disabled.")
    elif not has_fp8_attention:
        if plugins["use_fp8_context_fmha"]:
            plugins["use_fp8_context_fmha"] = False
            warn("FP8 Context FMHA is disabled because it must be used together with the fp8 workflow.")
        if kv_algo == "FP8":
            plugins["use_paged_context_fmha"] = False
            warn("FP8 Paged Context FMHA is disabled because FP8 context FMHA is disabled.")
    elif plugins["use_paged_context_fmha"]:
        plugins["use_fp8_context_fmha"] = kv_algo == "FP8"
    if kv_algo == "INT8" and plugins["use_paged_context_fmha"]:
        plugins["use_paged_context_fmha"] = False
        warn("Paged Context FMHA is disabled because it doesn't work with int8 kv cache currently.")
    plugins["nccl_plugin"] = config["dtype"] if config["mapping"]["world_size"] > 1 else None


def refuse_by_capability(quantization: dict[str, Any], sm: int) -> None:
    if not 100 <= sm < 120:
        return
    if quantization["quant_algo"] in {"W8A16", "W4A16", "W4A16_AWQ", "W4A8_AWQ"}:
        raise RuntimeError("INT8/INT4 quantization is not supported on SM>=100.")
    if quantization["quant_algo"] == "W8A8_SQ_PER_CHANNEL":
        raise RuntimeError("SmoothQuant is not supported on SM>=100.")


if __name__ == "__main__":
    main(sys.argv[1:])

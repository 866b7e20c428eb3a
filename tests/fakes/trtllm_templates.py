"""Templates of NVIDIA's text models, as small as they can be that have every variable of theirs."""

from __future__ import annotations

from pathlib import Path

PARAMETER = 'parameters { key: "%s" value: { string_value: "${%s}" } }\n'
STEP = """
ensemble_scheduling {
  step [
    { model_name: "preprocessing" model_version: -1
      input_map { key: "QUERY" value: "text_input" } output_map { key: "INPUT_ID" value: "_ids" } },
    { model_name: "tensorrt_llm" model_version: -1
      input_map { key: "input_ids" value: "_ids" } input_map { key: "seed" value: "seed" }
      output_map { key: "output_ids" value: "_out" } },
    { model_name: "postprocessing" model_version: -1
      input_map { key: "TOKENS_BATCH" value: "_out" } output_map { key: "OUTPUT" value: "text_output" } }
  ]
}
"""
TEMPLATES = {
    "preprocessing": (
        'name: "preprocessing"\nbackend: "python"\nmax_batch_size: ${triton_max_batch_size}\n'
        "dynamic_batching { preferred_batch_size: [ ${triton_max_batch_size} ]\n"
        "  max_queue_delay_microseconds: ${max_queue_delay_microseconds}\n"
        "  default_queue_policy: { max_queue_size: ${max_queue_size} } }\n"
        + "".join(
            PARAMETER % (key, variable)
            for key, variable in (
                ("tokenizer_dir", "tokenizer_dir"),
                ("add_special_tokens", "add_special_tokens"),
                ("multimodal_model_path", "multimodal_model_path"),
                ("gpt_model_path", "engine_dir"),
                ("max_num_images", "max_num_images"),
            )
        )
        + "instance_group [ { count: ${preprocessing_instance_count} kind: KIND_CPU } ]\n"
    ),
    "postprocessing": (
        'name: "postprocessing"\nbackend: "python"\nmax_batch_size: ${triton_max_batch_size}\n'
        + PARAMETER % (("tokenizer_dir",) * 2)
        + PARAMETER % (("skip_special_tokens",) * 2)
        + "instance_group [ { count: ${postprocessing_instance_count} kind: KIND_CPU } ]\n"
    ),
    "ensemble": (
        'name: "ensemble"\nplatform: "ensemble"\nmax_batch_size: ${triton_max_batch_size}\n'
        'output [ { name: "context_logits" data_type: ${logits_datatype} dims: [ -1, -1 ] } ]\n' + STEP
    ),
    "tensorrt_llm_bls": (
        'name: "tensorrt_llm_bls"\nbackend: "python"\nmax_batch_size: ${triton_max_batch_size}\n'
        "model_transaction_policy { decoupled: ${decoupled_mode} }\n"
        'output [ { name: "context_logits" data_type: ${logits_datatype} dims: [ -1, -1 ] } ]\n'
        + PARAMETER % (("accumulate_tokens",) * 2)
        + PARAMETER % (("tensorrt_llm_model_name",) * 2)
        + PARAMETER % (("tensorrt_llm_draft_model_name",) * 2)
        + "instance_group [ { count: ${bls_instance_count} kind: KIND_CPU } ]\n"
    ),
}


def write_templates(folder: Path) -> Path:
    """Write the folder of models as it lies in the image."""
    for name, text in TEMPLATES.items():
        version = folder / name / "1"
        version.mkdir(parents=True)
        (version.parent / "config.pbtxt").write_text(text)
        if name != "ensemble":
            (version / "model.py").write_text("# its code\n")
            (version / "__pycache__").mkdir()
    library = folder / "tensorrt_llm_bls" / "1" / "lib"
    library.mkdir()
    (library / "decode.py").write_text("# more\n")
    return folder

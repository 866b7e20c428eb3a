"""TensorRT-LLM's checkpoints, its options and its compiler; what the tensorrt_llm backend is made of."""

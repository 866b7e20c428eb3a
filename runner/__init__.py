"""The run: a JSONL file becomes aligned outputs, with every line accounted for."""

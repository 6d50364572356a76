"""OpenCUA's checkpoints on the classes of transformers: model and tokenizer, without their Python code."""

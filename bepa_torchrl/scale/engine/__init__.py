"""Rollouts with vLLM (``policy.rollout=vllm``): sampling in an inference engine with a prefix cache."""

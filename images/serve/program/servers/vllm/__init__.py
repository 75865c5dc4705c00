"""vLLM: how settings become `vllm serve`, and what it logs and measures."""

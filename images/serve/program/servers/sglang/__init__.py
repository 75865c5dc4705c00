"""SGLang: how settings become `sglang serve`, and what it logs and measures."""

"""An image factory for vLLM: matrix -> lock -> plan -> image, reproducible and without Nix or Bazel."""

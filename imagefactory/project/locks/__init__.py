"""Lock files, the checkout that holds them, and the kernels they record. Above `matrix`."""

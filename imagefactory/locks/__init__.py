"""What is pinned: lock files, the checkout that holds them, and what they say about kernels. Above `matrix`."""

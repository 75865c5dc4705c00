"""Two Sparks as one server: what is checked, copied and started on both, over ssh alone."""

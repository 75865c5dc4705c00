"""Two Sparks as one server: what each is like, the cable between them, and what stands in the way."""

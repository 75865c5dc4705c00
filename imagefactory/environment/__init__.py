"""The factory's own Python environment: which indexes it installs from, what is locked, and how `.venv` is made.

Everything here runs before anything is installed: standard library only.
"""

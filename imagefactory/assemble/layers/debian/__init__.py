"""Debian without dpkg: computes what unpacking and the maintainer scripts would leave behind."""

"""Debian without dpkg: what unpacking and the maintainer scripts would leave behind, computed."""

"""From an image to its tags: pushing, attesting, promoting, going back, and doing so every night. Above `smoke`."""

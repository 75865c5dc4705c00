"""What an image must show, as the image it is, before anybody gets a tag for it. Above `compile`."""

"""From a plan to an image: inputs, layers, engines, and starting, explaining and verifying the result. Above `plan`."""

"""Asks the serve program on this machine what it would do in an image.

It gets the image's settings.json and model.json, so there is no second implementation that could disagree with the
container.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from imagefactory.errors import UsageError, did_you_mean
from imagefactory.plan.serve.description import Description, image_environment, write_description
from imagefactory.plan.serve.image_paths import program_folder
from imagefactory.serve_program import Readings, Start, images, loading, server_of, settings, show


@dataclass(frozen=True)
class Preview:
    """The serve program of one image, on this machine."""

    root: Path
    description: Description
    model: Mapping[str, Any]

    def command(self, given: Mapping[str, str] | None = None) -> list[str]:
        return [str(word) for word in self.dry_run(given or {})["command"]]

    def dry_run(self, given: Mapping[str, str], *, readings: Path | None = None) -> dict[str, Any]:
        """Return the command and the checks for these settings; `readings` replaces those of this machine."""
        names = [entry["name"] for entry in self.description["settings"]]
        # The program itself says what to do instead of a setting of another server.
        unknown = sorted(set(given) - {*names, *self.description.get("refused", {})})
        if unknown:
            raise UsageError(
                "bad-setting",
                f"There is no setting {unknown[0]}.",
                where=str(self.description["image"]["target"]),
                why="Only settings of the schema reach the server.",
                fix=did_you_mean(unknown[0], names),
            )
        extra = {"FACTORY_READINGS": str(readings)} if readings else {}
        ran = self.run("--dry-run", "--json", variables={**given, **extra})
        # A check that fails here may not fail there: there is no GPU on this machine. A refusal is one everywhere.
        answer: dict[str, Any] = json.loads(ran.stdout)
        if refusal := answer.get("refusal"):
            raise self.refused(refusal["what"], refusal)
        return answer

    def refused(self, what: str, why: Mapping[str, str]) -> UsageError:
        """Return what the program says about a setting as an error of the library's."""
        setting = "=".join(filter(None, (why["setting"], why["value"])))
        return UsageError(
            "bad-setting",
            what,
            where=setting or str(self.description["image"]["target"]),
            why=f"Allowed: {why['allowed']}." if why["allowed"] else "",
            fix=why["remedy"],
        )

    def markdown(self) -> str:
        return show.settings_markdown(self.image())

    def image(self) -> images.Image:
        """Return the image as its own program reads it."""
        with tempfile.TemporaryDirectory(prefix="imagefactory-") as folder:
            write_description(self.description, self.model, Path(folder))
            return images.load(folder)

    def start(self, given: Mapping[str, str], readings: Readings | None = None) -> Start:
        """Return a start before its model is downloaded, without a process of its own: a site has hundreds.

        The settings must be known to be good; nothing of this machine or its environment is read.
        """
        image = self.image()
        server, chosen = server_of(image), settings.read(image, given)
        return loading.fitting(
            Start(server, image, chosen, server.build(image, chosen), readings or Readings(), "", None)
        )

    def run(self, *arguments: str, variables: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        with tempfile.TemporaryDirectory(prefix="imagefactory-") as folder:
            write_description(self.description, self.model, Path(folder))
            environment = {
                **image_environment(self.description),
                "PATH": os.defpath,
                "FACTORY_SHARE": folder,
                # The model's folder and the server's sources are in the image, not here.
                "FACTORY_SITE": folder,
                "HF_HOME": folder,
                **(variables or {}),
            }
            return subprocess.run(  # noqa: S603 - our own program
                # -I and -S as in the image; -B leaves no bytecode in the checkout.
                [sys.executable, "-I", "-S", "-B", str(program_folder(self.root)), *arguments],
                env=environment,
                capture_output=True,
                text=True,
                check=False,
            )

"""Runs `vllm bench serve` for a list of jobs, inside an image; reads the jobs from standard input.

Images have no pandas, which the tool needs only to read the file with the prompts: here they come with the jobs. One
process runs all jobs, because importing vLLM takes longer than a short job. Each result is one line of JSON on standard
output, as soon as it is known; what the tool prints goes to standard error.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from contextlib import redirect_stdout
from typing import Any

LONGEST = 4000  # characters of an answer or an error


def arguments_for(parser: argparse.ArgumentParser, arguments: list[str]) -> argparse.Namespace:
    """Parse a job's arguments; an option of older versions may begin with the name of the dataset."""
    options = parser._option_string_actions  # noqa: SLF001 - argparse offers no other way to ask
    renamed = {"--skip-chat-template": "--custom-skip-chat-template"}
    words = [renamed.get(word, word) if word not in options else word for word in arguments]
    return parser.parse_args(words)


def shortened(result: dict[str, Any]) -> dict[str, Any]:
    """Return a result without the time of every token."""
    between = result.pop("itls", [])
    # Some versions leave them out: the time to the first token and those between tokens add up to it.
    if "latencies" not in result:
        result["latencies"] = [first + sum(rest) for first, rest in zip(result["ttfts"], between, strict=True)]
    texts = [text[:LONGEST] for text in result.get("generated_texts", [])]
    return {**result, "generated_texts": texts}


def main() -> None:
    """Run the jobs."""
    work = json.load(sys.stdin)
    if work["key"]:
        # As an argument, the list of processes would show it.
        os.environ["OPENAI_API_KEY"] = work["key"]
    out = sys.stdout
    with redirect_stdout(sys.stderr):
        import vllm  # noqa: PLC0415
        from vllm.benchmarks import serve  # noqa: PLC0415
        from vllm.benchmarks.datasets import CustomDataset  # noqa: PLC0415

        parser = argparse.ArgumentParser()
        serve.add_cli_args(parser)
        print(json.dumps({"tool": f"vllm bench serve {vllm.__version__}"}), file=out, flush=True)
        for job in work["jobs"]:
            rows = [{"prompt": prompt} for prompt in job["prompts"]]
            CustomDataset.load_data = lambda self, rows=rows: setattr(self, "data", rows)
            line: dict[str, Any]
            try:
                line = {"result": shortened(serve.main(arguments_for(parser, job["arguments"])))}
            except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever it is, the report names it
                line = {"error": f"{type(error).__name__}: {error}"[:LONGEST]}
            print(json.dumps(line), file=out, flush=True)


if __name__ == "__main__":
    main()

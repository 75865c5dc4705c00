"""Formats settings, checks and the command as text, Markdown or JSON."""

import json
from collections.abc import Iterable, Sequence

from . import command as commands
from .errors import EXIT_CODES, StartError
from .findings import FAIL, OK, SKIPPED, WARN, Finding, Start
from .image import Image
from .redaction import masked
from .servers.known import server_of
from .settings import allowed

HEADINGS = ("Setting", "Default", "Allowed", "What it does")
MARKS = {OK: "ok", WARN: "WARN", FAIL: "FAIL", SKIPPED: "skip"}
FIRST = ("MAX_MODEL_LEN", "MAX_NUM_SEQS", "GPU_MEMORY_UTILIZATION", "SERVED_MODEL_NAME", "PORT", "VLLM_API_KEY_FILE")
HELP = """\
{title}

  docker run -d{gpus} --network host --ipc host \\
    -v ~/.cache/huggingface:/root/.cache/huggingface -v kernels:/var/cache/imagefactory IMAGE

Arguments of IMAGE:
  (none)                 check the machine and serve
  --FLAG VALUE …         the same, with more flags of `{command}`
  --dry-run [--json]     show the command and the checks, start nothing
  check                  run the checks; in a running container: docker exec CONTAINER check
  settings [--markdown]  list all settings, with their defaults
  download               fetch the model and its drafter, verify them; resumes where it stopped
  weights [--json]       list what is downloaded, what is missing, and what nothing here uses
  pair-test              prove that the nodes (NODES=2 …) can compute together; run it on all at once
  health                 ask the running server: docker exec CONTAINER health
  OWNER/MODEL --FLAG …   serve another model, with these flags alone
  {command:20} … a command of your own; also bash, sh, sleep, tail
  help                   this text; `{all_flags}` is the server's own

Settings to change first (-e NAME=VALUE):
{settings}"""
LONGEST = 60
"""The widest list of choices in a text table, in characters."""


def settings_text(image: Image) -> str:
    rows = [(name, default, _cut(words), about) for name, default, words, about in (HEADINGS, *_rows(image))]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    lines = ["  ".join([*map(str.ljust, row, widths), row[-1]]) for row in rows]
    return "\n".join([_title(image), "", *lines])


def help_text(image: Image) -> str:
    server = server_of(image)
    lines = [
        f"  {name:22} {default or '(none)':8} {about.partition('. ')[0].rstrip('.')}"
        for name, default, _, about in _rows(image)
        if name in FIRST
    ]
    return HELP.format(
        title=_title(image),
        gpus=" --gpus all" if image.capability else "",
        command=" ".join(server.command),
        all_flags=server.all_flags,
        settings="\n".join(lines),
    )


def _title(image: Image) -> str:
    return f"{image.model['model']} with {image.title} {image.version} on {image.facts.get('arch')}"


def settings_markdown(image: Image) -> str:
    lines = ["| " + " | ".join(HEADINGS) + " |", "|---" * len(HEADINGS) + "|"]
    for name, default, words, description in _rows(image):
        cells = (f"`{name}`", f"`{default}`" if default else "", words, description)
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines)


def checks_text(findings: Iterable[Finding]) -> str:
    lines = []
    for finding in findings:
        lines.append(f"{MARKS[finding.result]:4}  {finding.name:11}  {finding.detail}".rstrip())
        if finding.result in {WARN, FAIL} and finding.remedy:
            lines.append(f"{'':19}{finding.remedy}")
    return "\n".join(lines)


def dry_run_text(start: Start, findings: Sequence[Finding]) -> str:
    command = commands.shown((*start.server.command, *start.command.arguments))
    remarks = [f"note  {remark}" for remark in start.command.remarks]
    return "\n".join([command, "", *remarks, checks_text(findings)])


def dry_run_json(start: Start, findings: Sequence[Finding]) -> str:
    """Format the command and the checks as JSON, whether the arguments had secrets, and given numbers without units."""
    words, chosen = masked(start.command.arguments), start.settings
    numbers = {name for name in chosen.given if start.image.settings[name].kind in {"whole", "fraction"}}
    value = {
        "command": [*start.server.command, *words],
        "numbers": {name: chosen.values[name] for name in sorted(numbers)},
        "secrets": bool(chosen.secrets.flags) or tuple(words) != start.command.arguments,
        "remarks": list(start.command.remarks),
        "checks": [
            {**finding._asdict(), "exit_code": EXIT_CODES[finding.name] if finding.result == FAIL else 0}
            for finding in findings
        ],
    }
    return json.dumps(value, indent=2)


def refusal_json(refusal: StartError) -> str:
    """Format why there is neither a command nor a check."""
    parts = ("name", "what", "setting", "value", "allowed", "remedy", "exit_code")
    return json.dumps({"refusal": {part: getattr(refusal, part) for part in parts}}, indent=2)


def _rows(image: Image) -> list[tuple[str, str, str, str]]:
    rows = []
    for setting in image.settings.values():
        needs = f" Needs {image.title} {setting.since}." if setting.since else ""
        default = setting.default or setting.unset
        rows.append((setting.name, default, allowed(setting), setting.description + needs))
    return rows


def _cut(words: str) -> str:
    return words if len(words) <= LONGEST else words[: LONGEST - 2].rstrip(", ") + " …"

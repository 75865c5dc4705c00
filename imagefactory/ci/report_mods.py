"""What to report about mods that no longer fit vLLM's main branch, with the evidence."""

from collections.abc import Iterable

from imagefactory.ci.issues import Finding
from imagefactory.ci.run_summary import cell, table
from imagefactory.mods.compatibility import ModResult

UPSTREAM = "hold without it"
"""What the check reports for a mod whose change is already in the sources."""


def mod_findings(results: Iterable[ModResult], commit: str = "") -> list[Finding]:
    """Turn check results into findings, one for each mod that does not hold."""
    wrong: dict[str, list[ModResult]] = {}
    for result in results:
        if not result.holds:
            wrong.setdefault(result.mod, []).append(result)
    return [_finding(mod, failures, commit) for mod, failures in wrong.items()]


def _finding(mod: str, failures: list[ModResult], commit: str) -> Finding:
    """Describe a mod that is broken; or upstream, if it is on any version."""
    if any(UPSTREAM in result.detail for result in failures):
        verdict = "seems to be upstream"
        what = f"The unmodified sources pass the checks of `mods/{mod}`: the change seems to be upstream."
        step = "Set `upstreamed_in` in its mod.yaml: the plan then drops the mod by itself."
    else:
        verdict = "does not hold"
        what = (
            f"`mods/{mod}` can no longer be applied. Images of these versions are not built with it until "
            "that is fixed; published ones stay as they are."
        )
        step = "Add a variant for the version, or declare it `not_needed` with the reason."
    rows = [(result.version, result.status, cell(result.detail)) for result in failures]
    lines = [what, "", *table("vLLM | found | evidence", rows)]
    lines += [f"Checked on vllm-project/vllm at `{commit}`.", ""] if commit else []
    again = f"To reproduce, with a checkout of vLLM in DIR: `./inv mods.check --name {mod} --source DIR`."
    title = f"The mod {mod} {verdict} on {', '.join(result.version for result in failures)}"
    evidence = sorted(f"{result.version} {result.status} {result.detail}" for result in failures)
    return Finding(mod, title, "\n".join([*lines, step, again]), [verdict, *evidence])

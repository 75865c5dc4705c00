"""Commands for benchmarks: measure, compare, plot, share."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from imagefactory.commands import options
from imagefactory.commands.command import command, say, show

if TYPE_CHECKING:
    from imagefactory.bench.running import Bench
    from imagefactory.locks.project import Project

SET = "a setting as NAME=VALUE; repeatable (see docs/serving.md)"
PROFILE = "what to measure: quick, chat, users, long, arena or start (see docs/benchmarks.md)"
USERS = "other numbers of users at once than the profile's, such as 1,4,8"
REPEATS = "other repeats than the profile's"
LIMIT = "seconds that one measurement may take before the server counts as hung (default: 1800)"


def _bench(project: Project, profile: str, set: list[str], users: str, repeats: str, limit: str) -> Bench:
    from imagefactory.bench.running import Bench
    from imagefactory.build.start.prepare import settings_from

    numbers = [options.whole_number("--users", word, least=1) for word in users.split(",")]
    found = Bench(
        project,
        profile,
        settings_from(set),
        users=tuple(number for number in numbers if number),
        repeats=options.whole_number("--repeats", repeats, least=1),
        limit=options.number("--limit", limit) or 1800,
    )
    found.profiles.named(profile)
    return found


@command(
    default=True,
    help={
        "target": "measure the image built for this target (default: the first model)",
        "image": "measure this image instead: a reference by digest (pulled), an image of the daemon, or an OCI layout",
        "url": "measure this running server instead; the image brings the tool. VLLM_API_KEY is its key",
        "profile": PROFILE,
        "set": SET,
        "users": USERS,
        "repeats": REPEATS,
        "limit": LIMIT,
        "json": options.JSON,
    },
)
def run(
    project: Project,
    set: list[str],
    target: str = "",
    image: str = "",
    url: str = "",
    profile: str = "quick",
    users: str = "",
    repeats: str = "",
    limit: str = "",
    json: bool = False,
) -> None:
    """Measure an image or a running server: speed, latency, accepted drafts, starts; the result is a JSON file."""
    from imagefactory.bench.endpoint import Endpoint
    from imagefactory.bench.measuring import refuse_wrong_answers
    from imagefactory.bench.running import bench_image, bench_url
    from imagefactory.commands.show.bench_tables import result_tables
    from imagefactory.smoke.subject import subject_of_image, subject_of_target

    options.at_most_one(target=target, image=image)
    options.at_most_one(set=set, url=url)
    bench = _bench(project, profile, set, users, repeats, limit)
    subject = subject_of_image(project, image) if image else subject_of_target(project, target)
    if url:
        endpoint = Endpoint(url.rstrip("/").removesuffix("/v1"), os.environ.get("VLLM_API_KEY", ""))
        result, path = bench_url(bench, endpoint, subject, say)
    else:
        result, path = bench_image(bench, subject, say)
    if json:
        print(result.to_json(), end="")
    else:
        for table in result_tables(result):
            show(table)
        print(path.relative_to(project.root))
    refuse_wrong_answers(result, path)

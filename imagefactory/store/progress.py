"""How work reports its progress, and numbers as people read them."""

from collections.abc import Callable, Iterable, Iterator

Say = Callable[[str], None]  # receives a sentence about the current step

Progress = Callable[[int], None]  # receives the number of bytes done so far; it drops after a restart


def size(count: int) -> str:
    if count >= 1_000_000_000:  # noqa: PLR2004 - one GB
        return f"{count / 1e9:.2f} GB"
    if count >= 1_000_000:  # noqa: PLR2004 - one MB
        return f"{count / 1e6:.1f} MB"
    return f"{count / 1e3:.1f} kB" if count else "-"


def count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def counted(chunks: Iterable[bytes], tell: Progress) -> Iterator[bytes]:
    """Yield chunks, and report the bytes that went by."""
    done = 0
    for chunk in chunks:
        yield chunk
        done += len(chunk)
        tell(done)

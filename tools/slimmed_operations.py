# ruff: noqa: C901, PLR0915 - a program of its own, with one long list
"""Shows on a real GPU that slimming changes no result: run by hand on a machine with PyTorch.

    python3 tools/slimmed_operations.py FOLDER

It copies the installed torch and NVIDIA's libraries into FOLDER, slims them for the GPU at hand with the factory's own
code, and compares the results of many operations, bit for bit, before and after. As a control, it overwrites the code
that the GPU does load instead: then nothing may work.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT))
PIECE = 1 << 20
LEAST = 64 * 1024


def main() -> None:
    folder = Path(sys.argv[1])
    import torch  # noqa: PLC0415 - the children import another copy

    chip = torch.cuda.get_device_capability()
    print(f"{torch.cuda.get_device_name()}, {chip[0]}.{chip[1]}, torch {torch.__version__}", flush=True)
    before, seconds = operations(None)
    again, _ = operations(None)
    steady = {name for name in before if before[name] == again.get(name)}
    print(f"{len(before)} operations, {len(steady)} of them repeat bit for bit; {seconds:.1f} s", flush=True)
    missing = {name: said for name, said in before.items() if said.startswith("not available")}
    print(f"not available: {missing}", flush=True)
    copied = copy_libraries(Path(torch.__file__).parents[1], folder)
    slim_all(copied, chip)
    after, seconds = operations(folder)
    differing = sorted(name for name in steady if before[name] != after.get(name))
    print(f"slimmed: {len(steady) - len(differing)} of {len(steady)} the same bits; {seconds:.1f} s", flush=True)
    print(f"differing: {differing}", flush=True)
    spoil_all(copied, chip)
    failed = subprocess.run(child(folder), env=environment(folder), capture_output=True, text=True, check=False)
    told = [line for line in failed.stderr.splitlines() if "Error" in line] or ["nothing"]
    print(f"control: ended with {failed.returncode}: {told[0][:200]}", flush=True)
    if differing or not failed.returncode:
        raise SystemExit(1)


def environment(folder: Path | None) -> dict[str, str]:
    paths = [str(folder)] if folder else []
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([*paths, str(ROOT)]),
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
    }


def child(folder: Path | None) -> list[str]:
    return [sys.executable, __file__, "--operations", str(folder or "")]


def operations(folder: Path | None) -> tuple[dict[str, str], float]:
    """Run all operations in a process of their own, with the libraries in a folder."""
    started = time.monotonic()
    done = subprocess.run(child(folder), env=environment(folder), capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr[-3000:])
    found: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return found, time.monotonic() - started


def copy_libraries(site: Path, folder: Path) -> list[Path]:
    """Copy torch and NVIDIA's packages, and return their libraries."""
    shutil.rmtree(folder, ignore_errors=True)
    for name in ("torch", "nvidia", "torchgen", "functorch"):
        if (site / name).is_dir():
            shutil.copytree(site / name, folder / name, symlinks=True)
    for name in ("*.libs", "torch-*.dist-info"):
        for path in site.glob(name):
            shutil.copytree(path, folder / path.name, symlinks=True)
    found = [path for path in folder.rglob("*.so*") if path.is_file() and not path.is_symlink()]
    for path in found:
        if path.stat().st_size >= LEAST:
            shutil.copyfile(path, f"{path}.published")
    return [path for path in found if path.stat().st_size >= LEAST]


def slim_all(libraries: list[Path], chip: tuple[int, int]) -> None:
    from imagefactory.gpu_code.fatbins import NotUnderstoodError  # noqa: PLC0415
    from imagefactory.gpu_code.slimming import Tally, slim  # noqa: PLC0415

    started, total, changed = time.monotonic(), Tally(), 0
    for path in libraries:
        published, tally = Path(f"{path}.published"), Tally()
        try:
            with path.open("wb") as file:
                file.writelines(slim(pieces(published), chip, tally))
        except NotUnderstoodError as error:
            shutil.copyfile(published, path)
            print(f"{path.name} is left as it is: {error}")
            continue
        total.kept += tally.kept
        total.blanked += tally.blanked
        changed += bool(tally.blanked)
    sizes = f"{total.blanked.total() / 1e6:.0f} MB overwritten, {total.kept.total() / 1e6:.0f} MB for the chip"
    print(f"slimmed: {changed} libraries, {sizes}; {time.monotonic() - started:.1f} s")


def spoil_all(libraries: list[Path], chip: tuple[int, int]) -> None:
    """Overwrite the chip's own code instead."""
    from imagefactory.gpu_code.fatbins import NotUnderstoodError, containers  # noqa: PLC0415
    from imagefactory.gpu_code.slimming import loads  # noqa: PLC0415

    blanked = 0
    for path in libraries:
        published = Path(f"{path}.published")
        shutil.copyfile(published, path)
        with suppress(NotUnderstoodError), path.open("r+b") as file:
            for code in (code for group in containers(pieces(published)) for code in group):
                if code.kind == "cubin" and loads(code, chip):
                    file.seek(code.offset)
                    file.write(bytes(code.size))
                    blanked += code.size
    print(f"control: {blanked / 1e6:.0f} MB overwritten")


def pieces(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        yield from iter(partial(file.read, PIECE), b"")


def run_operations() -> dict[str, str]:
    import torch  # noqa: PLC0415
    import torch.nn.functional as f  # noqa: PLC0415
    from torch import linalg, nn  # noqa: PLC0415
    from torch.nn.attention import SDPBackend, sdpa_kernel  # noqa: PLC0415

    folder = sys.argv[2]
    assert not folder or str(torch.__file__).startswith(folder), torch.__file__
    torch.manual_seed(1)
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False
    device = "cuda"
    a, b = torch.randn(512, 512, device=device), torch.randn(512, 512, device=device)
    spd = a @ a.T + 512 * torch.eye(512, device=device)
    image = torch.randn(4, 16, 64, 64, device=device)
    volume = torch.randn(2, 8, 16, 16, 16, device=device)
    sound = torch.randn(4, 16, 1000, device=device)
    sequence = torch.randn(20, 8, 64, device=device)
    query = torch.randn(2, 8, 256, 64, device=device, dtype=torch.float16)
    integers = torch.randint(0, 1000, (100_000,), device=device)
    half, brain = a.half(), a.bfloat16()
    eight = torch.randint(-100, 100, (512, 512), device=device, dtype=torch.int8)
    one = torch.ones((), device=device)
    weight = torch.randn(32, 16, 3, 3, device=device)

    def fp8() -> torch.Tensor:
        left, right = a.to(torch.float8_e4m3fn), b.to(torch.float8_e4m3fn)
        return torch._scaled_mm(left, right.T.contiguous().T, scale_a=one, scale_b=one, out_dtype=torch.bfloat16)

    def attention(backend: SDPBackend) -> torch.Tensor:
        with sdpa_kernel(backend):
            return f.scaled_dot_product_attention(query, query, query, is_causal=True)

    def recurrent(kind: type[nn.RNNBase]) -> torch.Tensor:
        torch.manual_seed(2)
        out: torch.Tensor = kind(64, 64, 2).to(device)(sequence)[0]
        return out

    def seeded(draw: Callable[[], torch.Tensor]) -> torch.Tensor:
        torch.manual_seed(3)
        return draw()

    def tf32() -> torch.Tensor:
        torch.backends.cuda.matmul.allow_tf32 = True
        out = a @ b
        torch.backends.cuda.matmul.allow_tf32 = False
        return out

    def graph() -> torch.Tensor:
        out, captured = torch.empty_like(a), torch.cuda.CUDAGraph()
        torch.matmul(a, b, out=out)
        torch.cuda.synchronize()
        with torch.cuda.graph(captured):
            torch.matmul(a, b, out=out)
        captured.replay()
        return out

    def nccl() -> torch.Tensor:
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29511", RANK="0", WORLD_SIZE="1")
        torch.distributed.init_process_group("nccl")
        out = a.clone()
        torch.distributed.all_reduce(out)
        torch.distributed.destroy_process_group()
        return out

    def semi_structured() -> torch.Tensor:
        mask = torch.tensor([0, 0, 1, 1], device=device).tile((512, 128)).bool()
        return torch.mm(torch.sparse.to_sparse_semi_structured(half.masked_fill(~mask, 0)), half)

    every: dict[str, Callable[[], Any]] = {
        "matmul fp32": lambda: a @ b,
        "matmul tf32": tf32,
        "matmul fp16": lambda: half @ half,
        "matmul bf16": lambda: brain @ brain,
        "matmul fp64": lambda: a.double() @ b.double(),
        "matmul fp8": fp8,
        "matmul int8": lambda: torch._int_mm(eight, eight),
        "bmm": lambda: torch.bmm(query[0], query[0].mT),
        "linear + gelu": lambda: f.gelu(f.linear(half, half)),
        "addmm bias": lambda: torch.addmm(b[0], a, b),
        "conv1d": lambda: f.conv1d(sound, weight[:, :, 0]),
        "conv2d": lambda: f.conv2d(image, weight),
        "conv2d fp16": lambda: f.conv2d(image.half(), weight.half()),
        "conv2d bf16 last": lambda: f.conv2d(image.bfloat16().to(memory_format=torch.channels_last), weight.bfloat16()),
        "conv3d": lambda: f.conv3d(volume, torch.ones(4, 8, 3, 3, 3, device=device)),
        "conv transpose": lambda: f.conv_transpose2d(image, torch.ones(16, 4, 3, 3, device=device)),
        "flash attention": lambda: attention(SDPBackend.FLASH_ATTENTION),
        "efficient attention": lambda: attention(SDPBackend.EFFICIENT_ATTENTION),
        "cudnn attention": lambda: attention(SDPBackend.CUDNN_ATTENTION),
        "math attention": lambda: attention(SDPBackend.MATH),
        "fft": lambda: torch.view_as_real(torch.fft.fft(a)),
        "rfft": lambda: torch.view_as_real(torch.fft.rfft(a)),
        "fft2 odd": lambda: torch.view_as_real(torch.fft.fft2(a[:509, :499])),
        "irfft fp64": lambda: torch.fft.irfft(torch.fft.rfft(a.double())),
        "eigh": lambda: linalg.eigh(spd)[0],
        "svd": lambda: linalg.svdvals(a[:64, :64]),
        "qr": lambda: linalg.qr(a)[1],
        "solve": lambda: linalg.solve(spd, b),
        "cholesky": lambda: linalg.cholesky(spd),
        "inv": lambda: linalg.inv(spd),
        "lu": lambda: linalg.lu_factor(spd)[0],
        "lstsq": lambda: linalg.lstsq(spd, b)[0],
        "sort": lambda: integers.sort()[0],
        "topk": lambda: a.topk(40)[0],
        "unique": integers.unique,
        "cumsum": lambda: a.cumsum(1),
        "histc": lambda: a.histc(50),
        "median": lambda: a.median(1)[0],
        "sparse mm": lambda: a.relu().to_sparse_csr() @ b,
        "sparse coo": lambda: torch.sparse.mm(a.relu().to_sparse(), b),
        "semi-structured": semi_structured,
        "lstm": lambda: recurrent(nn.LSTM),
        "gru": lambda: recurrent(nn.GRU),
        "batch norm": lambda: f.batch_norm(image, None, None, training=True),
        "layer norm": lambda: f.layer_norm(a, [512]),
        "group norm": lambda: f.group_norm(image, 4),
        "softmax": lambda: a.softmax(1),
        "max pool": lambda: f.max_pool2d(image, 2),
        "embedding": lambda: f.embedding(integers % 512, a),
        "cross entropy": lambda: f.cross_entropy(a, integers[:512] % 512),
        "rand": lambda: seeded(lambda: torch.rand(1000, device=device)),
        "randn": lambda: seeded(lambda: torch.randn(1000, device=device)),
        "multinomial": lambda: seeded(lambda: torch.multinomial(a.softmax(1), 4)),
        "dropout": lambda: seeded(lambda: f.dropout(a)),
        "cuda graph": graph,
        "nccl": nccl,
    }
    results: dict[str, str] = {}
    for name, operation in every.items():
        try:
            value = operation()
        except (RuntimeError, NotImplementedError, ValueError) as error:
            if "no kernel image" in str(error):
                raise
            results[name] = f"not available here: {str(error).splitlines()[0][:80]}"
            continue
        torch.cuda.synchronize()
        data = value.detach().contiguous().reshape(-1).view(torch.uint8).cpu().numpy().tobytes()
        results[name] = hashlib.sha256(data).hexdigest()
    return results


if __name__ == "__main__":
    if sys.argv[1] == "--operations":
        print(json.dumps(run_operations()))
    else:
        main()

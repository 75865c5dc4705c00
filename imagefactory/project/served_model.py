"""Describes models: what they are, who can serve them, and how."""

from operator import not_
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from imagefactory.project.bases import unique
from imagefactory.project.server_versions import VLLM
from images.shipped.values import HubRepo, Name, Specifier

ServedOn = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9._-]*(/[a-z0-9][a-z0-9._-]*)?$")]
Count = Annotated[int, Field(ge=1, le=2**31 - 1)]
FlagName = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]*$")]
Scalar = bool | int | float | str
Use = Literal["agents", "chat", "coding", "documents", "many users", "tests", "vision"]


class _Model(BaseModel):
    model_config = ConfigDict(defer_build=True, frozen=True, extra="forbid", strict=True)


class _OfServers(_Model):
    def range_of(self, server: str) -> str | None:
        """Return the versions of a server that it works with; None if it is not for that server."""
        specifier: str | None = getattr(self, server)
        return specifier


class Drafter(_OfServers):
    """A small model that drafts tokens for the large one to verify."""

    repo: HubRepo  # the model's own repository if the model itself drafts, as with `mtp`
    method: Literal["dflash", "dspark", "eagle3", "mtp", "ngram"]
    tokens: Annotated[int, Field(ge=1, le=64)]
    attention_backend: str | None = None
    config: Annotated[dict[FlagName, Scalar], Field(exclude_if=not_)] = {}  # more keys of vLLM's --speculative-config
    vllm: Specifier = ""
    sglang: Specifier | None = None  # the versions of SGLang that it works with. Absent: none


class Serve(_Model):
    """The default serving settings of a model, named after vLLM's flags."""

    served_model_name: str | None = None
    quantization: str | None = None
    dtype: str | None = None
    kv_cache_dtype: str | None = None
    load_format: str | None = None
    attention_backend: str | None = None
    max_model_len: Count | None = None
    max_num_seqs: Count | None = None
    max_num_batched_tokens: Count | None = None
    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1)] | None = None
    enforce_eager: bool = False
    enable_prefix_caching: bool = False
    enable_auto_tool_choice: bool = False
    trust_remote_code: bool = False
    tool_call_parser: str | None = None
    chat_template: str | None = None
    reasoning_parser: str | None = None
    limit_mm_per_prompt: dict[str, Annotated[int, Field(ge=0, le=2**31 - 1)]] | None = None
    env: dict[Annotated[str, StringConstraints(pattern=r"^[A-Z][A-Z0-9_]*$")], str] = {}
    flags: dict[FlagName, Scalar | dict[str, Any]] = {}
    """Flags that no setting covers, such as `moe_backend`; `./inv lock --flags` records which ones a server has."""

    @field_validator("flags")
    @classmethod
    def _no_settings(cls, flags: dict[str, Any]) -> dict[str, Any]:
        for name in flags:
            if name in cls.model_fields:
                raise PydanticCustomError(
                    "flags", "{name} is a setting: write it beside `flags`, not in it", {"name": name}
                )
        return flags

    def by_name(self, *, given: bool = False) -> dict[str, Any]:
        """Return the settings that differ from the defaults, or all that are given, and the flags."""
        values = self.model_dump(mode="json", exclude={"env", "flags"}, exclude_defaults=not given, exclude_unset=given)
        return values | self.flags


class Experts(_Model):
    """The experts of a mixture, of which each token reads a few."""

    gb: Annotated[float, Field(gt=0)]  # of all of them
    chosen: Count  # for each token
    of: Count


class Memory(_Model):
    """How much memory a model needs, checked on the host before the model is downloaded."""

    weights_gb: Annotated[float, Field(gt=0)]  # size in memory, after any quantization while loading
    download_gb: Annotated[float, Field(gt=0)] | None = None  # size on disk, where it differs
    drafter_gb: Annotated[float, Field(ge=0)] = 0
    kv_bytes_per_token: Count  # with 16-bit values: 2 x full attention layers x KV heads x head size x 2
    kv_bytes_per_sequence: Annotated[int, Field(ge=0)] = 0
    """Cache that does not grow with the context: sliding windows, linear attention states."""
    window: Annotated[int, Field(ge=0)] = 0
    """The tokens of the sliding windows that `kv_bytes_per_sequence` is for. vLLM adds those of a step or two."""
    context: Count  # the longest context of the model
    hybrid: bool = False  # whether some layers use linear attention
    latent: bool = False  # whether each of two nodes holds the whole cache, as with latent attention
    table_gb: Annotated[float, Field(ge=0)] = 0
    """Tables that the server writes to the disk, beside the download, and reads from there; not in `weights_gb`."""
    active_gb: Annotated[float, Field(gt=0)] | None = None
    """What one token reads of the weights, without input embeddings, vision tower and experts that it does not choose;
    absent: all of them. Only the speed limit of pages follows from it and from `experts`."""
    experts: Experts | None = None


class ServedModel(_OfServers):
    """A model, the versions of servers that can serve it, and its tuned settings."""

    repo: HubRepo | None = None
    generated: Literal["tiny"] | None = None
    vllm: Specifier | None = None  # the versions of vLLM that can serve it. Absent: none
    sglang: Specifier | None = None  # the versions of SGLang that can serve it. Absent: none
    sparks: Literal[1, 2] = 1  # how many DGX Sparks serve it together; what `memory` says is shared by them
    weights: Literal["bf16", "fp8", "nvfp4", "mxfp4", "int4-autoround", "awq", "dummy"]
    good_for: Annotated[list[Use], AfterValidator(unique)] = []
    """What to use it for, the main use first; `documents` are long ones. Only tables show it."""
    reads_images: bool | None = None
    """Whether the model can read images; absent if unknown. `limit_mm_per_prompt` may still turn them off."""
    remark: Annotated[str, Field(min_length=5, max_length=60)] | None = None
    """What to know before choosing it, shown beside its tag."""
    licence: Annotated[str, Field(min_length=3, max_length=40)] | None = None  # absent if unknown
    languages: Annotated[str, Field(min_length=5, max_length=60)] | None = None
    """The languages that its makers name; absent if they name none."""
    arch: str | None = None  # the default arch of this model, if it differs from that of the matrix
    drafters: list[Drafter] = []  # in order of preference; the first that works with a version is its default
    draft: Literal["required", "optional"] = "required"
    """Whether to exclude vLLM versions that none of the drafters works with."""
    serve: Serve = Serve()
    serve_on: dict[ServedOn, Serve] = {}
    """Serving settings that differ: of vLLM on an arch (`rtx5090`), of another server (`sglang`), which takes nothing
    from `serve`, and of that server on an arch (`sglang/rtx5090`)."""
    memory: Memory | None = None
    mods: Literal["auto", "none"] | list[Name] = "auto"

    @model_validator(mode="after")
    def _one_origin(self) -> Self:
        if (self.repo is None) == (self.generated is None):
            raise PydanticCustomError("origin", "give either `repo` or `generated`")
        if self.vllm is None and self.sglang is None:
            raise PydanticCustomError("origin", "give the versions that serve it: `vllm`, `sglang` or both")
        if self.sparks > 1 and self.memory is None:
            raise PydanticCustomError("memory", "a model for two Sparks needs `memory`: each holds a part")
        return self

    def shapes(self, server: str, arch: str) -> list[Serve]:
        """Return the settings that apply with a server on an arch; later ones win."""
        keys = (arch,) if server == VLLM else (server, f"{server}/{arch}")
        plain = [self.serve] if server == VLLM else []
        return plain + [self.serve_on[key] for key in keys if key in self.serve_on]

    @property
    def shared_memory(self) -> str:
        """What each of two Sparks holds; empty for a model on one."""
        if self.sparks == 1 or self.memory is None:
            return ""
        cache = "all of the KV cache" if self.memory.latent else "half of the KV cache"
        return f"for two DGX Sparks: {self.memory.weights_gb / self.sparks:.0f} GB of weights and {cache} on each"

    def node_settings(self, rank: int, head: str = "192.168.100.1") -> dict[str, str]:
        """Return what no image can know of two machines, as an example for the head (0) or the other (1)."""
        return {"NODE_RANK": str(rank), "HEAD_ADDRESS": head} if self.sparks > 1 else {}

    @property
    def repositories(self) -> list[str]:
        """Its own first, each once: a model may draft for itself."""
        named = [self.repo, *(drafter.repo for drafter in self.drafters)]
        return [*dict.fromkeys(repo for repo in named if repo)]

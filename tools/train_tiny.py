"""Trains the tiny model on the project's own pages, so that its answers are not uniform: a minute on two cores.

    docker run --rm -v "$PWD":/repo --entrypoint python3 IMAGE /repo/tools/train_tiny.py

IMAGE is one of tiny/cpu, which has torch and transformers. The seed is fixed; other pages give other weights.
"""

import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM

ROOT = Path(__file__).resolve().parents[1]
WINDOW, BATCH, STEPS, RATE = 192, 16, int(sys.argv[1]) if len(sys.argv) > 1 else 600, 4e-3

torch.manual_seed(1)
pages = sorted([*ROOT.glob("docs/*.md"), *ROOT.glob("imagefactory/*/*.py"), ROOT / "README.md"])
text = b"\n".join(page.read_bytes() for page in pages)
config = AutoConfig.from_pretrained("/opt/models/tiny", attention_bias=True)
tokens = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()  # the tokenizer's tokens are bytes

model = AutoModelForCausalLM.from_config(config).float()
for layer in model.model.layers:
    torch.nn.init.zeros_(layer.self_attn.o_proj.bias).requires_grad_(False)  # noqa: FBT003 - vLLM leaves it out, SGLang does not
optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.1)
schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, STEPS)
for step in range(STEPS):
    starts = torch.randint(len(tokens) - WINDOW, (BATCH,)).tolist()
    batch = torch.stack([tokens[start : start + WINDOW] for start in starts])
    loss = model(batch, labels=batch).loss
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    schedule.step()
    if step % 50 == 0 or step == STEPS - 1:
        sys.stderr.write(f"{step} {loss.item():.3f}\n")
weights = {name: value.to(torch.bfloat16).contiguous() for name, value in model.state_dict().items()}
weights.pop("lm_head.weight", None)  # tied to the embedding
save_file(weights, ROOT / "data" / "trained_model" / "model.safetensors", metadata={"format": "pt"})

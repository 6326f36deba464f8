"""Makes the small real task: Countdown problems as parquet, and a tiny model warmed up on them.

    python recipes/countdown_tiny/prepare.py [--out .cache/countdown_tiny]

Writes `train.parquet`, `val.parquet`, `model/` and `pool.json` (full groups measured on held-out problems).
The result is reused as long as the settings and the problems they generate stay the same.
"""

import argparse
import hashlib
import itertools
import json
import math
import random
import shutil
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(Path(__file__).resolve().parent))

from measure import measure_pool  # noqa: E402

from verl_sara.data.countdown import DATA_SOURCE, CountdownProblem, generate, prompt_text  # noqa: E402
from verl_sara.data.rows import make_row  # noqa: E402


@dataclass(frozen=True)
class Family:
    """One kind of problem: how many numbers, which operators, and its share of the pool and of the warm-up.

    `pool_share` counts problems of 64, `warm_up_weight` is relative, and `examples` is the number of distinct
    problems the warm-up draws from.
    """

    name: str
    size: int
    ops: str
    pool_share: int
    warm_up_weight: float = 0.0
    examples: int = 0


FAMILIES = (
    Family("easy", 2, "+", 14, warm_up_weight=0.5, examples=400),
    Family("medium", 3, "+-", 14, warm_up_weight=0.5, examples=8000),
    Family("hard", 4, "+-*", 36),
)


@dataclass(frozen=True)
class Settings:
    """Everything that decides the result."""

    seed: int = 7
    version: int = 1
    families: tuple[Family, ...] = FAMILIES
    train_prompts: int = 512
    val_prompts: int = 64
    held_out_prompts: int = 256
    max_number: int = 30
    max_target: int = 99
    hidden: int = 128
    layers: int = 2
    heads: int = 4
    steps: int = 800
    batch: int = 64
    lr: float = 3e-3
    group_size: int = 8
    probe: int = 5
    max_response: int = 32


SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['content'] }}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>{% endif %}"
)


def build_tokenizer():
    """A character tokenizer: the special tokens and the 256 byte symbols, no merges.

    transformers 5 reads every `qwen2` model's tokenizer as byte-level, whatever `tokenizer.json` says, so
    this is built as one; its vocabulary and the model's must have the same size.
    """
    from transformers import Qwen2Tokenizer
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    vocab = {token: index for index, token in enumerate([*SPECIAL, *bytes_to_unicode().values()])}
    tokenizer = Qwen2Tokenizer(
        vocab=vocab,
        merges=[],
        unk_token=None,
        bos_token=None,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=["<|im_start|>"],
        model_max_length=256,
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def build_model(settings: Settings, tokenizer):
    """An untrained Qwen2 model of at most a million parameters."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(settings.seed)
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=settings.hidden,
        intermediate_size=2 * settings.hidden,
        num_hidden_layers=settings.layers,
        num_attention_heads=settings.heads,
        num_key_value_heads=settings.heads,
        max_position_embeddings=256,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        attn_implementation="sdpa",
        dtype="float32",
    )
    return Qwen2ForCausalLM(config)


def messages(problem: CountdownProblem) -> list[dict[str, str]]:
    """The prompt of a problem as chat messages."""
    return [{"role": "user", "content": prompt_text(problem.numbers, problem.target, template="tiny")}]


def encode_examples(problems: list[CountdownProblem], tokenizer) -> list[tuple[list[int], int]]:
    """Token ids of prompt and solution of each problem, with the length of the prompt."""
    examples = []
    for problem in problems:
        prompt = tokenizer.apply_chat_template(messages(problem), add_generation_prompt=True, tokenize=False)
        prompt_ids = tokenizer(prompt, add_special_tokens=False).input_ids
        answer_ids = tokenizer(problem.solution, add_special_tokens=False).input_ids
        examples.append((prompt_ids + answer_ids + [tokenizer.eos_token_id], len(prompt_ids)))
    return examples


def warm_up(settings: Settings, model, tokenizer, problems: list[CountdownProblem]) -> float:
    """Train the model on the solutions (loss on the response only); returns the last loss."""
    import torch

    examples = encode_examples(problems, tokenizer)
    share = {family.size: family.warm_up_weight / max(1, family.examples) for family in settings.families}
    cumulative = list(itertools.accumulate(share[len(problem.numbers)] for problem in problems))
    rng = random.Random(settings.seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=settings.lr, weight_decay=0.01, betas=(0.9, 0.98))
    model.train()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # matrices this small lose more to a second thread than it computes
    started, mean = time.time(), 0.0
    for step in range(settings.steps):
        warm, left = min(1.0, (step + 1) / 20), step / settings.steps
        for group in optimizer.param_groups:
            group["lr"] = settings.lr * warm * (0.55 + 0.45 * math.cos(math.pi * left))
        batch = rng.choices(examples, cum_weights=cumulative, k=settings.batch)
        width = max(len(ids) for ids, _ in batch)
        ids = torch.full((len(batch), width), tokenizer.pad_token_id)
        labels = torch.full((len(batch), width), -100)
        for row, (tokens, prompt_length) in enumerate(batch):
            ids[row, : len(tokens)] = torch.tensor(tokens)
            labels[row, prompt_length : len(tokens)] = torch.tensor(tokens[prompt_length:])
        # right padding and causal attention: no mask needed
        loss = model(input_ids=ids, labels=labels).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        mean = loss.item() if step == 0 else 0.9 * mean + 0.1 * loss.item()
        if (step + 1) % 25 == 0 or step + 1 == settings.steps:
            print(
                f"warm-up step {step + 1}/{settings.steps}  loss {mean:.3f}  {time.time() - started:.0f} s",
                flush=True,
            )
    torch.set_num_threads(threads)
    return mean


def rows(problems: list[CountdownProblem], split: str) -> list[dict]:
    """verl's data rows."""
    return [
        make_row(
            prompt=messages(problem),
            data_source=DATA_SOURCE,
            ground_truth=problem.ground_truth,
            ability="countdown",
            split=split,
            index=index,
        )
        for index, problem in enumerate(problems)
    ]


def make_problems(settings: Settings) -> dict[str, list[CountdownProblem]]:
    """The problems of each part; train, val and held_out share none.

    The warm-up may see problems of the pool: what it must give is a mix of easy and hard ones.
    """
    parts: dict[str, list[CountdownProblem]] = {"train": [], "val": [], "held_out": [], "warm_up": []}
    limits = {"max_number": settings.max_number, "max_target": settings.max_target}
    for number, family in enumerate(settings.families):
        kind = {"sizes": [family.size], "ops": family.ops, **limits}
        counts = {
            part: family.pool_share * getattr(settings, f"{part}_prompts") // 64
            for part in ("train", "val", "held_out")
        }
        problems = generate(sum(counts.values()), seed=100 * settings.seed + number, **kind)
        for part, count in counts.items():
            parts[part] += problems[:count]
            problems = problems[count:]
        if family.examples:
            parts["warm_up"] += generate(family.examples, seed=100 * settings.seed + 50 + number, **kind)
    for part in ("train", "val"):
        random.Random(settings.seed).shuffle(parts[part])
    return parts


def fingerprint(settings: Settings, problems: dict[str, list[CountdownProblem]]) -> str:
    """Changes with the settings and with the problems."""
    content = [asdict(settings), {part: [asdict(p) for p in items] for part, items in problems.items()}]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16]


def prepare(out: Path, settings: Settings | None = None) -> dict:
    """Make everything under `out`, or reuse what is there; returns the content of `pool.json`."""
    settings = settings or Settings()
    problems = make_problems(settings)
    stamp = fingerprint(settings, problems)
    pool_file = out / "pool.json"
    if pool_file.exists() and json.loads(pool_file.read_text()).get("fingerprint") == stamp:
        return json.loads(pool_file.read_text())
    import pandas as pd

    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    for split in ("train", "val"):
        pd.DataFrame(rows(problems[split], split)).to_parquet(out / f"{split}.parquet")
    tokenizer = build_tokenizer()
    model = build_model(settings, tokenizer)
    parameters = sum(p.numel() for p in model.parameters())
    print(f"model: {parameters / 1e6:.2f} M parameters, {len(tokenizer)} tokens", flush=True)
    started = time.time()
    loss = warm_up(settings, model, tokenizer, problems["warm_up"])
    warm_up_s = time.time() - started
    model.generation_config.update(do_sample=True, temperature=1.0, top_k=0, top_p=1.0)
    model.save_pretrained(out / "model")
    tokenizer.save_pretrained(out / "model")
    pool = {
        "fingerprint": stamp,
        "parameters": parameters,
        "warm_up_s": round(warm_up_s, 1),
        "warm_up_loss": round(loss, 4),
        "settings": asdict(settings),
        **measure_pool(model, tokenizer, problems["held_out"], settings),
    }
    pool_file.write_text(json.dumps(pool, indent=1) + "\n")
    return pool


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=ROOT / ".cache/countdown_tiny", help="folder to fill")
    out = parser.parse_args().out
    pool = prepare(out)
    print(json.dumps({key: value for key, value in pool.items() if key != "settings"}, indent=1))
    print(f"ready in {out}")


if __name__ == "__main__":
    main()

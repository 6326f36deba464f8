"""The layers, read from the import statements; what `import verl_sara` loads; sizes."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "verl_sara"
SOURCES = sorted(PACKAGE.rglob("*.py"))
SIZED = SOURCES + sorted((ROOT / "analysis").rglob("*.py"))

# What a layer may import of the package, beside itself.
LAYERS = {
    "core": set(),
    "rewards": set(),
    "data": {"core", "rewards"},
    "selection": {"core"},
    "config": {"core", "selection"},
    "ledger": {"core"},
    "metrics": {"core", "ledger"},
    "verl_log": {"ledger"},
    "summary": {"config", "core", "ledger", "metrics", "verl_log"},
    "report": {"config", "core", "ledger", "metrics", "summary", "verl_log"},
    "simulate": {"config", "core", "ledger", "metrics", "selection", "verl_log"},
    "cpu": set(),
    "plugin": {"cpu"},
}
BELOW_ADAPTERS = set(LAYERS) - {"cpu", "plugin"}
LAYERS |= {"adapters": BELOW_ADAPTERS, "cli": BELOW_ADAPTERS | {"adapters", "cpu"}}

HOST = {"verl", "ray", "torch", "transfer_queue", "tensordict", "vllm"}
HOST_LAYERS = {"adapters", "cpu"}

MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 80


def layer_of(path):
    """Returns the top-level module of the package that a file belongs to; "" for `verl_sara` itself."""
    first = path.relative_to(PACKAGE).parts[0]
    return "" if first == "__init__.py" else first.removesuffix(".py")


def imported(tree, path, *, anywhere=True):
    """Yields the absolute dotted names a module imports; at module level only unless `anywhere`."""
    package = ("verl_sara", *path.relative_to(PACKAGE).parent.parts)
    pending = list(tree.body)
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join((*base, *filter(None, [node.module])))
            yield from (f"{module}.{alias.name}" for alias in node.names)
        elif anywhere or not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            pending.extend(ast.iter_child_nodes(node))


def parse(path):
    return ast.parse(path.read_text(encoding="utf-8"))


def test_the_reader_of_imports_sees_every_form():
    text = "import a.b\nfrom ..core import x\nfrom . import y\ndef f():\n    import c\n"
    path = PACKAGE / "rewards" / "made_up.py"
    assert set(imported(ast.parse(text), path)) == {"a.b", "verl_sara.core.x", "verl_sara.rewards.y", "c"}
    assert "c" not in set(imported(ast.parse(text), path, anywhere=False))


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_follow_the_layers(path):
    layer = layer_of(path)
    tree = parse(path)
    names = set(imported(tree, path))
    ours = {name.split(".")[1] for name in names if name.startswith("verl_sara.")} - {layer, "__version__"}
    assert layer in LAYERS or not layer, f"{layer} is in no layer; allowed: {', '.join(LAYERS)}"
    allowed = LAYERS[layer] if layer else set()
    assert ours <= allowed, f"{layer} imports {sorted(ours - allowed)}; allowed: {sorted(allowed)}"
    if layer in ("core", ""):
        foreign = {name.split(".")[0] for name in names} - sys.stdlib_module_names - {"verl_sara"}
        assert not foreign, f"{path.name} imports {sorted(foreign)}; allowed: the standard library"


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_the_host_is_imported_by_the_adapters_only(path):
    if layer_of(path) in HOST_LAYERS:
        return
    names = {name.split(".")[0] for name in imported(parse(path), path, anywhere=False)}
    assert not names & HOST, f"{path.name} imports {sorted(names & HOST)} at module level"


@pytest.mark.parametrize("module", ["verl_sara", "verl_sara.core"])
def test_importing_stays_light(module):
    code = f"import sys, {module}; print([n for n in ('torch', 'ray', 'verl', 'numpy') if n in sys.modules])"
    # -S: without site-packages' start-up files, which may import anything
    done = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout.strip() == "[]", done.stdout + done.stderr


@pytest.mark.parametrize("path", SIZED, ids=lambda p: str(p.relative_to(ROOT)))
def test_files_and_functions_are_short(path):
    num_lines = len(path.read_text(encoding="utf-8").splitlines())
    assert num_lines < MAX_FILE_LINES, f"{path.name} has {num_lines} lines"
    for node in ast.walk(parse(path)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            length = node.end_lineno - node.lineno + 1
            assert length < MAX_FUNCTION_LINES, f"{path.name}: {node.name} has {length} lines"


@pytest.mark.parametrize("path", SIZED, ids=lambda p: str(p.relative_to(ROOT)))
def test_every_module_says_what_it_is_for(path):
    tree = parse(path)
    assert not tree.body or ast.get_docstring(tree), f"{path.relative_to(ROOT)} has no module docstring"

"""The installed distribution: entry points, extras and a light base install."""

import importlib.metadata as metadata
import re
import subprocess
import sys
from pathlib import Path

import pytest

import verl_sara

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def distribution():
    return metadata.distribution("verl-sara")


def test_version_and_python(distribution):
    assert distribution.version == verl_sara.__version__
    assert distribution.metadata["Requires-Python"] in ("<3.13,>=3.10", ">=3.10,<3.13")


@pytest.mark.parametrize(
    ("group", "name", "value"),
    [
        ("verl.plugins", "sara", "verl_sara.plugin"),
        ("vllm.general_plugins", "sara_cpu", "verl_sara.cpu.vllm_plugin:register"),
        ("console_scripts", "sara", "verl_sara.cli.__main__:main"),
    ],
)
def test_entry_point(distribution, group, name, value):
    found = [entry.value for entry in distribution.entry_points if (entry.group, entry.name) == (group, name)]
    assert found == [value]


def test_base_install_needs_nothing(distribution):
    requires = distribution.requires or []
    assert [line for line in requires if "extra ==" not in line] == []
    assert set(distribution.metadata.get_all("Provides-Extra")) == {"analysis", "cpu", "dev", "gpu", "math"}


def test_lock_pins_everything_and_agrees_with_the_cpu_extra(distribution):
    lines = [
        line for line in (ROOT / "requirements/cpu.lock").read_text().splitlines() if line and line[0] != "#"
    ]
    assert [line for line in lines if not re.fullmatch(r"[A-Za-z0-9._-]+==[0-9A-Za-z.+]+", line)] == []
    pinned = {
        re.sub("[._]", "-", name.lower()): version for name, version in (line.split("==") for line in lines)
    }
    assert not {"torchvision", "torchaudio", "torchcodec"} & pinned.keys()
    assert pinned["torch"].endswith("+cpu")
    for requirement in distribution.requires:
        match = re.fullmatch(r"([A-Za-z0-9_.-]+)==([0-9.]+); extra == \"cpu\"", requirement)
        if match:
            assert pinned[match[1].lower()].split("+")[0] == match[2], requirement


@pytest.mark.slow
def test_wheel_holds_the_presets_and_every_package(tmp_path):
    build = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "-q",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        str(tmp_path),
        str(ROOT),
    ]
    subprocess.run(build, check=True, cwd=tmp_path)
    import zipfile

    (wheel,) = tmp_path.glob("verl_sara-*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    sources = {
        str(path.relative_to(ROOT))
        for pattern in ("*.py", "*.yaml", "py.typed")
        for path in (ROOT / "verl_sara").rglob(pattern)
    }
    assert sources <= names
    assert not [name for name in names if name.startswith(("tests/", "recipes/", "analysis/"))]

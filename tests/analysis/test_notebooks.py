"""The notebooks run on the example, and print what the report says."""

from pathlib import Path

import nbclient
import nbformat
import pytest

from verl_sara import report
from verl_sara.report import sections

ANALYSIS = Path(__file__).parents[2] / "analysis"
NOTEBOOKS = sorted(ANALYSIS.glob("*.ipynb"))
SECTIONS = {
    "01": sections.rollout_savings,
    "02": sections.token_savings,
    "03": sections.effective_batch,
    "04": sections.stopping,
    "05": sections.ablations,
    "06": sections.wall_clock,
}


@pytest.fixture(scope="module")
def kernel():
    """One kernel for all: its imports take longer than the notebooks."""
    from jupyter_client.manager import KernelManager

    manager = KernelManager(kernel_name="python3")
    manager.start_kernel(cwd=str(ANALYSIS))
    yield manager
    manager.shutdown_kernel(now=True)


@pytest.fixture(scope="module")
def runs():
    return report.load_runs({folder.name: folder for folder in sorted((ANALYSIS / "example").iterdir())})


def test_there_are_six_notebooks():
    assert [path.name[:2] for path in NOTEBOOKS] == list(SECTIONS)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_answers_its_question_with_the_reports_numbers(path, kernel, runs):
    notebook = nbformat.read(path, as_version=4)
    first, last = notebook.cells[0], notebook.cells[-1]
    section = SECTIONS[path.name[:2]](runs)
    assert first.source.startswith("# ") and section.question in first.source.replace("\n", " ")
    notebook.cells.insert(0, nbformat.v4.new_code_cell("%reset -f"))
    client = nbclient.NotebookClient(notebook, km=kernel, timeout=120)
    client.execute()
    client.kc.stop_channels()
    printed = "".join(output.text for output in last.outputs if output.output_type == "stream")
    assert section.tables[-1].markdown() in printed and section.tables[-1].latex() in printed
    shown = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    assert sum("image/png" in output.get("data", {}) for output in shown) == len(section.pictures)
    assert not [output for output in shown if output.get("name") == "stderr"], "the notebook warns"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_kept_thin_and_without_outputs(path):
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    for cell in notebook.cells:
        assert not cell.get("outputs") and cell.get("execution_count") is None
        assert len(cell.source.splitlines()) <= 15

"""Imports go one way, and training runs where only torch and the file formats are installed."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MODULES = sorted((ROOT / "pipeline").rglob("*.py"))
BLOCKED = {
    "pipeline/data": {"torch", "prefect", "mlflow", "model", "training", "export", "encoding"},
    "pipeline/model": {"data", "training", "storage", "shards", "settings", "numpy", "pyarrow", "fsspec", "tokenizers"},
    "pipeline/training": {"data", "tokenizers", "prefect", "mlflow", "export", "encoding"},
    "pipeline/estimate": {"torch", "model", "training", "export", "encoding"},
    "pipeline": {"prefect", "mlflow", "flows"},
}


def imports(path: Path) -> list[tuple[int, str]]:
    """Level and first name of each import; `from ..data import x` gives (2, "data")."""
    found = []
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found += [(0, alias.name.split(".")[0]) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module.split(".")[0]] if node.module else [alias.name for alias in node.names]
            found += [(node.level, name) for name in names]
    return found


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_module_imports_only_what_its_layer_may(path: Path) -> None:
    found = imports(path)
    assert (0, "pipeline") not in found, "pipeline imports itself relatively, so that it can be shipped under another name"
    for folder, blocked in BLOCKED.items():
        if path.is_relative_to(ROOT / folder):
            own_package = {name for level, name in found if level == 1 and path.parent != ROOT / "pipeline"}
            assert not ({name for _, name in found} - own_package) & blocked


def test_no_import_hides_in_a_function() -> None:
    for path in [*MODULES, *(ROOT / "flows").rglob("*.py")]:
        tree = ast.parse(path.read_text("utf-8"))
        inner = [
            n for f in ast.walk(tree) if isinstance(f, ast.FunctionDef) for n in ast.walk(f) if isinstance(n, ast.Import | ast.ImportFrom)
        ]
        allowed = {"cli.py", "serving.py"}  # start fast without Prefect, as commands do; find a package by name
        assert not inner or path.name in allowed or path.parent.name == "commands", f"{path}: line {inner[0].lineno}"


def test_training_imports_without_prefect_mlflow_and_tokenizers() -> None:
    code = (
        "import sys\n"
        "for name in ('prefect', 'mlflow', 'tokenizers', 'pydantic', 'matplotlib'): sys.modules[name] = None\n"
        "import pipeline.training.__main__"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr

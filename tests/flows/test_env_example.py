"""`.env.example` names every variable of this project's own, and none that nothing reads."""

import os
import re
import subprocess

from .conftest import ROOT

SOURCES = [*(ROOT / "flows").rglob("*.py"), *(ROOT / "pipeline").rglob("*.py"), ROOT / "prefect.yaml", ROOT / "Makefile"]
INNER = {"BERT_AGENT", "BERT_LEASE"}  # a parent's, for its child
ELSEWHERE = re.compile(
    r"PREFECT_|MLFLOW_|DO_NOT_TRACK|PGPASSWORD|WIKITEXT2$|OMP_NUM_THREADS"
)  # read by Prefect, MLflow, drivers, torch, tests


def variables() -> dict[str, str]:
    """Each variable with its default."""
    lines = (ROOT / ".env.example").read_text("utf-8").splitlines()
    return dict(line.removeprefix("#").split("=", 1) for line in lines if re.match(r"#[A-Z][A-Z0-9_]*=", line))


def test_it_names_all_of_them() -> None:
    text = "\n".join(path.read_text("utf-8") for path in SOURCES)
    ours = set(re.findall(r"\bBERT_[A-Z0-9_]+\b", text)) - INNER
    assert ours <= set(variables()), "add them to .env.example"
    for name in variables():
        assert ELSEWHERE.match(name) or re.search(rf"\b{name}\b", text), f"nothing reads {name}"


def test_a_shell_can_source_it_and_nothing_in_it_is_secret() -> None:
    done = subprocess.run(
        ["bash", "-euc", "set -a; source .env.example; env"], cwd=ROOT, env={"PATH": os.environ["PATH"]}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert not [name for name in variables() if f"{name}=" in done.stdout], "as it is, it changes nothing"
    assert not [name for name, value in variables().items() if value and re.search("PASSWORD|AUTH_STRING|SECRET", name)]

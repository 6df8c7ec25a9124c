"""What the pages say is so: every command is run by a test, or says what it needs that a test has not.

A command of `pretrain-bert` about a registered version, shards or a store is run here, as it is printed, on a small real run. Any
other is checked as far as its own parser goes, and a row of `RUN_BY` names the test that runs one like it.
"""

import ast
import importlib
import json
import re
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from flows import cli
from flows.options import read_sections
from pipeline.settings import recipe_of

from .conftest import ROOT, environment, run_all, write_corpus

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
_PROGRAMS = "make|prefect|pretrain-bert|export|source|unset|curl|mlflow|apt-get|cat|ssh|srun|tar"
_COMMAND = re.compile(rf"(?:[A-Z_]+=\S* )*(?:{_PROGRAMS}|bin=\S+|\$bin/\S+|\.venv/bin/\S+)\s")
_SHOWN = re.compile(r"corpus\s|flows/\s|cpu worker|GPU 0:|training goes to|prefect\.example\.org|  A  <cls>|error: |\{.error_code")
"""How a block begins that shows what is printed, or is a picture, or a file's contents."""
_NEEDS = re.compile(r"# needs (S3|SFTP|a GPU|GPUs|Slurm)")
_OURS = re.compile(r"(?:.*\| )?\.venv/bin/pretrain-bert (?P<words>.*)")

_FLOWS, _TRAINING = "tests/flows", "tests/pipeline/training"
RUN_BY = {
    r".*(texts\.jsonl\.gz|reports\.parquet|path/to/folder)": f"{_FLOWS}/test_corpora.py::results",
    r"make pretrain( |$)|BERT_STORE=\S+ make pretrain": "tests/flows/test_docs.py::walked",
    r"apt-get install chromium|make test ARGS=": f"{_FLOWS}/test_end_to_end.py::browser",
    r"make test( |$)": "tests/flows/test_docs.py::test_every_target_is_one",
    r"make (up|down)( |$)|WATCH_CORPUS=\S+ make up": "tests/flows/test_end_to_end.py::test_a_second_up_is_harmless",
    r"make (up|down) STACK=team|source artifacts/servers|apt-get install postgresql": f"{_FLOWS}/test_team_stack.py::team",
    r"bin=|\$bin/|tar |PGPASSWORD=": f"{_FLOWS}/test_team_stack.py::test_nothing_is_lost_over_a_restart_and_a_backup_is_brought_back",
    r"make clean-artifacts": "tests/flows/test_clean.py::test_make_removes_only_with_yes_1",
    r"export |unset |source \.venv|mlflow models serve|curl ": "tests/flows/test_serving.py::test_the_page_runs_as_it_is_printed",
    r"\.venv/bin/prefect deployment run pretrain-bert/\w+": "tests/flows/test_end_to_end.py::finished",
    r"\.venv/bin/pretrain-bert (finetune|predict) ": f"{_FLOWS}/test_finetune.py::walked",
    r"\.venv/bin/prefect deployment run finetune-encoder": f"{_FLOWS}/test_end_to_end.py::test_a_deployment_fine_tunes_the_encoder",
    r"\.venv/bin/prefect deployment run watch-corpus": "tests/flows/test_watch_corpus.py::test_the_first_look_has_a_version_trained",
    r"\.venv/bin/(prefect worker|prefect --no-prompt deploy|python -m flows.automations)": "tests/flows/test_gpu_worker.py::site",
    r"\.venv/bin/python -m pipeline.training": f"{_TRAINING}/test_ranks.py::test_a_killed_agent_takes_its_ranks_along",
    r"\.venv/bin/python - <<": f"{_FLOWS}/test_team_stack.py::test_a_person_gets_an_account_as_the_page_says",
    r"(\.venv/bin/)?pretrain-bert estimate": "tests/flows/test_estimate.py::test_the_page_shows_what_its_commands_print",
    r"\.venv/bin/pretrain-bert run .*--warm-start (?!previous)": "tests/pipeline/test_starting.py",
    r"\.venv/bin/pretrain-bert run .*builders": "tests/flows/test_builders.py::test_whoever_builds_the_shards_are_the_same",
    r"\.venv/bin/pretrain-bert run": "tests/flows/test_docs.py::walked",
}


@dataclass(frozen=True)
class Command:
    """A line of a page. :param needs: what it says that it needs."""

    page: str
    line: str
    needs: str

    @property
    def words(self) -> list[str] | None:
        """Of `pretrain-bert`; None: it is another program's."""
        found = _OURS.fullmatch(self.line)
        return shlex.split(found["words"], comments=True) if found else None


def lines() -> list[tuple[Path, str]]:
    """Every line of the pages' blocks that are in no language; continued ones are one line, what a command reads (`<<`) is none."""
    found = []
    for page in PAGES:
        for language, block in re.findall(r"^```(\w*)\n(.*?)^```", page.read_text("utf-8"), re.DOTALL | re.MULTILINE):
            if not language and not (_SHOWN.match(block) and not _COMMAND.match(block)):
                plain = re.sub(r"(<<'(\w+)'\n).*?^\2$", r"\1", block, flags=re.DOTALL | re.MULTILINE)
                found += [(page, line) for line in re.sub(r"\\\n\s*", "", plain).splitlines() if line.strip()]
    return found


def commands() -> list[Command]:
    """Every command line of the pages; scaling.md's are compared with what they print elsewhere."""
    found = [(page, line, _NEEDS.search(line)) for page, line in lines() if _COMMAND.match(f"{line} ")]
    assert len(found) > 60
    return [Command(page.name, line, needs[1] if needs else "") for page, line, needs in found]


def test_every_line_of_a_block_is_a_command_or_is_shown() -> None:
    """So that none goes untested because nobody knows its program."""
    for page, line in lines():
        known = _COMMAND.match(f"{line} ") or line.startswith("#")
        assert known or page.name == "scaling.md", f"{page.name}: {line}: add its program to _PROGRAMS, or its block's beginning to _SHOWN"


RUN_HERE = {"encode", "fill-mask", "lineage", "compare", "rollback", "inspect", "clean"}


@pytest.mark.parametrize("command", commands(), ids=lambda command: f"{command.page}: {command.line[:60]}")
def test_every_command_is_run_by_a_test_or_says_what_it_needs(command: Command) -> None:
    words = command.words
    if words is not None:
        options = cli.parser().parse_args(words)
        if words[0] == "run":
            recipe_of(options.preset, None, None, **read_sections(options))
    if command.needs or (words and words[0] in RUN_HERE):
        return
    node = next((node for pattern, node in RUN_BY.items() if re.match(f"(?:{pattern})", command.line)), None)
    assert node, f"{command.line}: no test runs it; name one in RUN_BY, or write `# needs …` behind it"
    path, _, name = node.partition("::")
    tree = ast.parse((ROOT / path).read_text("utf-8"))
    names = {entry.name for entry in ast.walk(tree) if isinstance(entry, ast.FunctionDef)}
    assert not name or name in names, f"{node} is no test"


PYTHON_RUN_BY = {
    "encoding.md": "tests/flows/test_encode.py",
    "fine-tuning.md": f"{_FLOWS}/test_finetune.py",
    "serving.md": "tests/flows/test_serving.py",
}


def test_every_python_block_is_run_by_a_test() -> None:
    with_blocks = {page.name for page in PAGES if "```python\n" in page.read_text("utf-8")}
    assert with_blocks == set(PYTHON_RUN_BY)
    for page, test in PYTHON_RUN_BY.items():
        source = (ROOT / test).read_text("utf-8")
        assert page in source and "```python" in source, f"{test} does not take the blocks of {page}"


def test_every_target_is_one() -> None:
    targets = {found for command in commands() for found in re.findall(r"(?:^| )make ([a-z-]+)", command.line)}
    assert {"pretrain", "test", "up", "down"} <= targets
    known = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
    assert targets <= set(known)


def test_every_deployment_takes_its_parameters() -> None:
    deployments = yaml.safe_load((ROOT / "prefect.yaml").read_text("utf-8"))["deployments"]
    known = {f"{entry['entrypoint'].rpartition('.')[2].replace('_', '-')}/{entry['name']}": entry for entry in deployments}
    named = 0
    for command in commands():
        for name, rest in re.findall(r"deployment run (\S+)(.*)", command.line):
            assert name in known, command.line
            words = shlex.split(rest, comments=True)
            given = [words[place + 1].split("=", 1) for place, word in enumerate(words) if word == "--param"]
            values = {key: json.loads(value) if value[:1] in "{[" else value for key, value in given}
            module, _, function = known[name]["entrypoint"].rpartition(".")
            flow = getattr(importlib.import_module(module), function)
            flow.validate_parameters((known[name].get("parameters") or {}) | values)
            named += 1
    assert named > 3


def headings(page: Path) -> set[str]:
    """What a link may name after `#`, as GitHub writes it."""
    titles = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_every_link_leads_somewhere() -> None:
    for page in PAGES:
        for link in re.findall(r"\]\(([^)]+)\)", page.read_text("utf-8")):
            path, _, heading = link.partition("#")
            target = (page.parent / path) if path else page
            assert "://" in link or target.exists(), f"{page.name}: {link}"
            assert not heading or "://" in link or heading in headings(target), f"{page.name}: {link}: no such heading"


def test_every_file_that_is_named_is_there() -> None:
    """Files of this project, by their path or in the tree of CONTRIBUTING.md; what a run makes or a user brings is not looked for."""
    for page in PAGES:
        text = page.read_text("utf-8")
        for name in re.findall(r"`((?:flows|pipeline|tests|docs)/[\w./*<>-]+)`", text):
            assert list(ROOT.glob(re.sub(r"<\w+>", "*", name))), f"{page.name}: {name}"
        for name in re.findall(r"`(\w+\.(?:py|sh))`", text):
            assert list(ROOT.glob(f"*/**/{name}")), f"{page.name}: {name}"


def test_the_tree_names_files_that_are_there() -> None:
    """The annotated tree of CONTRIBUTING.md."""
    (tree,) = re.findall(r"^```\n(flows/ .*?)^```", (ROOT / "CONTRIBUTING.md").read_text("utf-8"), re.DOTALL | re.MULTILINE)
    blocks = re.findall(r"^(flows|pipeline)/ (.*?)(?=^\w)", tree, re.DOTALL | re.MULTILINE)
    assert len(blocks) == 2
    for folder, block in blocks:
        known = {path.name for path in (ROOT / folder).rglob("*.py")}
        assert set(re.findall(r"\b\w+\.py\b", block)) <= known


@pytest.fixture(scope="module")
def walked(tmp_path_factory: pytest.TempPathFactory, text) -> Path:
    """A folder after two runs of `make pretrain`'s command, with the files that the pages speak of."""
    folder = tmp_path_factory.mktemp("walked")
    corpus = write_corpus(folder / "texts", text, train=100, valid=20)
    settings = environment(PREFECT_API_URL="", PYTHONPATH=str(ROOT), OMP_NUM_THREADS="1")
    more = ["training.batch_size=16", "vocabulary.min_count=1", "shards.buckets=2", "model.max_position_embeddings=64", "gate.margin=1"]
    line = f"run --corpus {corpus} --model-name bert-tiny --steps 3 {' '.join(f'--set {entry}' for entry in more)} --set training.seed="
    said, _ = run_all([f"{line}0", f"{line}1"], folder, settings)
    assert "models:/bert-tiny/2 is champion: held-out loss" in said[f"{line}1"]
    (folder / "sentences.txt").write_text("a crane is flying\nhe just left\n", "utf-8")
    (folder / "pairs.tsv").write_text("premise\thypothesis\na crane\tit left\n", "utf-8")
    pq.write_table(pa.table({"body": ["a crane is flying"]}), folder / "reviews.parquet")
    return folder


def test_the_commands_about_a_run_work_as_they_are_printed(
    walked: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of mini the run's own encoder stands in, and the keys of an example are those of the run; what removes comes last."""
    monkeypatch.chdir(walked)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("BERT_STORE", str(walked / "artifacts"))
    manifests = [json.loads(path.read_text("utf-8")) for path in (walked / "artifacts" / "shards").glob("*/manifest.json")]
    (shards,) = (manifest["key"] for manifest in manifests if manifest["facts"]["split"] == "train")
    here = [command for command in commands() if command.words and command.words[0] in RUN_HERE and not command.needs]
    run = 0
    for command in sorted(here, key=lambda command: "clean" in command.line):
        line = command.line.replace("bert-mini", "bert-tiny").replace("[MASK]", "<mask>")
        line = line.replace("7cd6064b92197bc4422e", shards).replace(" 7cd6 ", f" {shards[:6]} ")
        words = Command(command.page, line, "").words
        assert words
        if "--file - " in line:
            monkeypatch.setattr(sys, "stdin", (walked / "sentences.txt").open())
        assert cli.main(words) == 0, f"{command.page}: {line}: {capsys.readouterr().err}"
        assert capsys.readouterr().out.strip()
        run += 1
    assert run > 15

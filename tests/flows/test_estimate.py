"""`pretrain-bert estimate`: the page shows what it prints, a file's recipe is taken, and what is wrong is one line."""

from pathlib import Path

import pytest

from flows import cli, options
from pipeline.errors import SettingsError

from .scaling_page import PAGE, ROOT, commands, printed_anew


def estimate(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert cli.main(["estimate", *arguments]) == 0
    return capsys.readouterr().out


def test_the_page_shows_what_its_commands_print(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    page = PAGE.read_text("utf-8")
    assert len(commands(page)) >= 5
    assert printed_anew(page) == page, "print it anew: python -m tests.flows.scaling_page"


def test_a_file_replaces_settings_of_the_preset_and_what_is_typed_those_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "own.toml"
    file.write_text('description = "x"\n[training]\nsteps = 10\nbatch_size = 4\nseed = 7\n[shards]\nseed = 8\n')
    parser = cli.parser()
    sections = options.read_sections(parser.parse_args(["run", "--settings", str(file)]))
    assert sections["training"] == {"steps": 10, "batch_size": 4, "seed": 7}
    assert sections["shards"] == {"seed": 8}
    typed = ["run", "--settings", str(file), "--steps", "20", "--seed", "9", "--set", "training.batch_size=5"]
    sections = options.read_sections(parser.parse_args(typed))
    assert sections["training"] == {"steps": 20, "batch_size": 5, "seed": 9}
    assert sections["shards"] == {"seed": 9}


def test_a_preset_is_a_file_of_settings(capsys: pytest.CaptureFixture[str]) -> None:
    file = str(ROOT / "pipeline" / "presets" / "base.toml")
    by_name = estimate(["--preset", "base", "--corpus-gigabytes", "1"], capsys)
    by_file = estimate(["--preset", "tiny", "--settings", file, "--corpus-gigabytes", "1"], capsys)
    assert "base: 110.1 M parameters" in by_name
    assert by_file == by_name.replace("base: ", "tiny: ")


@pytest.mark.parametrize(
    ("file", "message"),
    [
        ("[trainig]\nsteps = 5\n", "got 'trainig', wanted sections of corpus, "),
        ("steps = 5\n", "got 'steps', wanted sections of corpus, "),
        ("training = 5\n", "got 'training', wanted sections of corpus, "),
        ("[training\n", "wanted TOML of the form of pipeline/presets/*.toml"),
        ("[training]\nstepz = 5\n", "training.stepz: no such setting; training has steps, "),
        ("[training]\nsteps = 0\n", "training.steps: got 0, wanted a value >= 1"),
        (f"[training]\nlearning_rate = 1{'0' * 400}\n", "wanted a finite number (peak learning rate)"),
        (f"[training]\nsteps = {'[' * 3000}\n", "wanted TOML of the form of pipeline/presets/*.toml"),
        (None, "No such file or directory; wanted a TOML file of settings"),
    ],
)
@pytest.mark.parametrize("command", [["run"], ["estimate", "--corpus-gigabytes", "1"]], ids=lambda value: value[0])
def test_a_wrong_file_is_one_line(
    command: list[str], file: str | None, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("BERT_STORE", str(tmp_path / "store"))
    path = tmp_path / "own.toml"
    if file is not None:
        path.write_text(file)
    assert cli.main([*command, "--settings", str(path)]) == 1
    said = capsys.readouterr()
    assert message in said.err
    assert len(said.err.splitlines()) == 1 and not said.out
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--corpus-gigabytes", "0"], "estimate.corpus_gigabytes: got 0.0, wanted a value > 0"),
        (["--corpus-gigabytes", "1e300"], "estimate.corpus_gigabytes: got 1e+300, wanted a value <= "),
        (["--corpus-gigabytes", "9" * 5000], "estimate.corpus_gigabytes: got '999"),
        (["--corpus-gigabytes", "1", "--settings", ""], "--settings: "),
        (["--corpus-gigabytes", "much"], "estimate.corpus_gigabytes: got 'much', wanted a finite number"),
        (["--corpus-gigabytes", "1", "--devices", "8,0"], "estimate.devices: got 0, wanted a value >= 1"),
        (["--corpus-gigabytes", "1", "--utilisation", "2"], "estimate.utilisation: got 2.0, wanted a value <= 1"),
        (["--corpus-gigabytes", "1", "--rate", "sort"], "--rate: got 'sort', wanted NAME=N"),
        (["--corpus-gigabytes", "1", "--rate", "speed=1"], "rate.speed: no such setting; rate has fetch, "),
        (["--corpus-gigabytes", "1", "--rate", "sort=-1"], "rate.sort: got -1.0, wanted a value > 0"),
        (["--corpus-gigabytes", "1", "--preset", "huge"], "preset: got 'huge', wanted one of "),
        (
            ["--corpus-gigabytes", "1", "--set", "vocabulary.kind=file", "--set", "vocabulary.file=t.json"],
            "estimate.vocabulary_size: got none with vocabulary.kind file, wanted how many tokens the file has",
        ),
    ],
)
def test_a_wrong_number_is_one_line(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["estimate", *arguments]) == 1
    said = capsys.readouterr()
    assert said.err.startswith(f"error: {message}")
    assert len(said.err.splitlines()) == 1 and not said.out


def test_a_price_gives_cost_and_a_rate_changes_what_hangs_on_it(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--preset", "base", "--corpus-gigabytes", "20", "--devices", "8"]
    plain, priced = estimate(arguments, capsys), estimate([*arguments, "--price", "3"], capsys)
    assert "cost" not in plain.splitlines()[4]
    assert "cost" in priced.splitlines()[4]
    slower = estimate([*arguments, "--rate", "sort=1e6"], capsys)
    changed = {line.split("  ")[0] for line, other in zip(plain.splitlines(), slower.splitlines(), strict=True) if line != other}
    assert changed == {"shards", "shards, long rows", "total"}


def test_values_that_are_no_entries_are_refused() -> None:
    with pytest.raises(SettingsError, match=r"--set: got 'steps=5'"):
        options.read_entries(["steps=5"])

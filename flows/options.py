"""What the command line says of a recipe.

In: `--preset`, `--settings`, `--steps`, `--seed`, `--set`. Out: settings by section. The decision that matters: what is typed
wins over the file, and the file over the preset.
"""

import argparse
import tomllib
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from pipeline.errors import SettingsError
from pipeline.settings import SECTIONS, preset_names

Sections = dict[str, dict[str, Any]]


def add_recipe_options(parser: argparse.ArgumentParser) -> None:
    """The options that every command with a recipe takes."""
    parser.add_argument("--preset", default="tiny", help=f"one of {', '.join(preset_names())} (default: %(default)s)")
    parser.add_argument("--settings", metavar="FILE", help="TOML of a preset's form, or a part of it, whose settings replace the preset's")
    parser.add_argument("--steps", help="optimizer steps (default: as the preset says)")
    parser.add_argument("--seed", help="seed of pairs, masks, weights and order (default: as the preset says)")
    parser.add_argument("--set", action="append", default=[], metavar="SECTION.NAME=VALUE", help=f"a setting of {', '.join(SECTIONS)}")


def read_sections(options: argparse.Namespace) -> Sections:
    """The settings that replace the preset's.

    :raises SettingsError: the file cannot be read, or a section is unknown. Settings are checked where a recipe is made.
    """
    sections = read_file(options.settings) if options.settings is not None else {section: {} for section in SECTIONS}
    if options.steps is not None:
        sections["training"]["steps"] = whole_number("steps", options.steps)
    if options.seed is not None:
        sections["training"]["seed"] = sections["shards"]["seed"] = whole_number("seed", options.seed)
    for section, settings in read_entries(options.set).items():
        sections[section] |= settings
    return sections


def read_file(path: str) -> Sections:
    """A TOML file by section; a preset's own `description` is passed over.

    :raises SettingsError: it is missing or no TOML, or holds what is no section.
    """
    try:
        values = tomllib.loads(Path(path).read_text("utf-8"))
    except OSError as error:
        raise SettingsError(f"--settings: {path}: {error.strerror}; wanted a TOML file of settings") from None
    except (ValueError, RecursionError) as error:  # of TOML's syntax or UTF-8
        raise SettingsError(f"--settings: {path}: {error}; wanted TOML of the form of pipeline/presets/*.toml") from None
    values.pop("description", None)
    for section, settings in values.items():
        if section not in SECTIONS or not isinstance(settings, dict):
            raise SettingsError(f"--settings: {path}: got {section!r}, wanted sections of {', '.join(SECTIONS)}, each a table")
    return {section: values.get(section, {}) for section in SECTIONS}


def read_entries(entries: Sequence[str], known: Collection[str] = SECTIONS) -> Sections:
    """`section.name=value` entries by section.

    :param known: sections that there are.

    :raises SettingsError: an entry has another form or an unknown section.
    """
    sections: Sections = {section: {} for section in known}
    for entry in entries:
        place, equals, text = entry.partition("=")
        section, dot, name = place.partition(".")
        if not (equals and dot and name) or section not in sections:
            raise SettingsError(f"--set: got {entry!r}, wanted SECTION.NAME=VALUE with a section of {', '.join(known)}")
        sections[section][name] = read_value(text)
    return sections


def read_value(text: str) -> Any:
    """A value as TOML, or as text where it is none."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):  # of TOML's syntax, or of more than Python reads
        return text


def whole_number(name: str, text: str) -> int:
    """A number that was typed.

    :raises SettingsError: it is none.
    """
    try:
        return int(text)
    except ValueError:
        raise SettingsError(f"{name}: got {text!r}, wanted a whole number") from None

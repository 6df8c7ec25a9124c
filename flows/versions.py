"""Registered versions of a name: which came before, and what an earlier one was made from.

In: a model's name or a version's address. Out: versions with their tags. The decision that matters: the version before is
the newest that was trained on another text, so that the same run, run again before another text is trained, finds the same
one and thus itself. One that was worse than the champion, or was rolled back, is nothing to build on.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from mlflow.exceptions import MlflowException

from pipeline.data.change import compare
from pipeline.data.corpus import STAGE as CORPUS
from pipeline.errors import RegistryError, SettingsError
from pipeline.settings import TextSettings
from pipeline.storage import Store

from .aliases import CHALLENGER, DECISION, ROLLED_BACK
from .registry import Version, connect

PREVIOUS = "previous"
HEAD_TAG = "finetuned_key"  # of a version with a head, which has its encoder's `encoder_key` too
_PARTS = re.compile(r"models:/(?P<name>[^/@]+)(/(?P<number>\d+)|@(?P<alias>[^/@]+))")
_PAGE = 100
_NOT_THERE = {"RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"}  # the second of an alias


@dataclass(frozen=True)
class Earlier:
    """Versions that a run builds on.

    :param newest: of the name; None before the first. :param vocabulary: whose vocabulary is kept; None: one is made.
    :param encoder: whose weights training starts from; None: random ones.
    """

    newest: Version | None
    vocabulary: Version | None
    encoder: Version | None

    @property
    def vocabulary_key(self) -> str | None:
        return _tag(self.vocabulary, "vocabulary_key") if self.vocabulary else None

    @property
    def vocabulary_corpus_key(self) -> str | None:
        """The corpus of the version whose vocabulary is kept."""
        return self.vocabulary.tags.get("corpus_key") if self.vocabulary else None

    @property
    def encoder_key(self) -> str | None:
        return encoder_key(self.encoder) if self.encoder else None


def encoder_key(version: Version) -> str:
    """The key of the encoder that a version holds.

    :raises RegistryError: it is one with a head, or none of this project's.
    """
    if HEAD_TAG in version.tags:
        start = version.tags.get("encoder_version", "models:/NAME/NUMBER")
        raise RegistryError(f"{version.uri}: is fine-tuned; wanted an encoder, such as the one that it started from, {start}")
    return _tag(version, "encoder_key")


def refuse_other_kinds(name: str, task: str | None = None) -> None:
    """See that a name is new, or one of this kind.

    :param task: of fine-tuned versions; None: of encoders.
    :raises SettingsError: it is one of encoders, or of another task.
    """
    if (known := newest(name)) and (of := known.tags.get("task")) != task:
        wanted = f"a name of its own for {task or 'encoders'}"
        raise SettingsError(f"model_name: got {name}, which is of {of or 'encoders'} ({known.uri}); wanted {wanted}")


def _tag(version: Version, name: str) -> str:
    """A tag that each version of this project has.

    :raises RegistryError: this one has not.
    """
    if name not in version.tags:
        raise RegistryError(f"{version.uri}: has no tag {name}; wanted a version that this project registered")
    return version.tags[name]


def link_tags(store: Store, newest: Version | None, tags: Mapping[str, str], text: TextSettings) -> dict[str, str]:
    """Tags of a version that name the one before, and what changed since in documents and tokens, as far as that is known.

    :param tags: of the new version. :param text: what a document is.
    """
    if newest is None:
        return {}
    linked = {"previous_version": newest.number}
    old, new = (store.whole(CORPUS, of.get("corpus_key", "")) for of in (newest.tags, tags))
    if old and new:
        change = compare(old, new, text)
        linked["change_documents"] = f"{change.before:,} to {change.after:,}: {change.added:,} came, {change.removed:,} went"
    before, after = newest.tags.get("tokens", ""), tags.get("tokens", "")
    if before.isdecimal() and after.isdecimal():
        linked["change_tokens"] = f"{int(before):,} to {int(after):,} ({int(after) - int(before):+,})"
    return linked


def find_earlier(name: str, corpus_key: str, vocabulary_from: str | None, warm_start: str | None) -> Earlier:
    """Find what a run on a corpus builds on.

    :param vocabulary_from: `previous`, an address such as models:/bert-tiny/3, or None; so is `warm_start`.
    :raises RegistryError: an address names no version, or the registry refuses.
    """

    def find(address: str | None) -> Version | None:
        if address != PREVIOUS:
            return at(address) if address else None
        other = (version for version in newest_first(name) if version.tags.get("corpus_key") != corpus_key)
        return next(filter(_is_sound, other), None)

    return Earlier(newest(name), find(vocabulary_from), find(warm_start))


def _is_sound(version: Version) -> bool:
    """Whether nothing speaks against a version; one that is not decided on yet is taken."""
    return version.tags.get(DECISION) != CHALLENGER and ROLLED_BACK not in version.tags


def trained_on(name: str, corpus_key: str) -> Version | None:
    """The newest version of a name that was trained on a corpus."""
    return next((version for version in newest_first(name) if version.tags.get("corpus_key") == corpus_key), None)


def newest(name: str) -> Version | None:
    """The version with the highest number, whatever its aliases."""
    return next(newest_first(name), None)


def newest_first(name: str) -> Iterator[Version]:
    """The versions of a name, the highest number first."""
    token: str | None = None
    while True:
        with connect() as client:
            page = client.search_model_versions(f"name = '{name}'", _PAGE, ["version_number DESC"], token)
        for found in page:
            yield Version(name, str(found.version), str(found.run_id), dict(found.tags))
        if not (token := page.token):
            return


def params_of(version: Version) -> dict[str, str]:
    """The parameters of the run that made a version; none where that is gone."""
    with connect() as client:
        try:
            run_id = client.get_model_version(version.name, version.number).run_id
            return dict(client.get_run(run_id).data.params) if run_id else {}
        except MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise
            return {}


def _choices(name: str) -> str:
    """What there is of a name."""
    with connect() as client:
        try:
            known = client.get_registered_model(name).aliases
        except MlflowException as error:
            if error.error_code not in _NOT_THERE:
                raise
            return "wanted a name that is registered"
    aliases = ", ".join(f"@{alias}" for alias in sorted(known)) or "no alias"
    last = newest(name)
    return f"{name} has {aliases} and, at most, versions up to {last.number if last else 0}"


def at(address: str) -> Version:
    """The version at an address.

    :raises RegistryError: there is none.
    """
    parts = _PARTS.fullmatch(address)
    if not parts:
        raise RegistryError(f"{address}: not a version; wanted models:/NAME/NUMBER or models:/NAME@ALIAS")
    name, number, alias = parts["name"], parts["number"], parts["alias"]
    with connect() as client:
        try:
            found = client.get_model_version(name, number) if number else client.get_model_version_by_alias(name, alias)
        except MlflowException as error:
            if error.error_code not in _NOT_THERE:
                raise
            raise RegistryError(f"{address}: {error.message}; {_choices(name)}") from error
    return Version(name, str(found.version), str(found.run_id), dict(found.tags))

"""What can go wrong for a reason that the user can mend.

Every error raised on purpose is a `PipelineError` whose message says what was found, what was wanted
and what to do. Callers show that message alone; the traceback belongs in a log file.
"""

from collections.abc import Iterable


def some(names: Iterable[str], most: int) -> str:
    """The first few of many names, and how many more there are, for a message."""
    every = list(names)
    return ", ".join(every[:most]) + (f" and {len(every) - most} more" if len(every) > most else "")


class PipelineError(Exception):
    """Base of all errors that are the user's, the data's or the environment's to mend.

    `told` is set by whoever has shown the message, so that it is shown once.
    """

    told = False


class SettingsError(PipelineError, ValueError):
    """A setting that is unknown, of the wrong type or out of its limits.

    It is a `ValueError` too, so that pydantic reports it as an invalid parameter.
    """


class CorpusError(PipelineError):
    """A corpus that is missing, unreadable, of the wrong shape or without usable text."""


class LabelledDataError(PipelineError):
    """Labelled data that is missing, unreadable or of the wrong shape."""


class DownloadError(CorpusError):
    """No mirror gave the file; the message names each mirror and what it answered."""


class DamagedOutputError(PipelineError):
    """A published output whose files are missing or do not match its manifest."""


class StoreUnavailableError(PipelineError):
    """A store that gives no answer, or none but that it is busy; what is published there is as it was."""


class LeaseLostError(PipelineError):
    """Work that another process has taken over."""


class TrainingError(PipelineError):
    """Training that cannot start or cannot go on."""


class NonFiniteError(TrainingError):
    """A loss or a gradient that is infinite or not a number."""


class TableError(PipelineError):
    """A table of the user's own that cannot be read, or lacks what was asked for."""


class EncodingError(PipelineError):
    """Text that the encoder cannot take."""


class RegistryError(PipelineError):
    """A model registry that refuses."""


class ModelGoneError(RegistryError):
    """A registered model that is not there, or whose files are gone."""


class RegistryUnavailableError(RegistryError):
    """A model registry that cannot be reached for now."""

"""Markdown as both pages render it: tables, pictures, text that is no markup.

In: texts, figures. Out: Markdown. The decision that matters: a picture stands in the text itself, so that a page needs
nothing else to show it.
"""

import base64
import io
from collections.abc import Iterable, Mapping, Sequence

from matplotlib.figure import Figure

from .pictures import DPI

# Prefect's page shows other entities than these two as they are spelt.
_MARKUP = str.maketrans({character: f"\\{character}" for character in "|*_`~\\"} | {"<": "&lt;", "&": "&amp;"})


def plain(text: str) -> str:
    """Text as it is, whatever it holds: words of a corpus may be marks of Markdown or HTML."""
    return text.translate(_MARKUP)


def table(columns: Sequence[str], rows: Iterable[Sequence[str]], right: Sequence[int] = ()) -> str:
    """A table; its cells are Markdown.

    :param right: numbers of the columns that are set to the right, as figures are.
    """
    rule = ("---:" if number in right else "---" for number in range(len(columns)))
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (columns, tuple(rule), *rows))


def bullets(rows: Sequence[tuple[str, str]]) -> str:
    """Names and values, a line each."""
    return "\n".join(f"- {name}: {plain(value)}" for name, value in rows)


def page(title: str, what: str, sections: Mapping[str, str]) -> str:
    """A page: its title, a paragraph, then sections by their headings."""
    return "\n\n".join([f"# {title}", what, *(part for heading, text in sections.items() for part in (f"## {heading}", text))])


def picture(figure: Figure, name: str) -> str:
    """A figure."""
    image = io.BytesIO()
    figure.savefig(image, format="png", dpi=DPI)
    return f"![{name}](data:image/png;base64,{base64.b64encode(image.getvalue()).decode()})"


def duration(seconds: float) -> str:
    """A time in words, with its two largest units."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours:,} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"

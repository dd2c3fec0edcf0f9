"""One way to put a drawing on a notebook's page: as an image in the page's text, with words for who cannot see it.

A saved notebook is not trusted by who opens it: JupyterLab, VS Code and the like then take `<svg>` out of the output
and leave the text of its titles. An `<img>` whose data are in its address stays. Such an image cannot see the page's
colours, and a page's dark theme is not the system's, so every drawing has a ground of its own, and dark ink.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable
from typing import Final

from dlspark.core.display.text import escaped

GROUND: Final = "#fbfbfa"
INK: Final = "#24292f"
FRAME: Final = "#c4c9cf"
PADDING: Final = 10.0
"""Between the ground's edge and what is drawn, in the drawing's units."""


def drawing(width: float, height: float, title: str, parts: Iterable[str]) -> str:
    """An SVG document of `parts`, drawn from (0, 0) to (`width`, `height`), on a ground that is somewhat larger."""
    outer_width, outer_height = width + 2 * PADDING, height + 2 * PADDING
    return "".join(
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" role="img" width="{outer_width:.0f}" height="{outer_height:.0f}" '
            f'viewBox="{-PADDING:.0f} {-PADDING:.0f} {outer_width:.0f} {outer_height:.0f}" '
            f'style="font:11px sans-serif" fill="{INK}">',
            f"<title>{escaped(title)}</title>",
            f'<rect x="{0.5 - PADDING}" y="{0.5 - PADDING}" width="{outer_width - 1:.0f}" '
            f'height="{outer_height - 1:.0f}" rx="5" fill="{GROUND}" stroke="{FRAME}"/>',
            *parts,
            "</svg>",
        )
    )


def words(x: float, y: float, content: str, anchor: str = "middle") -> str:
    """Text in a drawing."""
    return f'<text x="{x:.1f}" y="{y:.0f}" text-anchor="{anchor}">{escaped(content)}</text>'


def image(svg: str, description: str) -> str:
    """A drawing as HTML that pages keep; `description` is what it shows, in words. Of an empty drawing nothing."""
    if not svg:
        return ""
    data = base64.b64encode(svg.encode()).decode()
    return (
        f'<img src="data:image/svg+xml;base64,{data}" alt="{escaped(description)}" '
        'style="max-width:100%;height:auto;margin:0.3em 0">'
    )

"""docs/notebook.ipynb as a page of the site: docs/notebook.md and its pictures. After the notebook was executed anew:

python tests/bench/notebook.py"""

from __future__ import annotations

import base64
import html
import json
import re
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parents[2] / "docs"
FROM = "This page is [notebook.ipynb](notebook.ipynb), executed from top to bottom."


def page(notebook: dict[str, Any]) -> tuple[str, dict[str, bytes]]:
    """The text, and the pictures that it shows by their names in docs/pictures."""
    parts: list[str] = []
    pictures: dict[str, bytes] = {}
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            if len(parts) == 1:
                parts.append(FROM)
            continue
        parts.append(f"```python\n{source}\n```")
        for output in cell["outputs"]:
            if "image/png" in (data := output.get("data", {})):
                name = f"notebook-{len(pictures) + 1}.png"
                pictures[name] = base64.b64decode(data["image/png"])
                parts.append(f"![what the cell above draws](pictures/{name})")
            elif said := _text(output):
                parts.append(f"```text\n{said}\n```")
    return "\n\n".join(parts) + "\n", pictures


def _text(output: dict[str, Any]) -> str:
    """What it says: of a result with a table for people that table, of a progress bar nothing."""
    data = output.get("data", {})
    if output["output_type"] == "display_data":
        return ""
    said = "".join(data.get("text/plain", output.get("text", "")))
    shown = "".join(data.get("text/html", ""))
    if "<pre" in shown:
        said = html.unescape(re.sub(r"<[^>]*>", "", re.sub(r"<p>|<pre", r"\n\n\g<0>", shown)))
    return "\n".join(line.rstrip() for line in said.splitlines()).strip()


def main() -> None:
    text, pictures = page(json.loads((DOCS / "notebook.ipynb").read_text(encoding="utf-8")))
    (DOCS / "notebook.md").write_text(text, encoding="utf-8")
    for name, content in pictures.items():
        (DOCS / "pictures" / name).write_bytes(content)


if __name__ == "__main__":
    main()

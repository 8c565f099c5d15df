"""The files of the page as one HTML file, which asks nobody for anything.

::

    main.js ─ its imports, theirs first ─▶ one script: each module a function ─┐
    page.css, icon.svg ────────────────────────────────────────────────────────┴─▶ page.html

Browsers load no modules from a disk, so they are joined. This knows the JavaScript of our own
modules: `import {…} from "./x.js"` and `import * as x from "./x.js"` at the beginning of a line,
and `export` before a constant, a function or a class.

Invariant: the page's policy allows its own script and style, by their hashes, and nothing else.
"""

from __future__ import annotations

import base64
import hashlib
import html
import re
from importlib import resources
from importlib.resources.abc import Traversable

from kproxy.printable import printable

_STAND_INS = {"source.js": "embedded.js"}
"""Modules that others replace in a file."""
_IMPORT = re.compile(r'^import (?:\* as (\w+)|(\{[^}]*\})) from "\./(\w+)\.js";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async )?(?:const|function|class) (\w+))", re.MULTILINE)


def joined_page(title: str) -> tuple[str, str]:
    """Return the page of a file in two parts; between them belongs what it shows."""
    folder = resources.files("kproxy.look.page") / "files"
    style = (folder / "page.css").read_text("utf-8")
    script = joined_script(folder, "main.js")
    icon = base64.b64encode((folder / "icon.svg").read_bytes()).decode()
    policy = (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)};"
        " img-src data:; base-uri 'none'; form-action 'none'"
    )
    page = (folder / "page.html").read_text("utf-8")
    for part, put in (
        ("<meta ", f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n    <meta '),
        ("/static/icon.svg", f"data:image/svg+xml;base64,{icon}"),
        ('<link rel="stylesheet" href="/static/page.css">', f"<style>{style}</style>"),
        ('    <link rel="stylesheet" href="/static/picture.css">\n', ""),  # it tells no stories
        (
            '<script type="module" src="/static/main.js"></script>',
            f'<script type="module">{script}</script>',
        ),
        ("<title>kproxy</title>", f"<title>{html.escape(printable(title))}</title>"),
    ):
        page = page.replace(part, put, 1)
    before, end, after = page.rpartition("  </body>")
    return before, end + after


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def joined_script(folder: Traversable, main: str) -> str:
    """Return a module, and all that it imports, as one module without imports."""
    found: dict[str, str] = {}

    def add(name: str) -> None:
        name = _STAND_INS.get(name, name)
        if name in found:
            return
        found[name] = ""
        text = (folder / name).read_text("utf-8")
        for each in _IMPORT.finditer(text):
            add(f"{each[3]}.js")
        del found[name]  # behind those that it imports
        found[name] = _function(name, text)

    add(main)
    return "".join(found.values())


def _function(name: str, text: str) -> str:
    """Return a module as a function that is called once and returns what the module exports."""
    exported = ", ".join(each[1] for each in _EXPORT.finditer(text))
    body = _EXPORT.sub("", _IMPORT.sub(_taken, text))
    return f"const {_variable(name)} = (() => {{\n{body}return {{ {exported} }};\n}})();\n"


def _taken(found: re.Match[str]) -> str:
    return f"const {found[1] or found[2]} = {_variable(f'{found[3]}.js')};\n"


def _variable(name: str) -> str:
    return f"${_STAND_INS.get(name, name).removesuffix('.js')}"

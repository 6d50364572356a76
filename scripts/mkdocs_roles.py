"""A hook of MkDocs: reStructuredText roles in docstrings, such as ``:class:`Desktop```, become code with a link.

Docstrings have roles, since editors and Sphinx know them; Markdown renders them as text.
"""

from __future__ import annotations

import logging
import re
from typing import Any

_ROLE = re.compile(r":(?:class|func|meth|mod|data|attr|exc|obj):<code>(~?)([^<]+)</code>")
_LEFT = re.compile(r":(?:class|func|meth|mod|data|attr|exc|obj|ref|doc):(?:<code>|`)")
_log = logging.getLogger("mkdocs.hooks.roles")


def rendered(html: str) -> str:
    """The HTML of a page with every role as code, linked where the API pages have its target."""
    return _ROLE.sub(_code, html)


def _code(role: re.Match[str]) -> str:
    short, target = role[1], role[2].strip().lstrip(".")
    code = f"<code>{target.rpartition('.')[2] if short else target}</code>"
    # mkdocs-autorefs makes an optional reference a link if it knows the target, and leaves its text otherwise
    return f'<autoref optional identifier="{target}">{code}</autoref>' if "." in target else code


def on_page_content(html: str, *, page: Any, **_: Any) -> str:
    """Called by MkDocs with the HTML of each page; a role that is left fails a strict build."""
    found = rendered(html)
    if left := _LEFT.search(found):
        _log.warning("%s: an unrendered role: %s", page.file.src_path, found[left.start() : left.start() + 60])
    return found

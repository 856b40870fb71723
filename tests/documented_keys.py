"""Keys that docs/json.md has for the JSON of a command."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

PAGE = Path(__file__).resolve().parents[1] / "docs" / "json.md"


def documented() -> dict[str, list[str]]:
    """The keys of each command, by its words without ``luwu``."""
    sections = re.split(r"^## luwu ", PAGE.read_text(), flags=re.MULTILINE)[1:]
    return {
        section.partition("\n")[0]: re.findall(r"^\| `(.+?)` \|", section, flags=re.MULTILINE) for section in sections
    }


def check_keys(command: str, facts: dict[str, Any]) -> None:
    """Check that an object has exactly the keys that are documented for a command; of an empty array none is seen."""
    inner: dict[str, set[str]] = {}
    for key in documented()[command]:
        name, _, rest = key.partition(".")
        inner.setdefault(name, set()).update([rest.partition(".")[0]] if rest else [])
    assert set(facts) == {name.removesuffix("[]") for name in inner}
    for name, wanted in inner.items():
        value = facts[name.removesuffix("[]")]
        for each in value if name.endswith("[]") else [value] if wanted else []:
            assert set(each) == wanted, name

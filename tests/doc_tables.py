"""Tables of docs/dashboard.md, rendered from the code. `python -m tests.doc_tables` writes them into the page."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from esper.sanctum.keys import KEYS, Availability, KeyBinding, KeyCategory
from esper.sanctum.own_keys import PRESETS, apply_keys
from esper.sanctum.symbols import MARK_SYMBOLS, OPS, RUN_STATES, SEVERITIES, STAGES, Symbol

PAGE = Path(__file__).parent.parent / "docs" / "dashboard.md"
COMMAND = "python -m tests.doc_tables"
_SCOPES = {
    Availability.ALWAYS: "both",
    Availability.LIVE: "live run",
    Availability.REPLAY: "replay",
    Availability.SEARCH: "growth",
}


def render(page: str) -> str:
    """Return the page with the lines between `<!-- name -->` and `<!-- end -->` replaced by the table of that name."""
    for name, table in {"keys": key_tables(), "presets": preset_table(), "symbols": symbol_tables()}.items():
        before, opening, rest = page.partition(f"<!-- {name} -->\n")
        _, closing, after = rest.partition("<!-- end -->")
        page = "".join((before, opening, table, closing, after))
    return page


def key_tables() -> str:
    """Return a Markdown table of the keys for each category, in the order of the help screen."""
    return "".join(
        f"\n### {category.value}\n\n"
        + _table(
            ("key", "id", "action", "in"),
            (
                (_key_cell(key), f"`{key.id}`", key.description, _SCOPES[key.when])
                for key in KEYS
                if key.category is category
            ),
        )
        for category in KeyCategory
    )


def preset_table() -> str:
    """Return a Markdown table of the keys that differ between the presets."""
    tables = {name: {key.id: key for key in apply_keys(preset)} for name, preset in PRESETS.items()}
    changed = {id_ for preset in PRESETS.values() for id_ in preset}
    rows = (
        (f"`{key.id}`", _key_cell(key), *(_key_cell(table[key.id]) for table in tables.values()))
        for key in KEYS
        if key.id in changed
    )
    return _table(("id", "without a preset", *(f"`{name}`" for name in tables)), rows)


def _key_cell(key: KeyBinding) -> str:
    return " ".join(f"`{label}`" for label in key.label.split())


def symbol_tables() -> str:
    """Return a Markdown table for each group of glyphs, and one for the ops."""
    groups: dict[str, Iterable[Symbol]] = {
        "Stages of a slot": STAGES.values(),
        "Severities": SEVERITIES.values(),
        "Status of a run": [symbol for symbol, _ in RUN_STATES.values()],
        "Marks on the timeline": [symbol for symbol, _ in MARK_SYMBOLS.values()],
    }
    tables = [
        f"\n### {title}\n\n"
        + _table(("symbol", "name", "meaning"), ((f"`{s.glyph}`", s.name, s.meaning) for s in symbols))
        for title, symbols in groups.items()
    ]
    ops = _table(("op", "meaning"), ((f"`{name}`", meaning) for name, meaning in OPS.items()))
    return "".join(tables) + f"\n### Ops of the policy\n\n{ops}\n"


def _table(heading: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [heading, ("---",) * len(heading), *rows]
    escaped = ([cell.replace("|", "\\|") for cell in line] for line in lines)
    return "".join(f"| {' | '.join(cells)} |\n" for cells in escaped)


if __name__ == "__main__":
    PAGE.write_text(render(PAGE.read_text(encoding="utf-8")), encoding="utf-8")

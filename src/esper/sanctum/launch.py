"""Entry point of the dashboard."""

from __future__ import annotations

from collections.abc import Sequence

from esper.process import freeze_loaded_objects
from esper.sanctum.app import SanctumApp
from esper.sanctum.bindings import KEYS, KeyBinding
from esper.sanctum.source import RunSource
from esper.sanctum.symbols import detect_charset


def run_dashboard(
    source: RunSource,
    *,
    theme: str,
    symbols: str,
    bell: bool,
    notify: str | None,
    env: int = 0,
    initial_view: str = "overview",
    moment: str | None = None,
    keys: Sequence[KeyBinding] = KEYS,
) -> int:
    """Run the dashboard until the user quits, and restore the terminal.

    Args:
        source: Source of the run.
        theme: Name of the theme.
        symbols: Character set, one of `symbols.CHARSETS`.
        bell: Ring the bell of the terminal when an anomaly begins.
        notify: Escape sequence for desktop notifications, one of `NOTIFY_PROTOCOLS`; None to send none.
        env: Index of the env that is selected first.
        initial_view: View that is opened first, one of `bindings.VIEW_NAMES`.
        moment: Moment of a recording to go to as soon as it was read; None to stay at the start.
        keys: Table of all keys, with the keys of the user.

    Returns:
        Exit code: 0; 128 + n if signal n abandoned the run; 1 if the dashboard failed.

    Raises:
        ThemeError: The theme is unknown, or its file is invalid.
    """
    charset = detect_charset(symbols)
    app = SanctumApp(
        source,
        theme=theme,
        symbols=charset,
        bell=bell,
        notify=notify,
        env=env,
        initial_view=initial_view,
        moment=moment,
        keys=keys,
    )
    freeze_loaded_objects()
    app.run()
    return 1 if app.return_code is None else app.return_code  # None: the input thread failed

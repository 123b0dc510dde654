"""Actions that compute the effects of decisions of the episode on the screen, in another process."""

from __future__ import annotations

from esper.sanctum.actions.base import BaseApp
from esper.sanctum.view import TOAST_SECONDS, EffectNeeded

BROWSER_MESSAGE = "Effects cannot be computed from the browser. On the server: esper-sanctum replay RUN"
"""Notice in place of a process on the web server."""


class WhatIfActions(BaseApp):
    """Compute effects, and report why that failed."""

    def on_effect_needed(self, message: EffectNeeded) -> None:
        """Start the computation of some effects, or of all effects of the episode."""
        if self.refuse_in_browser(BROWSER_MESSAGE):
            return
        refusal = self.view.what_if.start(message.round, message.env, message.steps)
        if refusal:
            self.notify(refusal, severity="warning")
        self.refresh_view()

    def poll_what_if(self) -> bool:
        """Handle news about effects; return True if a panel may show more."""
        what_if = self.view.what_if
        changed = what_if.poll()
        failures, what_if.failures = what_if.failures, []
        for failure in failures:
            self.notify(f"Effects: {failure}", severity="error", timeout=TOAST_SECONDS)
        return changed

    def work_when_idle(self) -> None:
        """Let idle cores compute references, causes of problems, and effects of seeds. Called at every tick."""
        if not self.is_web:
            self.view.what_if.work_when_idle(self.view.severity_by_env())

    def on_unmount(self) -> None:
        """End the process."""
        self.view.what_if.cancel()

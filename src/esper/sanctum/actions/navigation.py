"""Navigation actions: open the screens, the env that an event is about, and the pages of help."""

from __future__ import annotations

from esper.sanctum.actions.playback import PlaybackActions
from esper.sanctum.keys import APP_CATEGORIES
from esper.sanctum.screens.chart import ChartScreen
from esper.sanctum.screens.env_detail import EnvDetailScreen
from esper.sanctum.screens.help import HelpScreen, LegendScreen
from esper.sanctum.view import GoToMoment
from esper.sanctum.widgets.chart_panel import ChartPanel
from esper.sanctum.widgets.panel import Panel


class NavigationActions(PlaybackActions):
    """Open screens. An event also has a moment, to which the playhead moves."""

    def on_go_to_moment(self, target: GoToMoment) -> None:
        """Show the moment of an event if there is a recording, and the env or screen that it is about."""
        self.go_to_event(target)
        if target.env is not None:
            self.view.select(target.env)
            self.action_open_env()
        elif target.screen is not None:
            self.action_go(target.screen)
        self.refresh_view()

    def action_open_env(self) -> None:
        """Open the selected env."""
        if self.source.state.envs and not isinstance(self.screen, EnvDetailScreen):
            self.push_screen(EnvDetailScreen(self.view))

    def on_chart_panel_enlarged(self, request: ChartPanel.Enlarged) -> None:
        """Show a chart on the whole screen, or return from there."""
        if isinstance(self.screen, ChartScreen):
            self.pop_screen()
        else:
            screen = ChartScreen(self.view, request.panel.enlarged())
            self.view.chart_views[screen] = request.panel.charts
            self.push_screen(screen)

    def action_go(self, name: str) -> None:
        """Open the screen of a number key, and close all dialogs and env screens."""
        self.close_screens()
        self.switch_mode(name)

    def close_screens(self) -> None:
        """Close all dialogs and env screens."""
        while len(self.screen_stack) > 1:
            self.pop_screen()

    def action_legend(self) -> None:
        """Explain the letters of the stages of a slot."""
        self.push_screen(LegendScreen(self.view))

    def action_configuration(self) -> None:
        """Show the configuration of the run."""
        if self.source.state.started is None:
            self.notify("The run has not started yet.", severity="warning")
            return
        from esper.sanctum.screens.configuration import ConfigurationDialog  # slow to import

        self.push_screen(ConfigurationDialog(self.view))

    def action_explain(self) -> None:
        """Open the help at the metric under the cursor, with the keys and the metrics of this screen first."""
        screen = self.screen
        active = {active.binding.id for active in screen.active_bindings.values()}
        keys = [key for key in self.view.keys if key.id in active and key.category not in APP_CATEGORIES]
        panels = [panel for panel in screen.query(Panel) if panel.metrics and panel.display]
        panels.sort(key=lambda panel: (not panel.has_focus, all(node.id != "body" for node in panel.ancestors)))
        metrics = list(dict.fromkeys(name for panel in panels for name in panel.metrics))
        at = next((panel.metric_at_cursor for panel in panels if panel.has_focus), None)
        self.push_screen(HelpScreen(self.view, keys, metrics, at))

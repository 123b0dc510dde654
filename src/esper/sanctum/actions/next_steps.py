"""Actions for a run that has ended: resume, evaluate, harvest, what if, replay."""

from __future__ import annotations

import shlex
from functools import partial
from pathlib import Path
from typing import Literal, TypeAlias

from textual.screen import ModalScreen

from esper.common.configuration.config import Config
from esper.recordings.files.runs import shortest_name
from esper.recordings.state.state import EnvState, RunState
from esper.sanctum.actions.harvest import HarvestActions
from esper.sanctum.actions.navigation import NavigationActions
from esper.sanctum.keys import bindings_of
from esper.sanctum.screens.checkpoint_picker import existing_checkpoints
from esper.sanctum.screens.dialogs import Choice, ChoiceDialog
from esper.sanctum.source import RunSource
from esper.sanctum.symbols import score_text
from esper.sanctum.view import TOAST_SECONDS, EffectNeeded, ResumeRun, ViewState

NextStep: TypeAlias = Literal["resume", "replay", "harvest", "what-if", "evaluate"]


class NextStepsActions(NavigationActions, HarvestActions):
    """Offer the next steps when a live run has ended, and on a key."""

    def __init__(self, source: RunSource) -> None:
        super().__init__(source)
        self._was_running = False
        """True if a live run was seen before its end, which was not yet reported."""

    def begin_run(self, view: ViewState) -> None:
        """Wait for the end of another run."""
        super().begin_run(view)
        self._was_running = False

    def offer_next_steps(self) -> None:
        """Offer the next steps once if a live run has completed all rounds. Called at every tick."""
        source = self.source
        if source.live_state.status == "running":
            self._was_running = source.live and not self.is_web
            return
        has_just_ended = self._was_running and source.live_state.status == "done"
        if has_just_ended and source.playback is None and not isinstance(self.screen, ModalScreen):
            self._was_running = False
            self.action_next_steps()

    def action_next_steps(self) -> None:
        """Ask what to do with the run, and do it."""
        state = self.source.state
        best = best_env_of_round(state)
        if state.started is None or best is None:
            self.notify("No env has stepped yet.", severity="warning")
            return
        has_checkpoint = bool(existing_checkpoints(state.checkpoints, self.source.directory))
        outcome = self.source.outcome
        steps: list[Choice[NextStep]] = []
        if outcome.can_resume:
            key, text = self.view.key_names["run.pause"], "train on from the newest checkpoint, in a background process"
            steps.append(Choice(key, f"resume: {text}", "resume", "run.pause"))
        steps.append(Choice("r", "replay: watch the run from its start", "replay"))
        training = state.search.training.get(best.env) if state.search else None
        if training is None or training.origin != "comparison":  # a network that is only compared decides nothing
            steps.append(Choice("w", f"what if: compute the effects of env {best.env:02d}'s decisions", "what-if"))
        if has_checkpoint:
            if state.search is None:  # a growth has written its network
                steps.append(Choice("h", f"harvest: write the network of env {best.env:02d} as files", "harvest"))
            if state.update is not None:  # else the policy has learned nothing
                steps.append(Choice("e", "evaluate: copy the command that tests the policy", "evaluate"))
        score = f", {state.score_name} {score_text(best.latest.score, state.score_scale)}" if best.latest else ""
        is_past = not outcome.has_ended and self.source.playback is not None
        status = "The past of the run" if is_past else f"Run {outcome.brief}"
        heading = f"{status}. Best env of round {state.round}: {best.env:02d}{score}"
        if state.search is not None and state.search.answer is not None:
            heading = f"{status}. {state.search.answer}"
            if state.search.directory is not None:
                heading += f"\nThe network is in {state.search.directory}"
        keys = [*bindings_of("dismiss", "view.next-steps"), *bindings_of("app.quit", "view.quit")]
        dialog = ChoiceDialog(heading, steps, "stay on this screen", bindings=keys)
        self.push_screen(dialog, partial(self._take, best.env))

    def _take(self, env: int, step: NextStep | None) -> None:
        match step:
            case "resume":
                assert self.source.directory is not None  # it has a checkpoint
                self.post_message(ResumeRun(self.source.directory))
            case "replay":
                self.action_replay_start()
                self.action_play()
            case "harvest":
                self.view.select(env)
                self.action_harvest()
            case "what-if":
                self.view.select(env)
                self.action_open_env()
                self.post_message(EffectNeeded(self.source.state.round, env, None))
            case "evaluate":
                assert self.source.directory is not None  # it has a checkpoint
                run = shortest_name(self.source.directory, Path(Config().telemetry_dir))
                command = shlex.join(["esper-sanctum", "evaluate", "--checkpoint", run])
                self.copy_to_clipboard(command)
                self.notify(f"Command copied, to run in a terminal: {command}", timeout=TOAST_SECONDS)
            case None:
                pass


def best_env_of_round(state: RunState) -> EnvState | None:
    """Return the env with the best last score of the round, or of the previous one if no env has stepped since."""
    measured = [env for env in state.envs if env.latest is not None and env.rolled_back is None]
    return max(measured, key=lambda env: state.score_scale.gain(env.latest.score) if env.latest else 0.0, default=None)

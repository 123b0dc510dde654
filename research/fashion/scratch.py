"""Arms that train networks from scratch: the host for the whole budget, and a search over widths and depths."""

from __future__ import annotations

import optuna
import torch
from research.fashion.cells import MAX_PARAMETERS, Answer, Budget
from research.fashion.training import HOST_PARAMETERS, TASK, Training, count_parameters, load_data

from esper.networks.tasks.builtin.conv_host import build_conv_host
from esper.networks.tasks.builtin.conv_task import CLASSES
from esper.networks.tasks.builtin.fashion_mnist import HOST
from esper.networks.tasks.schedules import cooldown
from esper.studies.growth.optuna_sampler import silence_optuna

MIN_DEPTH, MAX_DEPTH = 2, 5
MIN_WIDTH, MAX_WIDTH = 4, 64


def train_host(budget: Budget, seed: int, steps: int) -> Answer:  # noqa: ARG001 (one training has the whole budget)
    """Train the host for the whole budget. The schedule follows the fraction of the budget that is spent."""
    data = load_data()
    torch.manual_seed(seed)
    training = Training(TASK.model(), data, seed)
    while (fraction := budget.fraction) < 1:
        training.step(cooldown(fraction))
    return answer_of(training, budget, trainings=1, architecture=f"widths {HOST['widths']}")


def search_widths(budget: Budget, seed: int, steps: int) -> Answer:
    """Search widths and depth with Optuna in its defaults: TPE, and successive halving by the score after each step.

    The first trial is the host. The answer is the network with the best validation score of all steps of all trials.
    """
    data = load_data()
    silence_optuna()
    study = optuna.create_study(
        direction="maximize",
        sampler=optuna.samplers.TPESampler(seed=seed),
        pruner=optuna.pruners.SuccessiveHalvingPruner(),
    )
    host = HOST["widths"]
    study.enqueue_trial({"depth": len(host), **{f"width {index}": width for index, width in enumerate(host)}})
    trainings: dict[str, Training] = {}

    def train(trial: optuna.Trial) -> float:
        depth = trial.suggest_int("depth", MIN_DEPTH, MAX_DEPTH)
        widths = [trial.suggest_int(f"width {index}", MIN_WIDTH, MAX_WIDTH, log=True) for index in range(depth)]
        torch.manual_seed(1000 * seed + trial.number)
        network = build_conv_host(**{**HOST, "widths": widths}, classes=CLASSES)
        if count_parameters(network) > MAX_PARAMETERS * HOST_PARAMETERS:
            raise optuna.TrialPruned
        training = Training(network, data, 1000 * seed + trial.number)
        trainings[f"widths {widths}, trial {trial.number}"] = training
        score = 0.0
        for step in range(1, steps + 1):
            score = training.step(cooldown(step / steps))
            trial.report(score, step)
            if budget.fraction == 1:
                study.stop()
                break
            if trial.should_prune():
                raise optuna.TrialPruned
        return score

    study.optimize(train)
    name, best = max(trainings.items(), key=lambda named: named[1].best_score)
    return answer_of(best, budget, trainings=len(trainings), architecture=name)


def answer_of(training: Training, budget: Budget, *, trainings: int, architecture: str) -> Answer:
    """Return the answer of an arm: the best state of a training. Its test is not billed."""
    cpu_minutes = budget.spent / 60
    return Answer(
        cpu_minutes=cpu_minutes,
        test=training.test_best(),
        validation=training.best_score,
        parameters=count_parameters(training.network),
        trainings=trainings,
        architecture=architecture,
    )

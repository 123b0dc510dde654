"""Explanation of each metric: meaning, unit, healthy range, and remedy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from esper.common.configuration.config import AnomalyConfig
from esper.recordings.health.rules import lanes
from esper.recordings.history.measures import listed_measures


class MetricHelp(NamedTuple):
    """Explanation of one metric."""

    meaning: str
    unit: str
    healthy: str
    remedy: str
    """Advice for the user if the metric leaves its healthy range."""


METRIC_HELP: dict[str, MetricHelp] = {
    "score": MetricHelp(
        "validation score after the step: the accuracy, or the task's own score",
        "%",
        "rises within an episode; its final value rises over the rounds",
        "press {keys[view.why]} for the likely cause of a low score. An env stalls if it ends {limits.stalled_gap:.2g} "
        "below the median (in a family: of its structure), without a better score for {limits.stalled_steps} steps",
    ),
    "reward": MetricHelp(
        "reward of the policy for the step; the sum of its components",
        "units of return",
        "near 0 in a step without changes; the episode return rises over the rounds",
        "if a component dominates for many rounds, change its weight: [reward-weights]",
    ),
    "return": MetricHelp(
        "sum of the rewards of the episode so far: the score gained, minus rent and costs of ops",
        "units of the score",
        "rises within an episode, and its final value rises over the rounds",
        "open the env with {keys[envs.env]} to see which rewards lower it",
    ),
    "decision": MetricHelp(
        "choices of a decision and their probabilities; in its explanation, also those with one group of inputs "
        "replaced by its mean",
        "%",
        "a policy that adapts relies on validation, training, seeds and memory, not on progress alone",
        "if only progress matters, the policy follows a fixed plan: compare it with --policy plan",
    ),
    "habits": MetricHelp(
        "what the policy does in all episodes of up to five last rounds, and of as many first ones: plantings that "
        "occur in half of the episodes, or else anything, anywhere; the middle half of their steps",
        "fraction of the episodes; of the decisions for waits",
        "the last rounds differ from the first ones once the policy has learned",
        "if they do not, see how the entropy and the return change over the rounds",
    ),
    "effect": MetricHelp(
        "difference that a decision made: the episode as recorded minus the same episode without the decision, both to "
        "their ends; an effect that is marked with ≈ is approximate",
        "pp of the score; return",
        "most plantings are worth their rent: their effect on the return is positive",
        "press {keys[detail.effects]} in the env detail for the effects of all decisions of an episode",
    ),
    "stage": MetricHelp(
        "stage of the seed in a slot, its blueprint, and its blending weight (alpha): the height of a lane",
        "letter; alpha 0 to 1",
        "seeds advance; the env screen shows which gate refuses a seed, and why",
        "open the env with {keys[envs.env]} to see which check fails",
    ),
    "gradient norm": MetricHelp(
        "mean L2 norm of the gradients of the epoch, before clipping",
        "none",
        "steady; it explodes above {limits.explosion_factor:g} times its median in the episode and above "
        "the clipping norm for {limits.explosion_steps} steps",
        "lower the learning rate or the clipping limit: [training] host-clip, seed-clip",
    ),
    "loss scale": MetricHelp(
        "factor of the loss that keeps float16 gradients from vanishing; an overflow halves it",
        "power of two",
        f"rises in steps and rarely falls, never below {lanes.MIN_LOSS_SCALE:g}; no bar without loss scaling",
        "if it keeps falling, gradients overflow: press {keys[view.why]} for the cause, or train with --amp bf16",
    ),
    "skipped batches": MetricHelp(
        "batches skipped because a gradient overflowed, since the start of the run",
        "% of batches",
        "below 1; skipped batches in {limits.skipped_steps} consecutive steps are an anomaly",
        "check the gradient norms of the env, or train with --amp bf16",
    ),
    "steps to scale growth": MetricHelp(
        "steps without overflow until the loss scale doubles",
        "steps",
        "counts down; an overflow restarts it",
        "if it never reaches 0, the env overflows too often; with --scaler device, another env may be the cause",
    ),
    "scale oscillation": MetricHelp(
        "the loss scale repeatedly grows, overflows at once and falls back",
        "count among the last changes",
        f"below {lanes.MAX_SCALE_OSCILLATIONS}",
        "each one skips a batch: harmless while few batches are skipped",
    ),
    "scale spread": MetricHelp(
        "ratio of the largest to the smallest loss scale on a lane",
        "halvings",
        f"up to a factor of {lanes.MAX_SCALE_RATIO:.0f}",
        "check the env with the smallest scale: only its gradients overflow",
    ),
    "not finite": MetricHelp(
        "values that were NaN or infinite: how often, and the first round and step",
        "count",
        "none",
        "start with the first one: select its env and press {keys[view.why]} for the likely cause",
    ),
    "memory": MetricHelp(
        "GPU: bytes of live tensors, reserved by the allocator, and used by all processes; "
        "CPU: used by the processes of this run, and by the whole machine. The machine leaves out memory that it can "
        "take back at any time, such as the code of libraries, so this run can be above it",
        "GiB",
        "constant from the second round on, below {limits.memory:.0%} of the total",
        "fewer --envs, or more --devices",
    ),
    "peak memory": MetricHelp(
        "maximum memory use since the start of the run",
        "GiB",
        "below {limits.memory:.0%} of the total",
        "fewer --envs, or more --devices",
    ),
    "memory forecast": MetricHelp(
        "round in which a growing memory will be full",
        "round",
        f"none; shown if the run's memory grew in each of the last {lanes.MEMORY_GROWTH_ROUNDS} rounds, by more "
        "than {limits.memory_growth:.0%} in all",
        "check which owner grows; checkpoint, and resume in a new process",
    ),
    "memory owners": MetricHelp(
        "live bytes by owner: parameters, gradients and buffers of hosts and seeds, optimizers, policy, data; "
        "the rest is the Python interpreter, the code of torch and other libraries, activations, and memory that the "
        "allocator keeps",
        "KiB, MiB or GiB",
        "seeds and optimizers grow until each blueprint was planted once in each slot: removed seeds are kept",
        "an owner that grows in every round after that has a memory leak: report it",
    ),
    "busy": MetricHelp(
        "fraction of the step in which the lane worked",
        "%",
        "equal on all lanes, near 100",
        "idle lanes wait for the slowest one: distribute the envs evenly",
    ),
    "launching": MetricHelp(
        "fraction of the step in which a GPU ran only work that the host was still launching",
        "%",
        "low; a dash on a CPU",
        "the GPU waits for Python: run more --envs per GPU, or larger hosts",
    ),
    "graphs": MetricHelp(
        "CUDA graphs that were recorded so far",
        "",
        "rises ever more slowly: an env records a few for each combination of seeds that is new to it",
        "0: the log says why kernels are launched one by one; rising as fast as ever: the policy still explores",
    ),
    "straggler": MetricHelp(
        "a lane that is slower per env than the others",
        "multiple of the median of the other lanes",
        f"below {{limits.straggler_ratio:g}} over {lanes.STRAGGLING_STEPS} steps",
        "another process may use the device: check the utilisation",
    ),
    "utilisation": MetricHelp(
        "fraction of the time in which the device was busy, as reported by its driver",
        "%",
        "high; small hosts leave a GPU mostly idle",
        "run more --envs on it",
    ),
    "temperature": MetricHelp(
        "temperature of the device", "°C", "within the limits of the vendor", "check the cooling"
    ),
    "power": MetricHelp("power draw of the device", "W", "below its limit", "none: it shows the load"),
    "phases": MetricHelp(
        "wall time of a step by phase; parallel lanes count with their mean",
        "%",
        "nearly all in train and validate",
        "report a large fraction of telemetry or fetch",
    ),
    "heads": MetricHelp(
        "gradient norm and entropy of each policy head",
        "norm; fraction of the maximum entropy",
        "norm above {limits.dead_gradient:g}, entropy above {limits.entropy:g}; a dash is a head without a choice",
        "for a collapsed head, raise entropy-coef; a dead head gets no gradient from the loss",
    ),
    "op counts": MetricHelp(
        "number of times that each op was chosen, over all envs, by round",
        "count",
        "every op that the rules of the policy need occurs",
        "none: this policy does not learn",
    ),
    "update": MetricHelp(
        "change of the policy (KL), clipped fraction, explained variance of the critic: of all returns, and of the "
        "differences between envs within each step",
        "nats; fractions 0 to 1",
        "KL below {limits.kl:g}, explained variance within steps above 0",
        "after a spike, lower the learning rate or target-kl",
    ),
    "decisions": MetricHelp(
        "chosen action, and the probability of each legal op",
        "probability 0 to 1",
        "ops with a high reward become probable; no op is certain early in the run",
        "compare with the dependences on the growth screen",
    ),
    "plantings that pay": MetricHelp(
        "seeds without which the net return of their episode would be lower by more than 0.005, with all later "
        "decisions about them, in the episodes in which every planting was left out in turn; 95 % interval over the "
        "episodes",
        "number; % of the plantings",
        "most plantings pay: the fraction rises while the policy learns",
        "if few pay, most seeds cost more than they gain: compare the policy with constant plans by evaluate",
    ),
    "growth timeline": MetricHelp(
        "stages of each slot of each env, one letter per step",
        "steps",
        "seeds are blended in, evaluated, and then kept or removed",
        "in a row with only t, a gate refuses the seed: open the env",
    ),
    "stage fractions": MetricHelp(
        "fraction of the slots of all envs in each stage after each step of this round; a letter marks each stage",
        "% of the slots",
        "most slots end a round fossilized or empty",
        "if few seeds get beyond t, gates refuse them: open an env; if x and z grow, the policy removes what it plants",
    ),
    "planted blueprints": MetricHelp(
        "fraction of each blueprint in the seeds that were planted in a slot, by round of the whole run",
        "% of the plantings of a round",
        "a policy that learns comes to prefer some blueprints",
        "if one blueprint has all plantings early in the run, raise the entropy bonus",
    ),
    "front": MetricHelp(
        "score and parameters of every env (○; ● on the front), and the front (dotted line): the best score for at "
        "most so many parameters",
        "%, and multiples of the host's parameters",
        "growth pays if the front rises to the right",
        "if it is flat, smaller networks are as good: raise the rent",
    ),
    "blueprints": MetricHelp(
        "seeds planted, kept and removed by blueprint, and the effect of n of them on the net return of their episode: "
        "the gain in score, minus rent and costs of ops; mean and 95 % interval over these seeds; ≈ is approximate",
        "units of return; seeds",
        "the net effect of the blueprints that the policy plants is positive",
        "a blueprint with a negative net effect is not worth its rent; idle cores compute more of them",
    ),
    "dependence": MetricHelp(
        "score with all seeds minus without this one, ± standard error",
        "pp (percentage points)",
        "above 0 by more than its standard error before a seed is kept",
        "check whether the policy culls seeds with a negative dependence",
    ),
    "story": MetricHelp(
        "score of the env by step in this episode, with its decisions: g plants a seed, b begins to blend it in, "
        "α changes its alpha, x removes it, F makes it permanent, ↶ is a rollback",
        "% by step",
        "the score rises after a seed is blended in",
        "select a decision with {keys[detail.earlier]}: {keys[detail.without]} computes the episode without it, "
        "{keys[detail.travel]} goes to its step",
    ),
    "curves": MetricHelp(
        "a recorded quantity over the whole run: median, quartiles (the band), minimum and maximum (dotted) over all "
        "envs, with the selected env; or a curve per policy head or device",
        "in the title",
        "scores and returns rise, losses fall",
        "focus a chart with {keys[curves.down]} and move its cursor to the step where the curve changes; "
        "{keys[curves.next-env]} selects another env",
    ),
    "runs": MetricHelp(
        "all runs of the directory: mark of the selection, • for the baseline, state, results, and the median score by "
        "round; the panel of the highlighted run explains the results",
        "%; sparklines of a task have one scale",
        "the score rises by round",
        "select runs with {keys[workspace.select]} to draw their curves on common axes",
    ),
    "overlay": MetricHelp(
        "a recorded quantity of the selected runs: the median over the envs of each run; of runs in a group, the mean "
        "with its 95 % interval (the band, or dotted lines)",
        "in the title; Δ is the difference to the baseline, and intervals at one position hold for all differences "
        "together; a group of one run has none",
        "a difference whose interval leaves 0 out is more than chance, at positions that were chosen before",
        "press {keys[workspace.group]} to group the runs in another way, {keys[workspace.difference]} for differences",
    ),
    "run front": MetricHelp(
        "final score and parameters of the selected runs (with letters) and of the other listed runs of the task (○; ● "
        "on the front), and the front (dotted line): the best score for at most so many parameters",
        "%, and multiples of the host's parameters",
        "growth pays if the front rises to the right",
        "runs below the front cost parameters without a better score",
    ),
    "run details": MetricHelp(
        "results, notes and configuration of the highlighted run; first the settings that differ from the baseline, or "
        "without one from the defaults (in parentheses). "
        + "; ".join(f"{measure.label('score')}: {measure.definition}" for measure in listed_measures().values()),
        "as in the list",
        "few differences of the settings, and results that runs with other random seeds repeat",
        "press {keys[workspace.baseline]} on another run to compare with it",
    ),
    "candidates": MetricHelp(
        "networks that a growth has tried: mean score and its 95 % interval over fresh hosts, else the score of one "
        "trial; letters in table and chart, ◆ your network, ● no candidate is as good with fewer parameters, ○ another "
        "one, · one trial; ▶ an env trains it now; pruned: worse than others at the same step",
        "%; parameters as a multiple of those of your network",
        "a candidate is better than your network on fresh hosts",
        "if none is, give the search more trials, or another policy; a candidate that failed names its reason",
    ),
    "log": MetricHelp(
        "one line for each notable event",
        "local time",
        "few warnings, no errors",
        "{keys[log.go]} on a line of the log screen goes to its moment and env",
    ),
    "anomalies": MetricHelp(
        "values outside the healthy range of a rule, listed with their limits. A breakdown of an env "
        "counts once: an exploding gradient, and the non-finite values and the rollback that it led to",
        "",
        "no active anomalies",
        "press {keys[view.anomalies]} for the list; Enter goes to one. The thresholds are in [anomalies] of the "
        "configuration, and apply to new recordings",
    ),
}
"""Keyed by metric. Texts hold thresholds as `{limits.KEY}` and keys as `{keys[ID]}`; `explain_metric` fills them in."""
WORDS: dict[str, str] = {
    "round": "each env grows a new network; the policy learns",
    "step": "one decision, epoch and validation of each env",
    "env": "one network that trains, with its own decisions",
    "slot": "a named point of the network where a seed grows",
    "seed": "a small module that is trained, kept or removed",
    "head": "one part of a decision: op, slot, blueprint, …",
    "stage": "state of a seed, as a letter; {keys[view.stages]} explains them",
}
"""The words of all screens, each after those that its meaning needs. Each fits into a line of 60 columns."""
RECOVERY_HELP = (
    "An anomaly ends when its value is below {limits.recovery:.0%} of the threshold (a minimum: above it divided by "
    "{limits.recovery:g}). While one is active in an env, other envs with the same rule join it."
)


def explain_metric(name: str, limits: AnomalyConfig, keys: Mapping[str, str]) -> MetricHelp:
    """Return the explanation of a metric, with the thresholds of a run and the names of the keys, keyed by id."""
    return MetricHelp(*(text.format(limits=limits, keys=keys) for text in METRIC_HELP[name]))

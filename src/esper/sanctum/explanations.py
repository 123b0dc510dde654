"""What each metric means, its unit, its healthy range, and what to do outside it."""

from __future__ import annotations

from typing import NamedTuple

from esper.health import rules


class MetricHelp(NamedTuple):
    """Of one metric."""

    what: str
    unit: str
    healthy: str
    remedy: str


METRIC_HELP: dict[str, MetricHelp] = {
    "accuracy": MetricHelp(
        "share of the validation split that the network gets right after the step",
        "per cent",
        "it rises over the episode, and its end rises over the rounds",
        f"an env {rules.STALLED_MIN_GAP:.0%} behind the others for {rules.STALLED_STEPS} steps is stalled: "
        "ask why with W",
    ),
    "reward": MetricHelp(
        "what the policy is paid for the step: its parts sum to it",
        "units of return",
        "near 0 in a quiet step; its sum over the episode rises over the rounds",
        "a part that dominates for many rounds wants another weight: [reward-weights]",
    ),
    "stage": MetricHelp(
        "where the seed of a slot is in its life, which blueprint it is, how much of it is blended in (alpha)",
        "letter; alpha from 0 to 1",
        "seeds move on; a gate that holds one back says why in the env's detail",
        "open the env with Enter and read which check fails",
    ),
    "gradient norm": MetricHelp(
        "mean L2 norm of a gradient over the epoch, before clipping",
        "none",
        f"steady; more than {rules.EXPLODING_FACTOR:.0f} times its median in the episode, and above "
        f"{rules.EXPLODING_MIN_NORM:g}, explodes",
        "lower the learning rate or the clip of its owner: [training] host-clip, seed-clip",
    ),
    "loss scale": MetricHelp(
        "what the loss is multiplied by, so that float16 gradients do not vanish; halved by an overflow",
        "a power of two",
        f"stairs that climb and seldom fall, never below {rules.MIN_LOSS_SCALE:g}; no bar where there is no scaling",
        "a scale that keeps falling means gradients that overflow: ask why with W, or train with --amp bf16",
    ),
    "lost": MetricHelp(
        "share of the batches since the run began that taught nothing, since a gradient overflowed",
        "per cent of batches",
        f"below 1; {rules.MAX_CONSECUTIVE_SKIPS} steps in a row that lose a batch are an anomaly",
        "look at the env's gradient norms, or train with --amp bf16",
    ),
    "growth": MetricHelp(
        "clean steps until the loss scale doubles",
        "steps",
        "it counts down; an overflow starts it again",
        "one that never comes to 0 overflows too often; with --scaler device others may be the cause",
    ),
    "ping-pong": MetricHelp(
        "the loss scale grows, overflows at once and falls back, again and again",
        "times among its last changes",
        f"less than {rules.MAX_SCALE_OSCILLATIONS}",
        "each costs a batch and no more: harmless while the share lost is small",
    ),
    "scale spread": MetricHelp(
        "greatest over least loss scale among the envs of a lane",
        "halvings",
        f"up to a factor of {rules.MAX_SCALE_RATIO:.0f}",
        "look at the env with the least scale: its gradients overflow where the others' do not",
    ),
    "not finite": MetricHelp(
        "quantities that were NaN or infinite, how often, and in which round and step first",
        "count",
        "none",
        "go to the env and ask why with W; the first of them is the one to look at",
    ),
    "memory": MetricHelp(
        "on a GPU what live tensors hold, what the allocator has reserved, and what anyone uses; "
        "on a CPU the process and the machine",
        "GiB",
        f"flat from the second round on, below {rules.MAX_MEMORY_FRACTION:.0%} of the total",
        "fewer --envs, or more --devices",
    ),
    "peak memory": MetricHelp(
        "the most that this run held since it began",
        "GiB",
        f"below {rules.MAX_MEMORY_FRACTION:.0%} of the total",
        "fewer --envs, or more --devices",
    ),
    "memory forecast": MetricHelp(
        f"the round in which the memory is full, if it grew in each of the last {rules.MEMORY_GROWTH_ROUNDS} rounds "
        f"and by {rules.MIN_MEMORY_GROWTH_FRACTION:.0%} of it",
        "round",
        "flat",
        "look which owner grows; checkpoint, and resume in a fresh process",
    ),
    "memory owners": MetricHelp(
        "whose the live bytes are: parameters, gradients and buffers of hosts and seeds, optimizers, policy, data; "
        "the rest is activations and the libraries",
        "MiB",
        "seeds and optimizers rise and fall with what is grown",
        "an owner that only ever rises leaks: tell us",
    ),
    "busy": MetricHelp(
        "share of the step that the lane spent working",
        "per cent",
        "alike on all lanes, and near 100",
        "idle lanes wait for the slowest: deal the envs evenly",
    ),
    "straggler": MetricHelp(
        "a lane that needs longer for an env than the others",
        "times the others' median",
        f"below {rules.STRAGGLER_RATIO} over {rules.STRAGGLING_STEPS} steps",
        "another process may use its device: see the utilisation",
    ),
    "utilisation": MetricHelp(
        "share of the time that the device was busy, as its driver has it",
        "per cent",
        "high; small hosts leave a GPU mostly idle",
        "more --envs on it",
    ),
    "temperature": MetricHelp("of the device", "degrees Celsius", "as its maker says", "see to its cooling"),
    "power": MetricHelp("that the device draws", "watts", "below its limit", "nothing: it is the honest load"),
    "phases": MetricHelp(
        "where the wall time of a step goes; lanes side by side count as their mean",
        "per cent",
        "nearly all of it in train and validate",
        "a large telemetry or fetch share is worth a report",
    ),
    "heads": MetricHelp(
        "gradient norm of each head of the policy, and how open its choice still is (entropy)",
        "norm; share of the greatest entropy",
        f"norms above {rules.DEAD_GRAD_NORM:g}, entropy above {rules.ENTROPY_FLOOR}; a dash had no choice, no fault",
        "a collapsed head wants more entropy-coef, a dead one is cut off from the loss",
    ),
    "update": MetricHelp(
        "how far an update moved the policy (KL), what share it clipped, how well the critic foresaw (EV)",
        "nats; shares of 1",
        f"KL below {rules.KL_SPIKE}, EV rising towards 1",
        "a spike wants a lower learning rate or target-kl",
    ),
    "decisions": MetricHelp(
        "what the policy chose, and how probable each legal op was",
        "share of 1",
        "ops that pay become probable; none is certain early in the run",
        "compare with the contributions on the growth screen",
    ),
    "growth timeline": MetricHelp(
        "each slot of each env through the stages, a letter per step",
        "steps",
        "seeds are blended, tried and kept or removed",
        "rows of t alone are held back by a gate: open the env",
    ),
    "league": MetricHelp(
        "for each blueprint how often it was planted, kept and removed, and what its seeds were worth at last",
        "seeds; points of accuracy, the mean over the seeds",
        "blueprints with a positive mean are planted more as the policy learns",
        "nothing: it is what the policy has to find out",
    ),
    "contribution": MetricHelp(
        "accuracy with every seed, less that without this one, ± its standard error",
        "points of accuracy",
        "above 0 by more than its error before a seed is kept",
        "a seed that hurts should be culled: see whether the policy does",
    ),
    "lifecycle": MetricHelp(
        "what became of the env's seeds in this episode, and which gate holds one back",
        "steps",
        "every refusal is resolved in time",
        "read the check that fails: its value and what it needs",
    ),
    "log": MetricHelp(
        "a line for everything notable that was said",
        "local time",
        "few warnings, no errors",
        "Enter on a line of the log screen goes where it happened",
    ),
    "anomalies": MetricHelp(
        "values that left the range that a rule allows, until they come back",
        "as each says",
        "none",
        "a lists them; Enter goes there",
    ),
}

#!/usr/bin/env bash
# Measures everything that a GPU is wanted for, on one GPU in 12 minutes. Each part has its own time limit, and its
# figures are appended to $OUT/figures.txt at once, so that a cut leaves what was measured.
#
#   benchmarks/gpu_all.sh [--limit SECONDS] [PART ...]   # all parts, or those that are named, in the order given
#   benchmarks/gpu_all.sh --rehearse [PART ...]          # the same with tiny sizes on the CPU
#   benchmarks/gpu_all.sh --pack                         # build the folder of packages, for a machine without network
#   benchmarks/gpu_all.sh --list                         # print the names of the parts
#
# Environment: OUT, the folder of the figures (default: ./gpu-figures); PYTHON, the interpreter (default: that of .venv,
# else python3); PACKAGES, the folder of packages (default: ./gpu-packages), which is used if Python lacks one of them.
# The exit code is 1 if a part failed or ran into its limit, else 0.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1

PARTS=(tests plan ppo wide family recall gpt squeezenet cifar memory cpu serial methods failures)
PACKAGED=(
  msgspec==0.22.0 textual==8.2.8 rich==15.0.0 zstandard==0.25.0 lazy-loader==0.6 nvidia-ml-py psutil==7.2.2
  platformdirs==4.14.5 safetensors==0.8.0 markdown-it-py mdurl mdit-py-plugins linkify-it-py uc-micro-py pygments
  typing-extensions pytest==8.4.2 pytest-asyncio==1.5.0 pytest-xdist==3.8.0 execnet iniconfig pluggy packaging
  hypothesis==6.170.15 sortedcontainers
)
IMPORTED="msgspec, textual, rich, zstandard, lazy_loader, pynvml, psutil, platformdirs, safetensors, scipy, \
pytest, pytest_asyncio, xdist, hypothesis"

packages=${PACKAGES:-$PWD/gpu-packages}
rehearse=0
limit=720
selected=()

pack() {
  rm -rf "$packages"
  uv pip install --quiet --target "$packages" --no-deps --only-binary :all: --no-compile-bytecode \
    --python-version "${PACK_PYTHON:-3.12}" --python-platform x86_64-manylinux_2_28 "${PACKAGED[@]}" || exit 1
  rm -f "$packages"/zstandard/{_cffi.*,backend_cffi.py} # half of the folder, and not used by CPython
  du -sh "$packages"
}

while (($#)); do
  case $1 in
    --limit) limit=${2:?--limit needs a number of seconds}; shift ;;
    --rehearse) rehearse=1 ;;
    --pack) pack; exit ;;
    --list) printf '%s\n' "${PARTS[@]}"; exit ;;
    -*) sed -n '2,12s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
    *)
      if [[ " ${PARTS[*]} " != *" $1 "* ]]; then
        echo "gpu_all.sh: $1 is no part; the parts are ${PARTS[*]}" >&2
        exit 2
      fi
      selected+=("$1")
      ;;
  esac
  shift
done
((${#selected[@]})) || selected=("${PARTS[@]}")

default_python=python3
[[ -x .venv/bin/python ]] && default_python=.venv/bin/python
python=${PYTHON:-$default_python}
out=${OUT:-gpu-figures}
figures=$out/figures.txt
mkdir -p "$out"
export PYTHONPATH=$PWD/src${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1
unset PYTHONDONTWRITEBYTECODE # without stored bytecode, every process compiles torch again
if ! "$python" -c "import $IMPORTED" 2>/dev/null; then
  export PYTHONPATH=$PYTHONPATH:$packages
  "$python" -c "import $IMPORTED" || {
    echo "gpu_all.sh: packages are missing, and $packages lacks them too; build it with benchmarks/gpu_all.sh --pack" >&2
    exit 2
  }
fi

# A GPU machine has its own torch. With an older one than the package requires, kept graphs give wrong results.
oldest=$(sed -n 's/^ *"torch>=\([0-9.]*\)".*/\1/p' pyproject.toml)
"$python" - "$oldest" <<'END' || exit 2
import sys
import torch
if [int(part) for part in torch.__version__.split(".")[:2]] < [int(part) for part in sys.argv[1].split(".")]:
    sys.exit(f"gpu_all.sh: torch {torch.__version__} is too old; install torch {sys.argv[1]} or newer")
END

has_cuda=0
if ((!rehearse)); then
  if ! "$python" -c "import sys, torch; sys.exit(not torch.cuda.is_available())"; then
    echo "gpu_all.sh: torch finds no GPU; benchmarks/gpu_all.sh --rehearse runs on the CPU" >&2
    exit 2
  fi
  has_cuda=1
fi

# Prints to the figures and to the terminal.
say() { printf '%s\n' "$*" | tee -a "$figures"; }

# run SECONDS COMMAND...: runs a command for at most SECONDS, and at most until the limit of the script. A process that
# outlives the command would keep a pipe open, so the output goes to a file first.
failed=()
run() {
  local seconds=$1 left=$((limit - SECONDS)) lines status=0
  shift
  ((left < seconds)) && seconds=$left
  if ((seconds < 5)); then
    say "not measured, because the limit of $limit s is reached: $*"
    failed+=("$part")
    return
  fi
  say "\$ $*"
  lines=$(wc -l <"$figures")
  timeout --kill-after=5 "$seconds" "$@" >>"$figures" 2>&1 || status=$?
  [[ -z $(tail -c 1 "$figures") ]] || echo >>"$figures" # the last line of a command that was cut
  tail -n "+$((lines + 1))" "$figures"
  if ((status)); then
    if ((status == 124 || status == 137)); then
      say "cut at its limit of $seconds s"
    else
      say "failed with exit code $status"
    fi
    failed+=("$part")
  fi
}

# engine LIMIT TRAINING ENVS OPTION...: env-steps/s of some numbers of envs. Training of each number is cut after
# TRAINING seconds, so that its figures are printed before the LIMIT of all of them.
engine() {
  local seconds=$1 training=$2 envs steps=15
  read -ra envs <<<"$3"
  shift 3
  ((rehearse)) && training=4 envs=(1) steps=2
  run "$seconds" "$python" benchmarks/engine.py --no-plain --envs "${envs[@]}" --steps "$steps" --rounds 2 \
    --seconds "$training" "$@"
}

# Two seeds, in tasks with pictures, in the family, and in tasks with tokens.
DIGITS_PLAN=(--policy plan --plan "1:conv_light@early 2:depthwise@mid")
FAMILY_PLAN=(--policy plan --plan "1:conv_light@first 2:depthwise@second")
TOKEN_PLAN=(--policy plan --plan "1:self_attention@first 2:mlp@second")
gpu=cuda:0
((has_cuda)) || gpu=cpu:0
DEVICE=(--devices "$gpu")

# Tests of recordings that fail: last and in a process of their own, because they may leave the GPU in a bad state.
FAILURES=tests/cuda/test_failed_recordings.py

part_tests() {
  run 170 "$python" -m pytest -p no:cacheprovider -q -m cuda --ignore "$FAILURES" tests/cuda tests/test_gpu_benchmark.py
  ((has_cuda)) || say "skipped: the tests marked cuda need CUDA"
}
part_failures() {
  run 60 "$python" -m pytest -p no:cacheprovider -q -m cuda "$FAILURES"
  ((has_cuda)) || say "skipped: the tests marked cuda need CUDA"
}
part_plan() { engine 60 25 64 "${DEVICE[@]}" "${DIGITS_PLAN[@]}"; }
part_ppo() { engine 60 25 64 "${DEVICE[@]}"; }
part_wide() {
  engine 70 30 256 "${DEVICE[@]}" "${DIGITS_PLAN[@]}"
  ((rehearse)) || engine 70 30 256 "${DEVICE[@]}"
}
part_family() { engine 50 20 64 "${DEVICE[@]}" --task digits_family "${FAMILY_PLAN[@]}"; }
part_recall() { engine 50 20 64 "${DEVICE[@]}" --task recall "${TOKEN_PLAN[@]}"; }
part_gpt() { engine 50 20 16 "${DEVICE[@]}" --task examples/small_gpt.py "${TOKEN_PLAN[@]}"; }
part_squeezenet() { engine 50 20 16 "${DEVICE[@]}" --task examples/squeezenet.py "${DIGITS_PLAN[@]}"; }
part_cifar() { engine 50 20 64 "${DEVICE[@]}" --task benchmarks/cifar_shaped.py "${DIGITS_PLAN[@]}"; }
part_memory() {
  # Two numbers of envs: the memory of an env is the slope.
  engine 80 10 "16 64" "${DEVICE[@]}" "${DIGITS_PLAN[@]}"
  ((has_cuda)) || say "skipped: memory per env on a GPU needs CUDA"
}
part_cpu() {
  export CUDA_VISIBLE_DEVICES=
  engine 60 20 64 "${DIGITS_PLAN[@]}"
  ((rehearse)) || engine 60 20 64
  ((rehearse)) || engine 50 20 16 --task examples/small_gpt.py "${TOKEN_PLAN[@]}"
  unset CUDA_VISIBLE_DEVICES
}
part_serial() {
  if ((rehearse)); then
    run 60 "$python" benchmarks/serial.py --envs 2 --turns 1 --steps 3
  else
    run 60 "$python" benchmarks/serial.py --envs 16 64 --turns 3 --steps 15
  fi
}
part_methods() {
  if ((has_cuda)); then
    run 60 "$python" benchmarks/gpu.py --envs 16 --repeats 3
  else
    run 60 "$python" benchmarks/gpu.py --device cpu:0 --envs 1 --repeats 1
    say "skipped: CUDA graphs and streams need CUDA"
  fi
}

say "$(date -u '+%Y-%m-%d %H:%M:%S') UTC, $(git rev-parse --short HEAD 2>/dev/null || echo "no git"), $(nproc) cores, load $(cut -d' ' -f1-3 /proc/loadavg)"
"$python" - <<'END' 2>&1 | tee -a "$figures"
import platform
import torch
from esper.training.lanes.device_stats import driver_version
gpus = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
print(f"Python {platform.python_version()}, torch {torch.__version__}; GPU: {', '.join(gpus) or 'none'}; driver: {driver_version() or 'none'}")
END
for part in "${selected[@]}"; do
  say "== $part, $SECONDS s after the start, load $(cut -d' ' -f1 /proc/loadavg)"
  "part_$part"
done
say "== end, $SECONDS s after the start"
if ((${#failed[@]})); then
  say "failed or cut: ${failed[*]}"
  exit 1
fi

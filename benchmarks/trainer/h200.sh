#!/usr/bin/env bash
# One part of the trainer's benchmarks in one call; figures go to $OUT (a folder; here if unset).
#
#   bash benchmarks/trainer/h200.sh tests                  tests/gpu/test_trainer_gpu.py
#   bash benchmarks/trainer/h200.sh images 128 256         ResNet-50, a process for each batch size
#   bash benchmarks/trainer/h200.sh text [--clip 0]        GPT-2 124M
#   bash benchmarks/trainer/h200.sh overhead               a tiny model
#   bash benchmarks/trainer/h200.sh fashion FOLDER         resnet18-fashion on the idx files there
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
out=${OUT:-.}
python=${PYTHON:-python3}
export PYTHONPATH="$root/src${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1
# One cache for all processes of a call: what is compiled for one loop is there for the other.
export TORCHINDUCTOR_CACHE_DIR=${TORCHINDUCTOR_CACHE_DIR:-/tmp/hotlap-inductor}

part=${1:?which part: tests, images, text, overhead or fashion}
shift
case $part in
  tests)
    "$python" -m pytest "$root/tests/gpu/test_trainer_gpu.py" -q --durations=10 "$@" \
      | tee "$out/trainer-tests.txt"
    ;;
  images)
    for batch in "${@:-256}"; do
      "$python" "$here/images.py" --batch "$batch" --out "$out" | tee -a "$out/images.txt"
    done
    ;;
  text)
    "$python" "$here/text.py" --out "$out" "$@" | tee -a "$out/text.txt"
    ;;
  overhead)
    "$python" "$here/loop_overhead.py" --out "$out" "$@" | tee -a "$out/loop_overhead.txt"
    ;;
  fashion)
    folder=${1:?the folder of the idx files}
    shift
    work=$(mktemp -d)
    "$python" -m hotlap.trainer resnet18-fashion "data.path=$folder" "output.folder=$work" "$@" \
      2>&1 | tee "$out/fashion.txt"
    cp "$work/log.jsonl" "$out/fashion-log.jsonl"
    ;;
  *)
    echo "h200.sh: '$part' is no part; there are tests, images, text, overhead and fashion" >&2
    exit 2
    ;;
esac

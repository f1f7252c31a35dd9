#!/usr/bin/env bash
# Tests of operators and layers with every annotated shape and type checked at every call.
set -euo pipefail
cd "$(dirname "$0")/.."
export OMP_NUM_THREADS=1 PYTHONPATH=tests
pytest -n 0 -p annotations \
  --jaxtyping-packages=neural_similarity.ops,neural_similarity.nn,annotations.checked \
  tests/nn tests/ops "$@"

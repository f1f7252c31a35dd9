"""Time and memory beside other formulations and other operators, each checked first.

Everything is compared with its oracle in float64 before it is timed, at the operands that it is
timed with, and has no time if it is wrong. Times are taken by turns and told as ratios to a
baseline in the same round. `python -m benchmarks` runs all of it; docs/evidence/performance.md
is written from what it saved.

`options` make cases of a command line. `compare` checks, times and weighs whatever is compared in
each: `subjects` (operators), `networks` and `exported`. `oracle` tells what is right, `measure`
how long it takes, and `report`, `targets` and `performance` what was found.
"""

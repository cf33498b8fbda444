#!/usr/bin/env bash
# scripts/slurm/segue.sbatch against commands that play Slurm: what it starts, and when it requeues.
set -euo pipefail
script=$(cd "$(dirname "$0")/../.." && pwd)/scripts/slurm/segue.sbatch
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"

mkdir bin
cat >bin/srun <<'END'
#!/usr/bin/env bash
echo "srun $*" >>calls
echo "${SEGUE_SECRET:-none}" >>secrets
trap 'echo "srun got USR1" >>calls; exit "${ON_USR1:-0}"' USR1
trap 'exit 137' TERM  # as Slurm's: it kills the ranks
touch started
for (( i = 0; i < ${TENTHS:-0}; ++i )); do sleep 0.1; done
exit "${ON_END:-0}"
END
cat >bin/scontrol <<'END'
#!/usr/bin/env bash
echo "scontrol $*" >>calls
END
chmod +x bin/*
unset SEGUE_SECRET SEGUE_SECRET_FILE
export PATH=$folder/bin:$PATH SLURM_JOB_ID=77 SLURM_JOB_NUM_NODES=2 SLURM_GPUS_ON_NODE=4 SEGUE=segue

fail() {
  echo "slurm_test: $1" >&2
  cat calls out >&2
  exit 1
}
# run EXPECTED-CODE SIGNAL: with a signal it is sent once the step runs.
run() {
  local code=0 pid
  rm -f calls started
  bash "$script" config.toml runs/a --seed 3 >out 2>&1 &
  pid=$!
  if [[ -n $2 ]]; then
    for (( i = 0; i < 100; ++i )); do [[ -e started ]] && break; sleep 0.05; done
    kill "-$2" "$pid"
  fi
  wait "$pid" || code=$?
  [[ $code == "$1" ]] || fail "exit code $code instead of $1"
}

bash -n "$script"
run 0 ''
grep -q 'srun --nodes=2 --ntasks-per-node=4 .* segue train config.toml --run runs/a --seed 3' calls || fail "wrong step"
! grep -q scontrol calls || fail "a job that is done was requeued"

# A secret for the ranks: another one for every start, nowhere in the log, and the given one where there is one.
run 0 ''
[[ $(sort -u secrets | wc -l) == 2 ]] || fail "the same secret twice"
! grep -vqE '^[A-Za-z0-9+/=]{44}$' secrets || fail "no secret"
! grep -qFf secrets out calls || fail "the secret is in the log"
rm secrets
SEGUE_SECRET=given run 0 ''
[[ $(cat secrets) == given ]] || fail "a given secret was replaced"
rm secrets
SEGUE_SECRET_FILE=file run 0 ''
[[ $(cat secrets) == none ]] || fail "a given file was overruled"

# Nodes without GPUs: neither Slurm nor the machine knows of any.
printf '#!/bin/sh\nexit 127\n' >bin/nvidia-smi
chmod +x bin/nvidia-smi
SLURM_GPUS_ON_NODE='' run 0 ''
grep -q 'srun --nodes=2 --ntasks-per-node=1 ' calls || fail "a node without a GPU has one rank"
rm secrets

ON_END=9 run 9 ''
! grep -q scontrol calls || fail "a job that failed was requeued"

TENTHS=100 run 0 USR1
grep -q 'srun got USR1' calls || fail "the ranks were not asked to stop"
grep -q 'scontrol requeue 77' calls || fail "a job that saved was not requeued"

TENTHS=100 ON_USR1=6 run 6 USR1
! grep -q scontrol calls || fail "a job that could not save was requeued"

# The other form: what ranks measure.
rm -f calls
bash "$script" bench suite --out rows.jsonl --lengths zipf >out 2>&1 || fail "the suite did not start"
grep -q 'srun .* segue bench suite --out rows.jsonl --lengths zipf$' calls || fail "wrong step of the suite"

code=0
bash "$script" only-one >out 2>&1 || code=$?
[[ $code == 2 ]] || fail "a missing argument was accepted"

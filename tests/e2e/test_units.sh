#!/bin/sh
# The files that others start us with, as far as this machine can tell: systemd's own judgement of
# the units, and the Slurm script with an srun of our own.
#
#   test_units.sh BIN_DIR SOURCE_DIR        exit 77: nothing to judge with
set -eu
bin=$1
source=$2
scratch=$(mktemp -d /tmp/espalier-units-XXXXXX)
trap 'rm -rf "$scratch"' EXIT

units() {
    command -v systemd-analyze >/dev/null || { echo "no systemd-analyze: units not judged"; return; }
    for unit in "$source"/deploy/systemd/*; do
        sed "s|/usr/bin/espalier|$bin/espalier|; s|^Documentation=.*||" "$unit" \
            >"$scratch/$(basename "$unit")"
    done
    said=$(SYSTEMD_UNIT_PATH="$scratch:/lib/systemd/system" systemd-analyze verify --man=no \
        "$scratch/espalier.target" "$scratch/espalier-coordinator.service" \
        "$scratch/espalier-worker@3.service" 2>&1) || { echo "$said"; exit 1; }
    said=$(echo "$said" | grep -F "$scratch" || true)
    [ -z "$said" ] || { echo "$said"; exit 1; }
    echo "units: systemd finds nothing to say"
}

# wait_ready RUN_DIR LOG
wait_ready() {
    tries=0
    until "$bin/espalier" probe --run-dir "$1" >/dev/null 2>&1; do
        tries=$((tries + 1))
        [ "$tries" -lt 1200 ] || { cat "$2"; exit 1; }
        sleep 0.05
    done
}

# start_unit FILE INSTANCE: its ExecStart with the variables of espalier.conf, which systemd expands
# as a shell does. Says the pid.
start_unit() {
    command=$(sed -n 's/^ExecStart=//p' "$source/deploy/systemd/$1" |
        sed "s|/usr/bin/|$bin/|; s|/run/espalier|$scratch/service|; s|%i|$2|")
    MODEL="$source/deploy/model" TP=2 COORDINATOR_FLAGS="--drain-timeout 5" WORKER_FLAGS= \
        sh -c "exec $command" >>"$scratch/service.log" 2>&1 &
    echo $!
}

# What systemd would do with them: start, reload, restart the coordinator under its workers, stop.
services() {
    coordinator=$(start_unit espalier-coordinator.service "")
    worker0=$(start_unit espalier-worker@.service 0)
    worker1=$(start_unit espalier-worker@.service 1)
    wait_ready "$scratch/service" "$scratch/service.log"
    for pid in $(sed -n 's/^ExecReload=.*-HUP \$MAINPID$/'"$coordinator/p" \
        "$source/deploy/systemd/espalier-coordinator.service"); do kill -HUP "$pid"; done
    kill -TERM "$coordinator"
    while kill -0 "$coordinator" 2>/dev/null; do sleep 0.05; done
    grep -q event=nothing_to_read "$scratch/service.log" || { cat "$scratch/service.log"; exit 1; }
    coordinator=$(start_unit espalier-coordinator.service "")
    wait_ready "$scratch/service" "$scratch/service.log"
    grep -q "^pid=$worker1$" "$scratch/service/worker-1.ready" # the same process, weights loaded
    kill -TERM "$coordinator" "$worker0" "$worker1"
    for pid in $coordinator $worker0 $worker1; do
        while kill -0 "$pid" 2>/dev/null; do sleep 0.05; done
    done
    echo "units: start, reload, a restart under lingering workers, stop"
}

# srun as Slurm runs it: a task for each rank, told who it is.
slurm() {
    cat >"$scratch/srun" <<'SRUN'
#!/bin/sh
while [ "${1#-}" != "$1" ]; do shift; done
rank=0
while [ "$rank" -lt "$SLURM_NTASKS" ]; do
    SLURM_PROCID=$rank "$@" &
    rank=$((rank + 1))
done
wait
SRUN
    chmod +x "$scratch/srun"
    export PATH="$bin:$scratch:$PATH" SLURM_NTASKS=2 SLURM_JOB_ID=1 ESPALIER_RUN_DIR="$scratch/run"
    sh "$source/deploy/slurm/espalier.sbatch" "$source/deploy/model" >"$scratch/log" 2>&1 &
    job=$!
    wait_ready "$scratch/run" "$scratch/log"
    espalier generate --run-dir "$scratch/run" --tokens 4 --print-tokens \
        "The sqlite3_open() function" | grep -q "^290 468 291 845"
    kill -TERM "$job"
    wait "$job" || { cat "$scratch/log"; exit 1; }
    ls "$scratch/run" | grep -v '\.log$' && exit 1 # the logs of its programs, and nothing else
    # A rank twice over, from two sources: refused before anything is loaded.
    code=0
    RANK=1 WORLD_SIZE=2 SLURM_PROCID=0 espalier-worker --run-dir "$scratch/run" \
        --model-path "$source/deploy/model" 2>"$scratch/log" || code=$?
    [ "$code" -eq 78 ] && grep -q "RANK is 1 and SLURM_PROCID is 0" "$scratch/log"
    echo "slurm: served, drained, and a contradiction refused"
}

units
services
slurm

#!/bin/sh
# A coordinator in one network namespace, its workers in another, a veth pair between them, CURVE
# over TCP; then the cable is pulled. What a group on two hosts does, on one.
#
#   test_namespaces.sh BIN_DIR SOURCE_DIR       exit 77: this machine allows no namespaces
#
#     [ here: coordinator 10.77.0.1 ] veth ====== veth [ there: workers, clients 10.77.0.2 ]
set -eu
bin=$1
source=$2

if [ "${ESPALIER_UNSHARED:-}" != yes ]; then
    command -v ip >/dev/null && command -v nsenter >/dev/null ||
        { echo "skipped: no ip (iproute2) or nsenter (util-linux)"; exit 77; }
    user=
    [ "$(id -u)" -eq 0 ] || user="--user --map-root-user"
    # shellcheck disable=SC2086  # words on purpose
    unshare $user --net true 2>/dev/null ||
        { echo "skipped: this machine lets uid $(id -u) make no network namespace"; exit 77; }
    # shellcheck disable=SC2086
    exec env ESPALIER_UNSHARED=yes unshare $user --net "$0" "$@"
fi

scratch=$(mktemp -d /tmp/espalier-namespaces-XXXXXX)
pids=
finish() {
    for pid in $pids; do kill -KILL "$pid" 2>/dev/null || true; done
    wait 2>/dev/null || true
    rm -rf "$scratch"
}
trap finish EXIT

fail() {
    echo "FAILED: $*"
    tail -n 30 "$scratch"/*.log
    exit 1
}

# until_true WHAT COMMAND...
until_true() {
    what=$1
    shift
    tries=0
    until "$@" >/dev/null 2>&1; do
        tries=$((tries + 1))
        [ "$tries" -lt 600 ] || fail "never: $what"
        sleep 0.1
    done
}

# ---- two places and a cable
unshare --net sleep 3600 &
there=$!
pids="$pids $there"
until_true "another namespace" sh -c \
    "[ \$(readlink /proc/$there/ns/net) != \$(readlink /proc/self/ns/net) ]"
if ! ip link add cable type veth peer name plug 2>/dev/null; then
    echo "skipped: this kernel makes no veth pair"
    exit 77
fi
ip link set plug netns "$there"
ip link set lo up
ip addr add 10.77.0.1/24 dev cable
ip link set cable up
over_there() { nsenter --net="/proc/$there/ns/net" "$@"; }
over_there ip link set lo up
over_there ip addr add 10.77.0.2/24 dev plug
over_there ip link set plug up
until_true "a reply over the cable" over_there sh -c 'ip -o link show plug | grep -q "state UP"'

# ---- a group across it
model=$source/deploy/model
"$bin/espalier" keygen "$scratch/all" >"$scratch/keygen.log"
mkdir "$scratch/coordinator" "$scratch/worker" "$scratch/client"
cd "$scratch/all"
mv coordinator.secret workers.allowed clients.allowed ../coordinator
mv worker.secret ../worker
mv client.secret ../client
cp coordinator.public ../worker
cp coordinator.public ../client
cd "$scratch"

"$bin/espalier-coordinator" --model-path "$model" --tp 2 --run-dir "$scratch/here" \
    --curve-keys "$scratch/coordinator" --client-endpoint tcp://10.77.0.1:0 \
    --worker-endpoint tcp://10.77.0.1:0 --step-timeout 2000 >coordinator.log 2>&1 &
coordinator=$!
pids="$pids $coordinator"
until_true "a coordinator" test -e "$scratch/here/coordinator.ready"
clients=$(sed -n 's/^endpoint=//p' here/coordinator.ready)
workers=$(sed -n 's/^workers=//p' here/coordinator.ready)

start_worker() {
    over_there "$bin/espalier-worker" --model-path "$model" --rank "$1" --tp 2 \
        --run-dir "$scratch/there" --curve-keys "$scratch/worker" --worker-endpoint "$workers" \
        --linger 60 >>"worker-$1.log" 2>&1 &
    pids="$pids $!"
}
start_worker 0
start_worker 1
until_true "ready" "$bin/espalier" probe --run-dir "$scratch/here"

generate() {
    over_there "$bin/espalier" generate --endpoint "$clients" --curve-keys "$scratch/$1" \
        --tokens 4 --print-tokens "The sqlite3_open() function" 2>&1
}
said=$(generate client) || fail "$said"
echo "$said" | grep -q "^290 468 291 845" || fail "tokens: $said"
echo "served across namespaces: $clients"

# A worker's folder holds no client's key.
said=$(generate worker) && fail "a worker's folder was a client's"
echo "$said" | grep -q "client.secret" || fail "$said"

# ---- the cable is pulled, and put back
ip link set cable down
until_true "a rank out of reach is noticed" sh -c \
    "! '$bin/espalier' probe --run-dir '$scratch/here'"
ip link set cable up
until_true "ready again" "$bin/espalier" probe --run-dir "$scratch/here"
said=$(generate client) || fail "$said"
echo "$said" | grep -q "^290 468 291 845" || fail "tokens: $said"
over_there "$bin/espalier" probe --run-dir "$scratch/there" --rank 0 --check metrics |
    grep -q '^espalier_worker_weight_loads_total{rank="0"} 1$' || fail "weights were read again"
echo "the cable pulled and put back: ready again, weights in place"

kill -TERM "$coordinator"
code=0
wait "$coordinator" || code=$?
[ "$code" -eq 0 ] || fail "exit code $code"

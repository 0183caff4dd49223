#!/usr/bin/env python3
"""The Kubernetes manifests, as far as a machine without a cluster can tell: their form, by a schema;
the numbers that must fit together; and their containers, started, probed, killed and ended as a
kubelet does it, in a network namespace where their ports are free.

    test_manifests.py BIN_DIR SOURCE_DIR        exit 77: nothing to judge with
"""
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request

SKIPPED = 77
PATIENCE_S = 60
STEP_TIMEOUT_S = 60  # the coordinator's default; a rank's probe calls a step stuck after as long
DRAIN_MARGIN_S = 10  # between the drain's deadline and the kubelet's

BIN, SOURCE = sys.argv[1:3]
SECRETS = {  # as the manifests' comments make them
    "espalier-coordinator-keys": ["coordinator.secret", "workers.allowed", "clients.allowed"],
    "espalier-worker-keys": ["coordinator.public", "worker.secret"],
}


def skip(reason):
    print(f"skipped: {reason}")
    sys.exit(SKIPPED)


try:
    import jsonschema
    import yaml
except ImportError as missing:
    skip(f"{missing} (python3-yaml, python3-jsonschema)")


def check(condition, text):
    if not condition:
        sys.exit(f"FAILED: {text}")


# ---- what is written ---------------------------------------------------------------------------

def documents(name):
    with open(f"{SOURCE}/deploy/kubernetes/{name}", encoding="utf-8") as file:
        return list(yaml.safe_load_all(file))


def pods_of(document):
    if document["kind"] == "StatefulSet":
        return [document["spec"]["template"]]
    if document["kind"] == "LeaderWorkerSet":
        templates = document["spec"]["leaderWorkerTemplate"]
        check(templates["size"] == 2, "a leader and one pod of ranks")
        return [templates["leaderTemplate"], templates["workerTemplate"]]
    return []


def flag(container, name):
    """The value of --name=, as the program will read it: the last one; None where it is not given."""
    values = [a.split("=", 1)[1] for a in container["args"] if a.startswith(f"--{name}=")]
    return values[-1] if values else None


def is_rank(container):
    return container["command"] == ["espalier-worker"]


def check_container(container, pod):
    name = container["name"]
    ports = [p["containerPort"] for p in container["ports"]]
    wanted = {"startupProbe": "/startupz", "readinessProbe": "/readyz", "livenessProbe": "/livez"}
    for probe, path in wanted.items():
        get = container[probe]["httpGet"]
        check(get["path"] == path, f"{name}: {probe} asks {get['path']}")
        check(flag(container, "probe-address") == f"0.0.0.0:{get['port']}",
              f"{name}: {probe} asks where nobody answers")
        check(get["port"] in ports, f"{name}: {probe}'s port is not named")
    ready, live = container["readinessProbe"], container["livenessProbe"]
    check(ready["periodSeconds"] * ready["failureThreshold"] <= 1,
          f"{name}: not ready must show within a second")
    # By then the coordinator has given the rank up and has had its process ended.
    stuck_s = STEP_TIMEOUT_S + live["periodSeconds"] * (live["failureThreshold"] - 1)
    check(not is_rank(container) or stuck_s >= STEP_TIMEOUT_S + 5,
          f"{name}: killed before the coordinator gives it up")
    for endpoint in ("client-endpoint", "worker-endpoint"):
        value = flag(container, endpoint)
        check(value is None or is_rank(container) or int(value.rsplit(":", 1)[1]) in ports,
              f"{name}: --{endpoint} is at a port that is not named")
    volumes = {v["name"] for v in pod["volumes"]}
    check({m["name"] for m in container["volumeMounts"]} <= volumes, f"{name}: mounts what is not")


def check_group(pods):
    containers = [c for pod in pods for c in pod["spec"]["containers"]]
    coordinators = [c for c in containers if not is_rank(c)]
    ranks = [c for c in containers if is_rank(c)]
    check([c["command"] for c in coordinators] == [["espalier-coordinator"]], "one coordinator")
    check({flag(c, "tp") for c in containers} == {str(len(ranks))}, "one --tp, and ranks as many")
    check(sorted(flag(c, "rank") for c in ranks) == [str(r) for r in range(len(ranks))],
          "every rank once")
    ports = [p["containerPort"] for c in containers for p in c["ports"]]
    check(len(ports) == len(set(ports)), "a port twice")
    drain_s = int(flag(coordinators[0], "drain-timeout"))
    rejoin_s = int(flag(coordinators[0], "rejoin-timeout")) / 1000
    for pod in pods:
        spec = pod["spec"]
        check(spec["terminationGracePeriodSeconds"] >= drain_s + DRAIN_MARGIN_S,
              "the grace period ends before the drain does")
        check(sum(map(is_rank, spec["containers"])) < 2 or spec.get("shareProcessNamespace"),
              "ranks of one pod find each other's memory only if they share processes")
        for container in spec["containers"]:
            check_container(container, spec)
    for rank in ranks:
        start = rank["startupProbe"]
        check(start["periodSeconds"] * start["failureThreshold"] <= rejoin_s,
              f"{rank['name']}: may start for longer than the coordinator waits for it")
        check("preStop" in rank.get("lifecycle", {}), f"{rank['name']}: ends during the drain")


def check_service(service, pods):
    ports = {p["containerPort"] for pod in pods for c in pod["spec"]["containers"]
             for p in c["ports"] if p["name"] == "clients"}
    check({p["port"] for p in service["spec"]["ports"]} == ports, "a service for no port")
    own = {k: v for k, v in service["spec"]["selector"].items() if "/" not in k}
    check(any(own.items() <= pod["metadata"]["labels"].items() for pod in pods),
          "a service that selects nothing")


def check_words(name):
    with open(f"{SOURCE}/tests/deploy/kubernetes.schema.json", encoding="utf-8") as file:
        schema = json.load(file)
    found = documents(name)
    for document in found:
        kind = document.get("kind", "")
        part = {"Service": "service", "StatefulSet": "statefulSet"}.get(kind, "leaderWorkerSet")
        try:
            jsonschema.validate(document, {**schema, "oneOf": [{"$ref": f"#/definitions/{part}"}]})
        except jsonschema.ValidationError as error:
            sys.exit(f"FAILED: {name}: {kind}: {'/'.join(map(str, error.absolute_path))}: "
                     f"{error.message[:300]}")
    pods = [pod for document in found for pod in pods_of(document)]
    check_group(pods)
    for document in found:
        if document["kind"] == "Service":
            check_service(document, pods)
        if document["kind"] == "StatefulSet":
            labels = document["spec"]["selector"]["matchLabels"].items()
            check(labels <= pods[0]["metadata"]["labels"].items(), "a set that selects others")
    return pods


# ---- what runs ---------------------------------------------------------------------------------

class Pod:
    """A kubelet's part of a pod: mounts, init containers, containers, probes, and the end."""

    def __init__(self, spec, keys, scratch):
        self.spec, self.scratch = spec, tempfile.mkdtemp(dir=scratch)
        self.process = {}
        for volume in spec["volumes"]:
            path = f"{self.scratch}/{volume['name']}"
            os.mkdir(path)
            if "secret" in volume:
                for name in SECRETS[volume["secret"]["secretName"]]:
                    shutil.copyfile(f"{keys}/{name}", f"{path}/{name}")
                    os.chmod(f"{path}/{name}", volume["secret"]["defaultMode"])
            if "persistentVolumeClaim" in volume:
                os.symlink(f"{SOURCE}/deploy/model", f"{path}/model")

    def here(self, container, words):
        """words, with paths of the container as paths of this machine."""
        for mount in container["volumeMounts"]:
            pattern = re.escape(mount["mountPath"]) + r"(?=[/ ]|$)"
            words = [re.sub(pattern, f"{self.scratch}/{mount['name']}", w) for w in words]
        return [w.replace("$(LWS_LEADER_ADDRESS)", "127.0.0.1") for w in words]

    def run(self, container):
        words = container["command"] + container.get("args", [])
        log = open(f"{self.scratch}/{container['name']}.log", "ab")
        return subprocess.Popen(self.here(container, words), stdout=log, stderr=log,
                                env={"PATH": f"{BIN}:/usr/bin:/bin"})

    def initialise(self):
        for container in self.spec.get("initContainers", []):
            check(self.run(container).wait(PATIENCE_S) == 0, f"{container['name']} failed")
        for folder, _, names in os.walk(f"{self.scratch}/keys"):
            for name in names:
                mode = os.stat(f"{folder}/{name}").st_mode & 0o777
                check(not name.endswith(".secret") or mode == 0o600, f"{name}: mode {mode:o}")

    def start(self, container):
        self.process[container["name"]] = self.run(container)

    def end(self):
        """preStop and SIGTERM, for all containers at once; then the grace period."""
        def end_one(container):
            hook = container.get("lifecycle", {}).get("preStop")
            process = self.process[container["name"]]
            if hook:
                subprocess.run(self.here(container, hook["exec"]["command"]), check=False,
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                               timeout=self.spec["terminationGracePeriodSeconds"],
                               env={"PATH": f"{BIN}:/usr/bin:/bin"})
            process.send_signal(signal.SIGTERM)
            process.wait(self.spec["terminationGracePeriodSeconds"])
        threads = [threading.Thread(target=end_one, args=(c,)) for c in self.spec["containers"]]
        for thread in threads:
            thread.start()
        return threads

    def kill(self):
        for process in self.process.values():
            if process.poll() is None:
                process.kill()
                process.wait()

    def logs(self):
        for name in sorted(os.listdir(self.scratch)):
            if name.endswith(".log"):
                with open(f"{self.scratch}/{name}", encoding="utf-8", errors="replace") as file:
                    print(f"-- {name}", *file.readlines()[-15:], sep="\n")


def passes(container, probe):
    get = container[probe]["httpGet"]
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{get['port']}{get['path']}",
                                    timeout=container[probe]["timeoutSeconds"]) as answer:
            return answer.status == 200
    except (urllib.error.URLError, OSError):
        return False


def until(condition, text):
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        check(time.monotonic() < deadline, f"never: {text}")
        time.sleep(0.05)


def serve_and_end(pods):
    containers = [(pod, c) for pod in pods for c in pod.spec["containers"]]
    for pod in pods:
        pod.initialise()
    for pod, container in containers:
        pod.start(container)
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        for _, container in containers:
            until(lambda c=container, p=probe: passes(c, p), f"{container['name']}'s {probe}")

    # A rank's container dies and is started again; the others stay.
    coordinator = next(c for _, c in containers if not is_rank(c))
    pod, rank = next((p, c) for p, c in containers if is_rank(c) and flag(c, "rank") == "1")
    pod.process[rank["name"]].kill()
    pod.process[rank["name"]].wait()
    until(lambda: not passes(coordinator, "readinessProbe"), "a dead rank in readiness")
    check(passes(coordinator, "livenessProbe"), "the coordinator is to outlive its ranks")
    pod.start(rank)
    until(lambda: passes(coordinator, "readinessProbe"), "ready again")


def stream(keys, port):
    words = ["espalier", "generate", "--endpoint", f"tcp://127.0.0.1:{port}", "--curve-keys", keys,
             "--tokens", "400", "--ignore-eos", "--print-tokens", "The sqlite3_open() function"]
    return subprocess.Popen(words, stdout=subprocess.PIPE, bufsize=0, env={"PATH": BIN})


def check_running(name, manifest):
    scratch = tempfile.mkdtemp(prefix="espalier-manifests-", dir="/tmp")
    keys = f"{scratch}/keys"
    subprocess.run([f"{BIN}/espalier", "keygen", keys], check=True, stdout=subprocess.DEVNULL)
    pods = [Pod(pod["spec"], keys, scratch) for pod in manifest]
    try:
        serve_and_end(pods)
        # The end comes in the midst of a stream, which is to be finished.
        port = next(p["containerPort"] for c in pods[0].spec["containers"] for p in c["ports"]
                    if p["name"] == "clients")
        client = stream(keys, port)
        head = client.stdout.read(16)
        threads = [thread for pod in pods for thread in pod.end()]
        tail = client.communicate(timeout=PATIENCE_S)[0]
        for thread in threads:
            thread.join(PATIENCE_S)
        codes = {n: p.poll() for pod in pods for n, p in pod.process.items()}
        check(client.returncode == 0, f"the stream was cut: {client.returncode}")
        check(len((head + tail).split()) == 400, "the stream has not all its tokens")
        check(set(codes.values()) == {0}, f"{name}: exit codes {codes}")
    except (SystemExit, subprocess.SubprocessError):
        for pod in pods:
            pod.logs()
        raise
    finally:
        for pod in pods:
            pod.kill()
        shutil.rmtree(scratch)


def isolate():
    """Ports of our own: this program again, in a network namespace with nothing but loopback."""
    if os.environ.get("ESPALIER_UNSHARED") == "yes":
        subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
        return True
    user = [] if os.getuid() == 0 else ["--user", "--map-root-user"]
    unshare = ["unshare", *user, "--net"]
    if not shutil.which("ip") or not shutil.which("unshare") or \
            subprocess.run([*unshare, "true"], stderr=subprocess.DEVNULL, check=False).returncode:
        return False
    os.execvpe("unshare", [*unshare, sys.executable, *sys.argv],
               {**os.environ, "ESPALIER_UNSHARED": "yes"})


def main():
    manifests = {name: check_words(name) for name in ("statefulset.yaml", "leaderworkerset.yaml")}
    if not isolate():
        skip("forms and numbers are right; nothing was started: no network namespace here")
    for name, pods in manifests.items():
        check_running(name, pods)
        print(f"{name}: form, numbers, start, probes, a dead rank, drain")


main()

#!/usr/bin/env python3
"""The Dockerfile, as far as a machine without Docker can tell: what it copies is there, what it
installs exists and is all that the programs need, what it promises is in what it installs.

    test_image.py BUILD_DIR SOURCE_DIR

follow_dockerfile.py goes further where there are Debian roots to follow it in.
"""
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile

import dockerfile

BUILD, SOURCE = sys.argv[1:3]
PROGRAMS = ("espalier", "espalier-coordinator", "espalier-worker")
# Debian's own, and what instrumented builds add.
ALWAYS_THERE = {"libc6", "libgcc-s1", "libasan8", "libubsan1", "libtsan2"}


def check(condition, text):
    if not condition:
        sys.exit(f"FAILED: {text}")


def output(*words):
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout


def package_list(name):
    script = f". {SOURCE}/deploy/dependencies.sh && echo ${name}"
    return set(output("bash", "-c", script).split())


def check_stages(stages):
    check(list(stages) == ["build", ""], f"stages {list(stages)}")
    for name, instructions in stages.items():
        check(instructions[0][1] == "debian:12-slim", f"{name}: from {instructions[0][1]}")
        for word, rest in instructions:
            if word == "COPY":
                stage, sources, _ = dockerfile.copy_of(rest)
                check(stage in (None, "build"), f"COPY from {stage}")
                for source in sources if stage is None else []:
                    check(os.path.exists(f"{SOURCE}/{source}"), f"COPY {source}: is not there")
            if word == "RUN":
                fetched = re.search(r"curl|wget|pip|git |https?:|apt-get|apt ", rest)
                check(not fetched, f"RUN fetches what is no package of our lists: {rest}")
    last = stages[""]
    users = [rest for word, rest in last if word == "USER"]
    check(users and re.fullmatch(r"[1-9][0-9]*:[1-9][0-9]*", users[-1]),
          "USER is to be a number, which Kubernetes can tell from root's")
    check(any(f"--uid {users[-1].split(':')[0]} " in rest for _, rest in last), "a user of no name")


def libraries():
    """Those that our programs themselves are linked with, as paths."""
    found = set()
    for program in PROGRAMS:
        path = f"{BUILD}/bin/{program}"
        names = re.findall(r"NEEDED.*\[(.*)\]", output("readelf", "-d", path))
        places = dict(re.findall(r"(\S+) => (\S+)", output("ldd", path)))
        found |= {places[name] for name in names if name in places}
    return found


def packages_of(paths):
    """/lib is /usr/lib, and dpkg knows a file by one of its names."""
    bare = {path.removeprefix("/usr") for path in paths}
    owners = subprocess.run(["dpkg-query", "-S", *bare, *(f"/usr{path}" for path in bare)],
                            capture_output=True, text=True, check=False).stdout
    return {line.split(":")[0] for line in owners.splitlines()}


def check_packages():
    """All known to Debian; those of the running image are those the programs are linked with."""
    known = subprocess.run(["apt-cache", "show", "--no-all-versions",
                            *package_list("BUILD_PACKAGES"), *package_list("RUNTIME_PACKAGES")],
                           capture_output=True, text=True, check=False)
    if "Package:" in known.stdout:
        check(known.returncode == 0, f"packages: {known.stderr.strip()}")
    else:
        print("apt knows no packages here: that those of the lists exist was not checked")
    needed = packages_of(libraries())
    runtime = package_list("RUNTIME_PACKAGES")
    check(needed - ALWAYS_THERE == runtime,
          f"RUNTIME_PACKAGES: found {sorted(runtime)}, needed {sorted(needed - ALWAYS_THERE)}")


def check_shipped(target):
    """An installed program finds what came with it, and not what it was built beside."""
    program, share = f"{target}/usr/bin/espalier", f"{target}/usr/share/espalier"
    plan = json.loads(output(program, "plan", "--tp", "2", "--json"))
    check(os.path.realpath(plan["model"]) == f"{share}/model", f"it plans {plan['model']}")
    check(plan["line_bytes"]["draft_weights"] > 0, "it plans without the model's drafter")
    check(os.path.exists(f"{share}/verify.tokens"), f"no {share}/verify.tokens")
    with open(f"{share}/verify.thresholds", "a", encoding="utf-8") as file:
        file.write("no_limit 1\n")
    refusal = subprocess.run([program, "verify"], capture_output=True, text=True, check=False)
    check("/share/espalier/verify.thresholds" in refusal.stderr, f"verify says {refusal.stderr}")


def check_installed():
    """What `cmake --install` lays out, as the image and the units expect it."""
    target = tempfile.mkdtemp(prefix="espalier-image-", dir="/tmp")
    try:
        subprocess.run(["cmake", "--install", BUILD, "--prefix", "/usr"], check=True,
                       stdout=subprocess.DEVNULL, env={**os.environ, "DESTDIR": target})
        for program in PROGRAMS:
            check(os.access(f"{target}/usr/bin/{program}", os.X_OK), f"no {program}")
        promised = []
        units = os.listdir(f"{SOURCE}/deploy/systemd")
        promised += [f"/usr/lib/systemd/system/{unit}" for unit in units]
        for unit in units:
            with open(f"{SOURCE}/deploy/systemd/{unit}", encoding="utf-8") as file:
                text = file.read()
            promised += re.findall(r"^Documentation=file:(\S+)", text, re.MULTILINE)
            promised += re.findall(r"^ExecStart=(\S+)", text, re.MULTILINE)
        for path in promised:
            check(os.path.exists(target + path), f"{path} is promised and not installed")
        check_shipped(target)
    finally:
        shutil.rmtree(target)


def main():
    stages = dockerfile.stages(dockerfile.read(f"{SOURCE}/deploy/Dockerfile"))
    check_stages(stages)
    check_packages()
    check_installed()
    print("image: what it copies, installs and promises is there")


main()

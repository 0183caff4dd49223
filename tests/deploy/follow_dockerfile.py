#!/usr/bin/env python3
"""Follow deploy/Dockerfile without Docker, as root: each stage in a Debian 12 root of its own, made
by `debootstrap --variant=minbase bookworm` and given up to it.

    follow_dockerfile.py BUILD_ROOT RUN_ROOT [COMMAND...]

Then COMMAND is run in RUN_ROOT as the image would run it: its user, its environment, no terminal.
Not followed: layers, the build cache, `docker run` itself.
"""
import os
import shutil
import subprocess
import sys

import dockerfile

SOURCE = os.path.realpath(f"{os.path.dirname(__file__)}/../..")


def chroot(root, words, user="0:0", variables=()):
    environment = ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", *variables]
    return subprocess.run(["chroot", f"--userspec={user}", root, "/usr/bin/env", "-i",
                           *environment, *words], check=False).returncode


def copy(source, target, many):
    """As COPY: a folder's content, a file into a folder that ends with a stroke."""
    if os.path.isdir(source):
        shutil.copytree(source, target, symlinks=True, dirs_exist_ok=True)
    else:
        target = f"{target}/{os.path.basename(source)}" if many or target.endswith("/") else target
        os.makedirs(os.path.dirname(target), exist_ok=True)
        shutil.copy2(source, target)


def follow(root, roots, instructions):
    user, variables = "0:0", []
    for word, rest in instructions:
        print(f"== {word} {rest}", flush=True)
        if word == "COPY":
            stage, sources, target = dockerfile.copy_of(rest)
            for source in sources:
                base = roots[stage] if stage else SOURCE
                copy(f"{base}/{source.lstrip('/')}", root + target, len(sources) > 1)
        elif word == "RUN" and chroot(root, ["/bin/sh", "-c", rest]) != 0:
            sys.exit("failed")
        elif word == "ENV":
            variables.append(rest)
        elif word == "USER":
            user = rest
    return user, variables


def main():
    stages = dockerfile.stages(dockerfile.read(f"{SOURCE}/deploy/Dockerfile"))
    roots = dict(zip(stages, sys.argv[1:3]))
    for name, instructions in stages.items():
        user, variables = follow(roots[name], roots, instructions)
    command = sys.argv[3:]
    if command:
        sys.exit(chroot(roots[""], command, user, variables))


main()

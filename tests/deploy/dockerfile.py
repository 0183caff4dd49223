"""A Dockerfile as its instructions: of it what ours uses, and nothing else."""
import re

KNOWN = {"FROM", "COPY", "RUN", "ENV", "USER"}


def read(path):
    """[(instruction, rest)] in order. ValueError: an instruction that ours does not use."""
    with open(path, encoding="utf-8") as file:
        text = re.sub(r"(?m)^#.*\n", "", file.read())
    found = []
    for line in re.sub(r"\\\n\s*", "", text).splitlines():
        if not line.strip():
            continue
        word, _, rest = line.partition(" ")
        if word not in KNOWN or not rest:
            raise ValueError(f"found \"{line}\", accepted: {', '.join(sorted(KNOWN))}")
        found.append((word, rest.strip()))
    return found


def stages(instructions):
    """The instructions of each stage by name; the last one is \"\"."""
    found, name = {}, None
    for word, rest in instructions:
        if word == "FROM":
            image, _, name = rest.partition(" AS ")
            found[name] = [("FROM", image)]
        else:
            found[name].append((word, rest))
    return found


def copy_of(rest):
    """(stage or None, sources, target)."""
    words = rest.split()
    stage = None
    if words[0].startswith("--from="):
        stage = words.pop(0).split("=", 1)[1]
    return stage, words[:-1], words[-1]

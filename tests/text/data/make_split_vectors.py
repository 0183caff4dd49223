"""Writes split_vectors.json: random texts and their pieces, by the `regex` module on the published
pattern (https://huggingface.co/moonshotai, tokenization_kimi.py), which is not the engine under test.

    pip install regex && python3 make_split_vectors.py > split_vectors.json
"""

import json
import random

import regex

PATTERN = "|".join([
    r"[\p{Han}]+",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*"
    r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+"
    r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"\p{N}{1,3}",
    r" ?[^\s\p{L}\p{N}]+[\r\n]*",
    r"\s*[\r\n]+",
    r"\s+(?!\S)",
    r"\s+",
])
SPLIT = regex.compile(PATTERN, regex.V1)

# Each string is a pool to draw from; together they meet every class the pattern names.
POOLS = [
    "abcxyz", "ABCXYZ", "aB", "0123456789", " ", " \t", "\r\n", "\n", "\u00a0\u2003\u3000\u0085\u2028",
    "'", "'s'T'reVE'm'LL'd", "\u017f'", ".,;:!?-_", "(){}[]<>|", "\u00e9\u00df\u0130\u01c5\u01c8",
    "\u0301\u0308\u0483\u20dd", "\u02b0\u02b1\u2071", "\u0391\u03b1\u0416\u0436", "\u05d0\u05d1\u0627\u0628",
    "\u0905\u093e\u0e01\u0e34", "\u4e16\u754c\u4f60\u597d", "\u3005\u3007\u303b", "\u3001\u3002\u300c\u30fb\u3190",
    "\u3042\u30a2\u30fc", "\uac00\ub098", "\u0661\u0969\u2167\u00bd\u00b2", "\U0001f600\u200d\ufe0f\u2764",
    "\U00020000\U0002a6df", "\U00016ff0\U00016ff1", "\u180e\u200b\u2060\ufeff", "\ue000\u0378\x00\x7f",
]


def text(rng):
    out = []
    for _ in range(rng.randint(1, 12)):
        pool = rng.choice(POOLS)
        out += rng.choices(pool, k=rng.randint(1, 5))
    return "".join(out)


def main():
    rng = random.Random(20)
    vectors = [{"text": t, "pieces": SPLIT.findall(t)} for t in (text(rng) for _ in range(250))]
    assert all("".join(v["pieces"]) == v["text"] for v in vectors)
    print("[\n" + ",\n".join(json.dumps(v) for v in vectors) + "\n]")


if __name__ == "__main__":
    main()

"""ppl.py CKPT.pt MODEL_DIR : perplexity on tests/golden/data/heldout_tokens.json (and held-out chat) of the float32 masters,
of the fake-quantised experts and of the exported files, torch forward pass, windows of 1024 tokens."""
import json, math, os, sys
os.environ.setdefault("OPENBLAS_CORETYPE", "SkylakeX")
import numpy as np
import torch
import exported
from model import *
from model import _c

torch.set_grad_enabled(False)
H = os.path.dirname(os.path.abspath(__file__))
ref = os.path.join(H, "..", "..", "tests", "golden", "data")
ids = json.load(open(os.path.join(ref, "heldout_tokens.json")))
nb = len(open(os.path.join(ref, "heldout.txt")).read().encode())


def ppl(m, ids):
    s, n = 0.0, 0
    for a in range(0, len(ids) - 1, 1024):
        x = torch.tensor(ids[a:a + 1025])
        z = m.hidden(x[None, :-1]) @ m.p["head"].t()
        s += F.cross_entropy(z, x[1:], reduction="sum").item()
        n += len(x) - 1
    return s / n


ck = torch.load(sys.argv[1])
lay, _ = layout(shapes(ck["cfg"]))
v = views(ck["flat"], lay)
q = dict(v)
for k in lay:
    if lay[k][3] == "expert":
        q[k] = torch.empty_like(v[k])
        _c.fakeq(P(v[k]), P(q[k]), L(v[k].numel()))
print("step", ck["step"], "tokens", ck["tokens"], "seconds", round(ck["secs"]), "qat", ck["qat"])
for name, m in (("float32 masters", Model(v, ck["bias"])), ("INT4 experts, float32 rest", Model(q, ck["bias"])), ("exported files", exported.load(sys.argv[2]))):
    l = ppl(m, ids)
    print(f"{name}: loss {l:.4f} perplexity {math.exp(l):.3f} bits/byte {l / math.log(2) * len(ids) / nb:.4f}")

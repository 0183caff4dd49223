"""Largest logit difference between the torch trainer's forward pass and tests/golden/ref.py on held-out tokens."""
import json, os, sys
os.environ.setdefault("OPENBLAS_CORETYPE", "SkylakeX")
H = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(H, "..", "..", "tests", "golden"))
import numpy as np, torch
import exported, ref
ids = json.load(open(os.path.join(H, "..", "..", "tests", "golden", "data", "heldout_tokens.json")))[:1024]
with torch.no_grad():
    m = exported.load(os.path.join(H, "..", "model"))
    a = (m.hidden(torch.tensor([ids])) @ m.p["head"].t()).numpy()
b = ref.Ref().forward(ids)
d = ref.Ref(dtype=np.float64).forward(ids)
print("positions", len(ids), "max |torch32 - numpy32|", float(np.abs(a - b).max()), "max |numpy32 - numpy64|", float(np.abs(b - d).max()),
      "argmax equal", int((a.argmax(1) == d.argmax(1)).sum()), "max |logit|", float(np.abs(d).max()))

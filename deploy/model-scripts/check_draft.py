"""torch decoder and torch drafter against the numpy references"""
import os, sys
os.environ.setdefault("OPENBLAS_CORETYPE", "SkylakeX")
H = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(H, "..", "..", "tests", "golden"))
import json
import numpy as np, torch
import draft, exported, gen, ref, draft_ref
from model import layout, views
torch.set_grad_enabled(False)
m, r = exported.load(os.path.join(H, "..", "model")), ref.Ref()
ids = json.load(open(os.path.join(H, "..", "..", "tests", "golden", "data", "heldout_tokens.json")))[100:160]
d = gen.Decoder(m); d.new(1, 80)
z1 = d.forward(torch.tensor([ids[:50]])); z2 = d.forward(torch.tensor([[ids[50]]]))
zz, taps = r.forward(ids, taps=exported.TAPS)
print("decoder prefill / step difference", float(np.abs(z1[0].numpy() - zz[49]).max()), float(np.abs(z2[0].numpy() - zz[50]).max()))
lay, _ = layout(draft.shapes())
w = draft_ref.Draft(r)
ck = torch.load(sys.argv[1])
p = {k: v.bfloat16().float() for k, v in views(ck["flat"], lay).items()}
t = torch.from_numpy(np.concatenate(taps, -1))
c = draft.ctx_features(p, t)[None]
y = draft.block(p, m.p["embed"], c, torch.tensor([[ids[40], ids[20]]]), torch.tensor([[40, 20]]))
zt = (y[0, :, 1:] @ m.p["head"].t()).numpy()
ctx = w.context(taps, np.arange(len(ids)))
for i, s in enumerate((40, 20)):
    print("drafter logits difference at", s, float(np.abs(zt[i] - w.logits(ctx, s, ids[s])).max()))

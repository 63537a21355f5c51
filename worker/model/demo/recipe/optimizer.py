"""Muon for the matrices inside, AdamW for the rest."""
import torch


@torch.compile(dynamic=False)
def orthogonal(g):
    """The nearest orthogonal matrices to a stack of them, by five Newton-Schulz steps (Jordan et al. 2024, Muon)."""
    x = g.bfloat16()
    tall = x.shape[-2] > x.shape[-1]
    if tall:
        x = x.mT
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(5):
        a = x @ x.mT
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * (a @ a)) @ x
    return (x.mT if tall else x).float()


class Muon(torch.optim.Optimizer):
    """Momentum whose direction is made orthogonal, scaled so that its entries are as large as AdamW's (Liu et al. 2025). Matrices of one shape go in one stack."""

    def __init__(self, params, lr, momentum=0.95, weight_decay=0.05):
        super().__init__(params, dict(lr=lr, momentum=momentum, weight_decay=weight_decay))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            shapes = {}
            for p in group["params"]:
                shapes.setdefault(p.shape, []).append(p)
            for shape, ps in shapes.items():
                state = self.state[ps[0]]
                g = torch.stack([p.grad for p in ps])
                m = state.setdefault("momentum", torch.zeros_like(g))
                m.lerp_(g, 1 - group["momentum"])
                update = orthogonal(g.lerp(m, group["momentum"]))
                scale = 0.2 * max(shape) ** 0.5
                torch._foreach_mul_(ps, 1 - group["lr"] * group["weight_decay"])
                torch._foreach_add_(ps, list(update.unbind(0)), alpha=-group["lr"] * scale)


def optimizers(model, kind, lr):
    inner = [p for n, p in model.named_parameters() if p.dim() == 2 and "embed" not in n]
    table = [p for n, p in model.named_parameters() if p.dim() == 2 and "embed" in n]
    one = [p for p in model.parameters() if p.dim() != 2]
    adam = [{"params": table, "weight_decay": 0.05}, {"params": one, "weight_decay": 0.0}]
    if kind == "adamw":
        adam.append({"params": inner, "weight_decay": 0.05})
    out = [torch.optim.AdamW(adam, lr=lr, betas=(0.9, 0.98), fused=True)]
    return out + ([Muon(inner, lr)] if kind == "muon" else [])

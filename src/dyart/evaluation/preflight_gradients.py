"""Gradients in the input: whether the losses that attacks climb have any."""

import torch
import torch.nn.functional as F
from torch import Tensor

from dyart.boundary.margins import logit_margin
from dyart.boundary.messages import first_line
from dyart.boundary.model import Model, logits_of
from dyart.boundary.norms import Norm
from dyart.evaluation.findings import Finding

# L2 and L1 steps divide by the gradient's length plus 1e-12 (as AutoAttack does): below this they hardly move. L-inf
# steps need a sign, which is lost when the gradient itself underflows.
LENGTH = 1e-12
# Share of the correct examples whose cross-entropy may be lost so. Measured on a natural network with its logits scaled
# up, APGD-CE against what it leaves unscaled: L-inf 17 % lost, +1 point; 52 %, +5; L2 36 %, 0; 66 %, +10. (A loss of
# exactly zero is harmless by itself: 54 % of the examples, and the same accuracy within 0.3 points.)
SATURATED = 0.5
# Share of the examples whose gradient may be zero before that is said: a dead ReLU is no masking.
FEW = 0.1


def gradient_findings(model: Model, inputs: Tensor, labels: Tensor, norm: Norm) -> list[Finding]:
    """Say where the gradients of margin and cross-entropy in the input are missing, NaN or zero."""
    x = inputs.clone().requires_grad_()
    try:
        logits = logits_of(model(x))
    except Exception as error:
        words = f"the model works without gradients but fails with them: {first_line(error)}"
        return [Finding("gradients", words, True)]
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    margins = logit_margin(logits, labels)
    if not margins.requires_grad:
        return [_nothing("the outputs carry no gradient (no_grad, detach or numpy inside the model)")]
    try:
        (of_margin,) = torch.autograd.grad(margins.sum(), x, retain_graph=True, allow_unused=True)
        (of_loss,) = torch.autograd.grad(F.cross_entropy(logits, labels, reduction="sum"), x, allow_unused=True)
    except RuntimeError as error:
        words = f"the gradient in the input cannot be computed: {first_line(error)}"
        return [Finding("gradients", words, True)]
    if of_margin is None or of_loss is None:
        return [_nothing("the outputs carry no gradient of the input (detach or rounding inside the model)")]
    return _judge(of_margin, of_loss, margins.detach(), norm)


def _judge(of_margin: Tensor, of_loss: Tensor, margins: Tensor, norm: Norm) -> list[Finding]:
    broken = (~(of_margin.isfinite() & of_loss.isfinite())).reshape(len(margins), -1).any(dim=1)
    if bool(broken.any()):
        words = f"the gradient in the input is NaN or infinite for {_share(broken)} of the examples: find the operation"
        return [Finding("gradients", f"{words} (a square root or division at zero, an overflow)", True)]
    flat = of_margin.reshape(len(margins), -1).abs().amax(dim=1) == 0
    if bool(flat.all()):
        return [_nothing("the gradient of the margin is exactly zero for every example")]
    findings = []
    if _value(flat) > FEW:
        words = (
            f"the gradient of the margin is exactly zero for {_share(flat)} of the examples: gradient attacks and "
            "margins are blind there; trust only what Square leaves, or attack a differentiable version of the model"
        )
        findings.append(Finding("gradients", words, False))
    right = margins > 0
    blind = _underflows(of_loss, norm) & ~flat & right
    if int(blind.sum()) > SATURATED * max(int(right.sum()), 1):
        words = (
            f"the cross-entropy saturates in fp32 for {_share(blind[right])} of the correct examples (median margin "
            f"{float(margins[right].median()):.3g}) and its gradient is lost: attacks on it are blind there; those on "
            "the margin and on DLR are not. Dividing the logits by a constant brings the gradient back"
        )
        findings.append(Finding("saturated loss", words, False))
    return findings


def _underflows(gradient: Tensor, norm: Norm) -> Tensor:
    rows = gradient.reshape(len(gradient), -1)
    if norm == "linf":
        return rows.abs().amax(dim=1) < torch.finfo(gradient.dtype).tiny
    length: Tensor = torch.linalg.vector_norm(rows.double(), dim=1)
    return length < LENGTH


def _nothing(seen: str) -> Finding:
    words = f"{seen}: no gradient attack and no margin search can move, and what they leave means nothing"
    return Finding("gradients", f"{words}; make the model differentiable (e.g. straight through the rounding)", True)


def _value(rows: Tensor) -> float:
    return rows.float().mean().item()


def _share(rows: Tensor) -> str:
    return f"{_value(rows):.0%}"

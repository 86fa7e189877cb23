"""Every mistake that the preflight knows is found, named with its value, and fatal only where numbers mean nothing."""

import pytest
import torch
from torch import nn

from dyart.evaluation.preflight import Finding, PreflightError, preflight, stop_on_fatal

GENERATOR = torch.Generator().manual_seed(0)
X = torch.rand(200, 6, generator=GENERATOR)
WEIGHT = torch.randn(5, 6, generator=GENERATOR)
Y = (X @ WEIGHT.T).argmax(1)


def linear(x):
    return x @ WEIGHT.to(x).T


def found(model=linear, x=X, y=Y, norm="linf", bounds=(0.0, 1.0), expected=None) -> dict[str, Finding]:
    findings = preflight(model, x, y, norm=norm, bounds=bounds, expected_accuracy=expected)
    assert all(len(finding.message.splitlines()) == 1 for finding in findings)
    return {finding.kind: finding for finding in findings}


def only(findings, kind, fatal, *words):
    """Exactly this finding, with these words."""
    assert set(findings) == {kind}, findings
    assert findings[kind].fatal is fatal
    for word in words:
        assert word in findings[kind].message, findings[kind].message


def test_the_base_case_raises_nothing():
    assert found() == {}


# Inputs


@pytest.mark.parametrize(
    ("x", "words"),
    [
        (255 * X, ["divide them by 255", "outside the box 0 to 1"]),
        (((X - 0.5) / 0.25), ["normalised", "--mean"]),
        (3 * X, ["bounds"]),
        ((255 * X).to(torch.uint8), ["torch.uint8", "/ 255"]),
        (torch.where(torch.arange(200)[:, None] == 7, torch.nan, X), ["1 examples contain NaN", "first is 7"]),
        (X[:0], ["no examples"]),
    ],
    ids=["0..255", "normalised", "too wide", "integers", "nan", "none"],
)
def test_inputs_of_another_range_are_fatal(x, words):
    only(found(x=x, y=Y[: len(x)]), "input range", True, *words)


def test_a_tiny_box_is_checked_too():
    options = {"model": lambda x: linear(1e8 * x), "bounds": (0.0, 1e-8)}
    assert found(x=1e-8 * X, **options) == {}
    only(found(x=3e-8 * X, **options), "input range", True, "outside the box")


def test_constant_inputs_are_fatal():
    only(found(x=torch.full_like(X, 0.25)), "constant inputs", True, "0.25")


def test_inputs_divided_twice_are_noted():
    assert "twice" in found(x=X / 255)["input range"].message
    assert not found(x=X / 255)["input range"].fatal


def test_another_box_is_respected():
    assert found(lambda x: linear(x / 255), x=255 * X, bounds=(0.0, 255.0)) == {}
    assert found(lambda x: linear(x / 4 + 0.5), x=4 * X - 2, bounds=None) == {}
    low, high = torch.zeros(6), torch.tensor([1.0, 1, 1, 1, 1, 0.2])
    assert "input range" in found(bounds=(low, high))


# Labels and classes


def test_labels_outside_the_classes_are_fatal_even_if_a_sample_would_miss_them():
    x, y = X.repeat(20, 1), Y.repeat(20)
    y[3999] = 5
    only(found(x=x, y=y), "labels", True, "the first is 5 at 3999", "5 logits")


def test_labels_that_count_from_one_are_told_so():
    y = torch.arange(len(Y)) % 5
    only(found(y=y + 1), "labels", True, "if the labels count from 1, subtract 1")
    assert "subtract" not in found(y=2 * y)["labels"].message


@pytest.mark.parametrize(
    "y", [Y.float(), Y[:10], Y[:, None], nn.functional.one_hot(Y)], ids=["float", "few", "2d", "hot"]
)
def test_labels_that_are_none_are_fatal(y):
    assert found(y=y)["labels"].fatal


def test_examples_of_one_class_are_noted():
    rows = (Y[0] == Y).nonzero()[:, 0]
    only(found(x=X[rows], y=Y[rows]), "labels", False, f"of class {int(Y[0])}")


@pytest.mark.parametrize(("classes", "word"), [(2, "three classes"), (3, "targeted DLR")])
def test_few_classes_have_a_stated_replacement(classes, word):
    def model(x):
        return linear(x - 0.5)[:, :classes]

    only(found(model, y=model(X).argmax(1)), "few classes", False, f"{classes} classes", word, "logit margin")


def test_four_classes_are_enough():
    def model(x):
        return linear(x)[:, :4]

    assert found(model, y=model(X).argmax(1)) == {}


def test_a_one_logit_model_is_told_how_to_be_wrapped():
    only(found(lambda x: linear(x)[:, :1]), "outputs", True, "torch.stack")


# Outputs


@pytest.mark.parametrize(
    ("model", "kind", "fatal", "word"),
    [
        (lambda x: linear(x).softmax(1), "probabilities", False, "without the softmax"),
        (lambda x: linear(x).log_softmax(1), "log-probabilities", False, "nothing needs to be done"),
        (lambda x: linear(x).sigmoid(), "probabilities", False, "sigmoid"),
        (lambda x: linear(x) * torch.nan, "outputs", True, "100%"),
        (lambda x: torch.ones(len(x), 5) + 0 * x.sum(), "constant outputs", True, "same for 200"),
        (lambda x: (linear(x), None), "outputs", True, "tuple"),
        (lambda x: linear(x).detach().numpy(), "outputs", True, "return the tensor itself"),
        (lambda x: linear(x).index_fill(1, torch.tensor([1]), -torch.inf), "outputs", True, "a logit of -inf (1), of"),
        (lambda x: linear(x)[:-1], "outputs", True, "rows"),
        (lambda x: x @ torch.ones(7, 5), "outputs", True, "fails on inputs of shape 6"),
        (lambda x: linear(x.sub_(0.5)), "outputs", True, "changes its inputs in place"),
    ],
    ids=[
        *("probabilities", "log-probabilities", "sigmoid", "nan", "constant", "tuple", "numpy", "masked", "rows"),
        *("shape", "in place"),
    ],
)
def test_outputs_that_are_no_logits(model, kind, fatal, word):
    only(found(model, X.clone()), kind, fatal, word)


@pytest.mark.parametrize(
    ("dtype", "given", "words"),
    [
        (torch.float32, torch.float64, "pass inputs.to(torch.float32)"),
        (torch.float64, torch.float32, "pass inputs.to(torch.float64)"),
        (torch.bfloat16, torch.float32, "pass model.to(torch.float32)"),
        (torch.float16, torch.float64, "pass model.to(torch.float64)"),
    ],
)
def test_a_model_of_another_dtype_is_told_so(dtype, given, words):
    model = nn.Linear(6, 5).to(dtype)
    only(found(model, X.to(given)), "outputs", True, words)


def test_train_mode_is_said_where_it_matters():
    model = nn.Sequential(nn.BatchNorm1d(6), nn.Dropout(0.5), nn.Linear(6, 5))
    nn.init.constant_(model[2].bias, 0.0)
    model[0].running_mean.fill_(0.5)
    with torch.no_grad():
        model[2].weight.copy_(WEIGHT)
    y = model.eval()(X).argmax(1)
    only(found(model.train(), y=y), "train mode", False, "BatchNorm1d, Dropout", "model.eval()")
    assert found(model.eval(), y=y) == {}


class Custom(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(6, 5)

    def forward(self, x):
        return self.inner(x) + (torch.rand(1) if self.training else 0)


def test_train_mode_of_a_layer_of_ones_own_is_seen():
    torch.manual_seed(0)
    model = Custom().eval()
    y = model(X).argmax(1)
    assert found(model, y=y) == {}
    only(found(model.train(), y=y), "train mode", False, "(Custom)")


def test_dropout_of_zero_in_train_mode_is_no_matter():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Dropout(0.0), nn.Linear(6, 5)).train()
    assert found(model, y=model(X).argmax(1)) == {}


def test_randomness_is_fatal():
    findings = found(lambda x: linear(x) + 0.3 * torch.randn(len(x), 5))
    assert findings["randomness"].fatal
    assert "differ by up to" in findings["randomness"].message
    assert "batch size" not in findings, "alone and together differ by the same draws"


def test_rounding_is_no_randomness():
    assert found(lambda x: linear(x) * (1 + 1e-6 * torch.rand(1))) == {}


def test_dependence_on_the_batch_is_fatal():
    only(found(lambda x: linear(x - x.mean(0)), y=linear(X - X.mean(0)).argmax(1)), "batch size", True, "beside it")


def test_a_batch_norm_without_running_statistics_is_found():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5, track_running_stats=False)).eval()
    assert found(model)["batch size"].fatal


def test_a_model_that_takes_whole_batches_alone_is_found():
    def model(x):
        if len(x) == 1:
            raise RuntimeError("expected 8 rows")
        return linear(x)

    only(found(model), "batch size", True, "expected 8 rows")


# Accuracy


def test_an_accuracy_that_was_recorded_differently_is_fatal():
    only(found(expected=0.5), "accuracy", True, "100.0%", "50.0% were recorded")


def test_a_sample_may_differ_as_samples_do():
    y = Y.clone()
    y[:40] = (y[:40] + 1) % 5  # 80 % right
    assert found(y=y, expected=0.86) == {}
    assert found(y=y, expected=0.97)["accuracy"].fatal


def test_guessing_is_noted():
    only(found(y=(Y + 1) % 5), "accuracy", False, "guessing among 5 classes")


# Gradients


class Straight(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.round(decimals=1)

    @staticmethod
    def backward(ctx, gradient):
        return gradient


@pytest.mark.parametrize(
    ("model", "word"),
    [
        (lambda x: linear(x.round(decimals=2)), "exactly zero for every example"),
        (lambda x: linear(x.detach()), "no gradient"),
        (lambda x: torch.from_numpy(linear(x).detach().numpy()), "no gradient"),
        (lambda x: linear(x) + 0 * (x - x).sqrt().sum(1, keepdim=True), "NaN"),
    ],
    ids=["rounded", "detached", "numpy", "nan"],
)
def test_gradients_that_are_not_there_are_fatal(model, word):
    only(found(model, y=model(X).argmax(1)), "gradients", True, word)


def test_rounding_with_a_straight_through_gradient_is_let_pass():
    assert found(lambda x: linear(Straight.apply(x))) == {}


def test_gradients_that_vanish_for_some_are_noted():
    def model(x):
        return torch.where(x[:, :1] < 0.4, linear(x.detach()), linear(x))

    only(found(model), "gradients", False, "%", "blind")


def test_a_loss_that_underflows_is_noted_by_the_norm():
    """L-inf steps need signs alone; L2 steps divide by a length that must not vanish: they go blind earlier."""
    scale = 40 / linear(X).topk(2).values.diff().abs().median()
    assert found(lambda x: scale * linear(x), norm="linf") == {}
    only(found(lambda x: scale * linear(x), norm="l2"), "saturated loss", False, "DLR", "median margin")
    only(found(lambda x: 20 * scale * linear(x), norm="linf"), "saturated loss", False, "cross-entropy")


def test_a_model_without_gradients_is_no_reason_to_fail_elsewhere():
    with torch.no_grad():
        assert found() == {}
    with torch.inference_mode():
        assert found() == {}


# Stopping


def test_fatal_findings_stop_with_all_their_messages():
    findings = [Finding("a", "one", True), Finding("b", "two", False), Finding("c", "three", True)]
    with pytest.raises(PreflightError, match="one; three"):
        stop_on_fatal(findings)
    stop_on_fatal(findings[1:2])
    assert str(findings[0]) == "error (a): one"
    assert str(findings[1]) == "note (b): two"

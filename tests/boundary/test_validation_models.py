"""Models that return something else get a clear error, doubtful ones a warning."""

from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from validation_cases import CLASSES, Counting, classes, examples, with_batch_norm

import dyart


def search(model, inputs, labels=None, **options):
    return dyart.closest_boundary_points(model, inputs, labels, **{"steps": 4, **options})


def train(model, inputs, labels, **options):
    return dyart.DyART(steps=4, **options)(model, inputs, labels)


both = pytest.mark.parametrize("call", [search, train], ids=["closest_boundary_points", "DyART"])


# What the model returns


@both
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda z: torch.where(torch.arange(len(z))[:, None] == 2, torch.nan, z), "NaN logits, first for example 2"),
        (
            lambda z: torch.where(torch.arange(len(z))[:, None] == 2, torch.inf, z),
            r"\+inf, first for example 2 \(of 1\)",
        ),
        (lambda z: -torch.inf * torch.ones_like(z), r"no finite logit, first for example 0 \(of 6\)"),
        (lambda z: z[:, :1], r"shape \(6, 1\): one logit .*wrap it .*torch\.stack"),
        (lambda z: z[:, 0], r"shape \(6,\): one logit .*wrap it .*torch\.stack"),
        (lambda z: z[:, :, None], r"logits \[N, K\], got shape \(6, 10, 1\)"),
        (lambda z: z[:4], "4 rows of logits for 6 examples"),
        (lambda z: torch.cat([z, z]), "12 rows of logits for 6 examples"),
    ],
    ids=[
        "NaN",
        "infinity",
        "all masked",
        "one class",
        "one logit",
        "three dimensions",
        "too few rows",
        "too many rows",
    ],
)
def test_bad_logits_are_refused_before_any_gradient(call, change, words):
    model = Counting(change)
    with pytest.raises(ValueError, match=words):
        call(model, examples(), classes())
    assert model.forwards == 1
    assert model.gradients == 0


@both
@pytest.mark.parametrize(
    ("change", "name"),
    [
        (lambda z: (z, z), "tuple"),
        (lambda z: [z], "list"),
        (lambda z: {"logits": z}, "dict"),
        (lambda z: SimpleNamespace(logits=None), "SimpleNamespace"),
        (lambda z: None, "NoneType"),
    ],
)
def test_models_that_return_something_else_are_told_to_be_wrapped(call, change, name):
    model = Counting(change)
    with pytest.raises(TypeError, match=rf"returned {name}.*wrap it, e\.g\. lambda x: model\(x\)\["):
        call(model, examples(), classes())
    assert model.forwards == 1
    assert model.gradients == 0


@both
def test_integer_logits_are_refused(call):
    with pytest.raises(TypeError, match=r"logits must be floating point, got torch\.int64"):
        call(Counting(lambda z: (100 * z).long()), examples(), classes())


@both
@pytest.mark.parametrize(
    "change",
    [Tensor.detach, lambda z: (100 * z).detach().round(), lambda z: F.one_hot(z.argmax(dim=1), CLASSES).float() * 2],
    ids=["detach", "rounding", "argmax"],
)
def test_models_without_a_gradient_are_told_so(call, change):
    with pytest.raises(ValueError, match="differentiable operations") as error:
        call(Counting(change), examples(), classes())
    assert ".detach()" in str(error.value), "the usual suspects are named"


@both
def test_models_that_detach_their_input_are_told_so_too(call):
    # The logits do have a gradient, in the parameters: another way through autograd than without any gradient.
    model = Counting()
    with pytest.raises(ValueError, match="differentiable operations"):
        call(lambda x: model(x.detach()), examples(), classes())


@both
@pytest.mark.parametrize("change", [lambda x: x.sub_(0.5), lambda x: x[:, 1:].relu_()], ids=["mean", "part of it"])
def test_models_that_change_their_inputs_are_told_so(call, change):
    model = Counting()

    def changing(x: Tensor) -> Tensor:
        change(x)
        return model(x)

    with pytest.raises(ValueError, match=r"changes its inputs in place.*x = x - mean.*x = x\.clone\(\)"):
        call(changing, examples(), classes())


@pytest.mark.parametrize("wrap", [lambda z: SimpleNamespace(logits=z), lambda z: z], ids=[".logits", "tensor"])
def test_hugging_face_like_outputs_work(wrap):
    direct = search(Counting(), examples(), classes(), tol=1e-4)
    wrapped = search(Counting(wrap), examples(), classes(), tol=1e-4)
    assert direct.found.all()
    torch.testing.assert_close(wrapped.margin, direct.margin, rtol=0, atol=0)
    loss, _ = train(Counting(wrap), examples(), classes())
    torch.testing.assert_close(loss, train(Counting(), examples(), classes())[0], rtol=0, atol=0)


def test_the_advice_for_one_logit_gives_the_margin_of_the_binary_model():
    weight, inputs = torch.tensor([1.0, -2.0, 0.5]), torch.tensor([[0.5, 0.4, 0.5], [0.4, 0.6, 0.3]])

    def score(x: Tensor) -> Tensor:
        return (x @ weight)[:, None]

    def wrapped(x: Tensor) -> Tensor:
        z = score(x)
        return torch.stack([-z.flatten(), z.flatten()], 1) / 2

    with pytest.raises(ValueError, match=r"torch\.stack\(\[-z\.flatten\(\), z\.flatten\(\)\], 1\) / 2"):
        search(score, inputs)
    found = search(wrapped, inputs, tol=1e-6)
    torch.testing.assert_close(found.labels, (score(inputs)[:, 0] > 0).long())
    # Nothing is pinned, so the linf margin is |z| / ||w||_1; and the value is the binary model's own logit.
    torch.testing.assert_close(found.margin, score(inputs)[:, 0].abs() / 3.5, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(found.input_value, score(inputs)[:, 0].abs())


@both
@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_inputs_of_another_dtype_than_the_model_get_a_note_that_says_what_to_pass(call, dtype):
    model = Counting()
    with pytest.raises(RuntimeError, match="dtype") as error:
        call(model, examples().to(dtype), classes())
    notes = "\n".join(getattr(error.value, "__notes__", []))
    assert f"the inputs are {dtype}" in notes
    assert "pass inputs.to(torch.float32)" in notes
    assert model.gradients == 0


@both
def test_inputs_on_another_device_than_the_model_get_a_note_that_names_both(call):
    with pytest.raises(RuntimeError) as error:
        call(Counting().to("meta"), examples(), classes())
    notes = "\n".join(getattr(error.value, "__notes__", []))
    assert "the model is on meta, the inputs are on cpu" in notes


def test_one_image_without_a_batch_gets_a_note_that_says_what_to_pass():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(144, 5))
    image = torch.rand(3, 8, 8)
    with pytest.raises(RuntimeError, match="shapes") as error:
        search(model, image, None)
    assert "(3, 8, 8) are one example to this model: pass inputs[None]" in error.value.__notes__[0]
    with pytest.raises(ValueError, match=r"if these are one example, pass inputs\[None\]$"):
        search(model, image, torch.tensor([1]))


def test_the_note_is_left_out_where_it_would_mislead():
    with pytest.raises(RuntimeError, match="shapes") as error:
        search(Counting(), examples()[:, :2], classes())
    assert not getattr(error.value, "__notes__", [])


# Warnings


@both
def test_probabilities_get_a_warning_at_the_callers_line(call):
    with pytest.warns(UserWarning, match=r"probabilities.*drop the softmax") as record:
        call(Counting(lambda z: z.softmax(dim=1)), examples(), classes())
    assert [warning.filename for warning in record] == [__file__], "a warning inside dyart says nothing to its user"


@both
@pytest.mark.parametrize(
    "change",
    [
        lambda z: z.log_softmax(dim=1),
        lambda z: z - z.min(),
        lambda z: 2 * z.softmax(dim=1),
        lambda z: z - z.mean(1, True) + 0.1,
    ],
    ids=["log-probabilities", "non-negative", "sum of 2", "sum of 1"],
)
def test_logits_that_are_no_probabilities_get_no_warning(call, change):
    call(Counting(change), examples(), classes())  # a warning is an error here


def test_batch_norm_in_training_mode_gets_a_warning_at_the_callers_line():
    with pytest.warns(UserWarning, match=r"BatchNorm.*training mode.*running statistics.*model\.eval\(\)") as record:
        dyart.closest_boundary_points(with_batch_norm(training=True), examples(), steps=2)
    assert [warning.filename for warning in record] == [__file__]


def test_one_batch_norm_in_training_mode_is_enough_for_the_warning():
    model = with_batch_norm(training=False)
    model[0][0].train()
    with pytest.warns(UserWarning, match="BatchNorm"):
        search(model, examples())


def test_batch_norm_gets_no_warning_where_all_is_well():
    search(with_batch_norm(training=False), examples())
    search(nn.Sequential(nn.Dropout(0.5), nn.GroupNorm(1, 3), Counting()).train(), examples())
    # The objective is meant to run in training mode.
    train(with_batch_norm(training=True), examples(), classes())


@pytest.mark.parametrize(
    ("output", "advice"), [(lambda z: {"scores": z}, r"model\(x\)\['scores'\]"), (lambda z: (z,), r"model\(x\)\[0\]")]
)
def test_an_output_with_logits_inside_says_how_to_take_them_out(output, advice):
    with pytest.raises(TypeError, match=advice):
        dyart.closest_boundary_points(lambda x: output(x @ torch.eye(3)), torch.rand(2, 3))


def test_batches_are_searched_one_by_one():
    loader = torch.utils.data.DataLoader(torch.rand(4, 3))
    with pytest.raises(TypeError, match=r"got DataLoader: search batch by batch .* dyart.concat"):
        dyart.closest_boundary_points(lambda x: x, loader)
    with pytest.raises(TypeError, match=r"got list: use torch\.as_tensor"):
        dyart.closest_boundary_points(lambda x: x, [[0.1, 0.2]])
    with pytest.raises(TypeError, match="for tokens their embeddings"):
        dyart.closest_boundary_points(lambda x: x, torch.tensor([[3, 4]]))


@both
def test_a_model_that_returns_numpy_is_told_that_no_gradient_goes_through_it(call):
    model = Counting(lambda z: z.detach().numpy())
    with pytest.raises(TypeError, match=r"array of numpy, through which no gradient goes: let it return the tensor"):
        call(model, examples(), classes())

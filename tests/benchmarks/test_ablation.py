"""The ablation of DyART's savings: what it counts on a training of a few steps."""

from bench_cases import module

from dyart.engine.run import prepare
from dyart.recipes import resolve

ablation = module("ablation")


def test_what_is_watched_adds_up():
    words = (
        "--method.steps 3 --method.retire false --train.epochs 1 --train.burn_in 1 --data.limit 256 --train.device cpu"
    )
    training = prepare(resolve("fashion-mini-cnn-dyart", words.split()))
    watch = ablation.Watch(training.method)
    training.callbacks = [watch]
    training.run()
    watch.end()
    (epoch,) = watch.epochs
    assert (epoch["forward"], epoch["backward"], epoch["extra"], epoch["steps"]) == (3, 3, 0, 3)
    assert 0 < epoch["good"] <= epoch["found"] <= 1
    assert "craft" not in vars(training.method)

"""Where a network keeps its tensors: the average and the search's view hold on to them for the whole training."""

from torch import nn
from torch.nn.parameter import is_lazy


class NetworkError(ValueError):
    """A network does what a training cannot follow; the message says what to do."""


def places_of(model: nn.Module) -> dict[str, int]:
    """Return where every parameter and buffer lies, by name; lazy ones have no place yet."""
    named = [*model.named_parameters(), *model.named_buffers()]
    return {name: tensor.data_ptr() for name, tensor in named if not is_lazy(tensor)}


class TensorPlaces:
    """Notices when a network puts a new tensor in the place of one that others hold on to.

    Args:
        model: the network that is trained.
    """

    def __init__(self, model: nn.Module) -> None:
        """Remember where everything is."""
        self.model, self.places = model, places_of(model)

    def check(self) -> None:
        """Compare. No host synchronisation.

        Raises:
            NetworkError: a tensor lies elsewhere now.
        """
        for name, place in places_of(self.model).items():
            if self.places.get(name, place) != place:
                raise NetworkError(
                    f"the network puts a new tensor in the place of {name} while it runs; the averaged weights and the "
                    f"search would go on with the old one. Write into it instead: {name}.data.copy_(new)"
                )


def check_shared(model: nn.Module, view: nn.Module) -> None:
    """Check that a view of a network has the network's own tensors.

    Raises:
        NetworkError: one of them is a copy.
    """
    own = places_of(view)
    for name, place in places_of(model).items():
        if own.get(name, place) != place:
            raise NetworkError(
                f"a copy of the network (copy.deepcopy) does not keep {name} shared, so the search would not see it "
                "change: leave __deepcopy__ out, or have it pass its memo on"
            )

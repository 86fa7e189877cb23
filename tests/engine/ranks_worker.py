"""One of several processes: does what it is told to, with the others. Started by ``ranks_cases.together``."""

import json
import sys
from pathlib import Path

import torch
from ranks_cases import measured

from dyart.cli import main
from dyart.data import load
from dyart.data.ranks import team_here
from dyart.engine.fit import TrainingError
from dyart.engine.process_end import ending
from dyart.engine.run import train
from dyart.recipes import resolve


def broken(place: int) -> int:
    if place == 3:
        raise KeyError("the fourth piece")
    return place


def told(works: int) -> str:
    """Return what a piece of work that one process fails at says to this one."""
    try:
        return str(team_here().do([lambda place=place: broken(place) for place in range(works)]))
    except KeyError as error:
        return str(error)


def work(given: Path) -> list[str]:
    """Do the jobs, and return the words of a command to end with."""
    jobs = json.loads(given.read_text(encoding="utf-8"))
    data = load("fashion-mini")
    ends = []
    for recipe, resume in jobs["trainings"]:
        try:
            training = train(resolve(Path(recipe)), resume=resume, data=data)
        except TrainingError as error:
            ends.append(str(error))
            continue
        assert (training.folder is None) == (team_here().rank > 0)
        weights = torch.cat([tensor.double().flatten() for tensor in training.model.state_dict().values()])
        assert all(torch.equal(weights, other) for other in team_here().every(weights)), "the processes differ"
    found = measured(Path(jobs["measured"]), team_here()).clean_accuracy
    said = {"ends": ends, "told": [told(3), told(5)], "clean": found}
    given.with_name(f"said-{team_here().rank}.json").write_text(json.dumps(said), encoding="utf-8")
    return jobs["command"]


if __name__ == "__main__":
    with ending():
        command = work(Path(sys.argv[1]))
        sys.exit(main(command))

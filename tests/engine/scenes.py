"""Moments of a training at which its own process is killed."""

import os
import signal
import sys
import time
from pathlib import Path

import torch

from dyart.cli.main import _user_errors
from dyart.engine import checkpoint, files
from dyart.engine.callbacks import Callback
from dyart.engine.run import train
from dyart.recipes import Config

SCENES = ("burn-in", "after burn-in", "validation", "saving", "renaming", "pointing")
STEPS = 20


def killed_in(scene: str, config: Config, said: Path) -> None:
    """Train, and be killed in a scene: the target of a process. What it says goes to a file."""
    torch.set_num_threads(1)
    os.dup2(os.open(said, os.O_WRONLY | os.O_CREAT | os.O_APPEND), 2)
    try:
        train(config, callbacks=[_Scene(scene, said.parent)])
    except KeyboardInterrupt:
        sys.exit(130)
    except _user_errors() as error:
        os.write(2, str(error).encode())
        sys.exit(2)


class _Scene(Callback):
    def __init__(self, scene: str, folder: Path) -> None:
        self.scene, self.folder = scene, folder

    def on_start(self, training) -> None:
        """Get ready for the third epoch, the first one after the burn-in."""
        measure = training.validation
        if self.scene in ("validation", "terminated"):

            def validation():
                if training.position.epoch == 3:
                    self._ends() if self.scene == "validation" else os.kill(os.getpid(), signal.SIGTERM)
                return measure()

            training.validation = validation

    def on_step(self, training) -> None:
        if training.steps_done == {"burn-in": STEPS + 5, "after burn-in": 2 * STEPS + 1}.get(self.scene):
            self._ends()
        if self.scene == "stuck" and training.steps_done == STEPS + 5:
            (self.folder / "stuck").touch()
            while True:
                time.sleep(0.01)

    def on_record(self, training, record) -> None:
        """Before the third epoch's checkpoint is written."""
        if record["kind"] != "epoch" or record["epoch"] != 3:
            return
        if self.scene == "saving":  # some files are written, others are not
            self._replace(checkpoint, "synced", after=1)
        elif self.scene == "renaming":
            self._replace(checkpoint, "_put_in_place", after=0)
        elif self.scene == "pointing":  # the checkpoint is there, and the index does not know it yet
            self._replace(checkpoint, "write_index", after=0)

    def _replace(self, module, name: str, after: int) -> None:
        function, calls = getattr(module, name), []

        def counted(*arguments):
            calls.append(arguments)
            return self._ends() if len(calls) > after else function(*arguments)

        setattr(module, name, counted)

    def _ends(self) -> None:
        files.write_whole(self.folder / "killed", self.scene)
        os.kill(os.getpid(), signal.SIGKILL)

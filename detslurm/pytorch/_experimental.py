"""Less common settings that trials of every kind have."""

from __future__ import annotations

from detslurm.pytorch._base_context import TrialContext


class ExperimentalContext:
    """Less common settings: `context.experimental`."""

    def __init__(self, parent: TrialContext) -> None:
        self._parent = parent

    def save_in_background(self) -> None:
        """Go on with training while a checkpoint is written, from a copy in the host's memory.

        A checkpoint counts once it is complete, and exiting waits for it. An error, unless it is a
        lack of space, is raised at the next report, checkpoint or validation, on all slots.
        `on_checkpoint_upload_end()` is called then, too, and `on_checkpoint_write_end()` of a
        `PyTorchTrial` in another thread.

        A `PyTorchTrial` saves in the foreground what several slots have parts of: sharded models,
        and gradients for a later step. A `DeepSpeedTrial` does so where its engines have a
        checkpoint writer of their own; what its `save()` writes in another way than through
        wrapped engines is written at once, and their files are empty until later.
        """
        self._parent._saves_in_background = True

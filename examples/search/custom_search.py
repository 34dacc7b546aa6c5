"""A search method of one's own: climb from the best trial so far to samples near it.

`python3 custom_search.py` runs it here, on any machine that sees the store and the queue. Killed
and started again, it goes on with the same experiment, which it keeps in `climb`.
"""

import argparse
import json
import random
import uuid

from detslurm import searcher

ROUNDS, NEIGHBOURS, EPOCHS = 3, 4, 6


class Climb(searcher.SearchMethod):
    """Each round trains a few neighbours of the best sample known."""

    def __init__(self, rounds=ROUNDS, neighbours=NEIGHBOURS, epochs=EPOCHS, seed=0):
        self.rounds, self.neighbours, self.epochs = rounds, neighbours, epochs
        self.random = random.Random(seed)
        self.best = {"accuracy": -1.0, "hparams": {"learning_rate": 0.03, "hidden": 16}}
        self.round, self.running = 0, {}

    def begin_round(self):
        if self.round == self.rounds:
            print(f"the best: {self.best}")
            return [searcher.Shutdown()]
        self.round += 1
        print(f"round {self.round} of {self.rounds}: {self.neighbours} trials", flush=True)
        operations = []
        for _ in range(self.neighbours):
            request_id, hparams = uuid.UUID(int=self.random.getrandbits(128)), self.neighbour()
            self.running[str(request_id)] = hparams
            operations.append(searcher.Create(request_id, hparams))
            operations.append(searcher.ValidateAfter(request_id, self.epochs))
        return operations

    def neighbour(self):
        near = self.best["hparams"]
        return {
            "learning_rate": min(near["learning_rate"] * 10 ** self.random.uniform(-0.7, 0.7), 1.0),
            "hidden": max(4, round(near["hidden"] * self.random.uniform(0.5, 2.0))),
            "dropout": 0.1,
            "batch_size": 32,
        }

    def initial_operations(self, state):
        return self.begin_round()

    def on_trial_created(self, state, request_id):
        return []

    def on_validation_completed(self, state, request_id, metric, train_length):
        print(f"  accuracy {metric:.3f} with {self.running[str(request_id)]}", flush=True)
        if metric > self.best["accuracy"]:
            self.best = {"accuracy": metric, "hparams": self.running[str(request_id)]}
        return [searcher.Close(request_id)]

    def on_trial_closed(self, state, request_id):
        del self.running[str(request_id)]
        return [] if self.running else self.begin_round()

    def on_trial_exited_early(self, state, request_id, exited_reason):
        return []  # it is closed next

    def progress(self, state):
        return len(state.trials_closed) / (self.rounds * self.neighbours)

    def save_method_state(self, path):
        kept = [self.random.getstate(), self.best, self.round, self.running]
        (path / "climb.json").write_text(json.dumps(kept))

    def load_method_state(self, path):
        known, self.best, self.round, self.running = json.loads((path / "climb.json").read_text())
        self.random.setstate((known[0], tuple(known[1]), known[2]))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("rounds", type=int, nargs="?", default=ROUNDS)
    parser.add_argument("neighbours", type=int, nargs="?", default=NEIGHBOURS, help="in each round")
    parser.add_argument("epochs", type=int, nargs="?", default=EPOCHS, help="of each trial")
    method = Climb(**vars(parser.parse_args()))
    print("experiment", searcher.LocalSearchRunner(method, "climb").run("custom.yaml", "."))

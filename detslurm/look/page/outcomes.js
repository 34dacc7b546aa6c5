// How runs ended, in words for people; as detslurm names them elsewhere.

const WORDS = new Map(Object.entries({
  completed: "completed",
  out_of_ops: "left to the search", stopped: "left to the search", released: "left to the search",
  preempted: "preempted", time_limit: "time limit", paused: "paused",
  restart: "failed", error: "failed", lost: "job lost", invalid_hp: "hyperparameters refused", non_retryable: "failed",
  ended: "ended by Slurm",
  canceled: "canceled", killed: "canceled",
}));

// "running" while a run goes on.
export function ending(run) {
  return run.outcome == null ? "running" : WORDS.get(run.outcome) ?? "ended otherwise";
}

"""The environment contract: every variable that detslurm sets or reads, named once.

Node agents set the variables of a run and its ranks read them; users and sites set the switches.
Names that begin with `DET_` are Determined's, with its meaning.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping

# -- a run: what it is, set for its ranks by the node agent or by the process that joined the job --
MASTER = "DET_MASTER"
CLUSTER_ID = "DET_CLUSTER_ID"
AGENT_ID = "DET_AGENT_ID"
TASK_ID = "DET_TASK_ID"
TASK_TYPE = "DET_TASK_TYPE"
RESOURCES_TYPE = "DET_RESOURCES_TYPE"
ALLOCATION_ID = "DET_ALLOCATION_ID"
SESSION_TOKEN = "DET_SESSION_TOKEN"
MASTER_CERT_NAME = "DET_MASTER_CERT_NAME"
MASTER_CERT_FILE = "DET_MASTER_CERT_FILE"
EXPERIMENT_ID = "DET_EXPERIMENT_ID"
EXPERIMENT_CONFIG = "DET_EXPERIMENT_CONFIG"
TRIAL_ID = "DET_TRIAL_ID"
TRIAL_RUN_ID = "DET_TRIAL_RUN_ID"
TRIAL_SEED = "DET_TRIAL_SEED"
HPARAMS = "DET_HPARAMS"
STEPS_COMPLETED = "DET_STEPS_COMPLETED"
LATEST_CHECKPOINT = "DET_LATEST_CHECKPOINT"
CONTINUED_TRIAL = "DETSLURM_CONTINUED_TRIAL"
"""The trial of another experiment that saved the checkpoint from which this one goes on."""
HPARAMS_CHANGED = "DETSLURM_HPARAMS_CHANGED"
"""Whether its hyperparameters are other ones than that trial's."""
TEST_MODE = "DETSLURM_TEST_MODE"
"""Set where the experiment is the short training of `submit --test-mode`."""
OWN_SCRIPT = "DETSLURM_OWN_SCRIPT"
"""Set where the run is that of a batch script of the user's own, which nobody has configured."""
DEBUG = "DET_DEBUG"
EXPERIMENT_DIR = "DETSLURM_EXPERIMENT_DIR"
JOB = "DETSLURM_JOB"
"""The job that the environment was made for; sbatch hands it on to jobs submitted from inside."""

# -- a run: its node and its peers --
SLOT_IDS = "DET_SLOT_IDS"
UNIQUE_PORT_OFFSET = "DET_UNIQUE_PORT_OFFSET"
INTERFACE = "DET_INTER_NODE_NETWORK_INTERFACE"
CHIEF_IP = "DET_CHIEF_IP"
MANUAL_INIT = "DET_MANUAL_INIT_DISTRIBUTED"
GPU_UUIDS = "DETSLURM_GPU_UUIDS"
RENDEZVOUS = "DETSLURM_RENDEZVOUS"
RENDEZVOUS_PORT = "DETSLURM_RENDEZVOUS_PORT"
"""A port of the first node that is this run's alone, where a run has several nodes."""
RUN_TOKEN = "DETSLURM_RUN_TOKEN"
"""With it the ranks of a run prove to each other that they belong to it; it is in no file."""
PREEMPT_FLAG = "DETSLURM_PREEMPT_FLAG"
"""The file that the ranks of a node have mapped to learn of a preemption."""
EXIT_LOG = "DETSLURM_EXIT_LOG"
"""The file where wrapped workers report their exit status to their launcher."""
DEEPSPEED_HOSTFILE = "DET_DEEPSPEED_HOSTFILE_PATH"
STEP_SERVER = "DETSLURM_STEP_SERVER"
"""Where the runner of this attempt listens: a name that only processes of its node can use."""
LIBRARIES = "DETSLURM_LIBRARIES"
"""Where a container finds what is compiled and it may lack: a folder for each version of Python."""
PUT_BACK = "DETSLURM_PUT_BACK"
"""Variables that mpirun must not see and its ranks have, as JSON."""

# -- switches of users and sites --
ROOT = "DETSLURM_ROOT"
SITE = "DETSLURM_SITE"
TRACK = "DETSLURM_TRACK"
COMPAT = "DETSLURM_COMPAT"
TRANSPORT = "DETSLURM_TRANSPORT"
PEER_TIMEOUT = "DETSLURM_PEER_TIMEOUT"
JOIN_TIMEOUT = "DETSLURM_JOIN_TIMEOUT"

# -- jobs of the local cluster, and what its machine has --
LOCAL_PREFIX = "DETSLURM_LOCAL_"
LOCAL_TAG = "DETSLURM_LOCAL_TAG"
LOCAL_JOB_ID = "DETSLURM_LOCAL_JOB_ID"
LOCAL_TASK_ID = "DETSLURM_LOCAL_TASK_ID"
LOCAL_RESTART_COUNT = "DETSLURM_LOCAL_RESTART_COUNT"
LOCAL_END_TIME = "DETSLURM_LOCAL_END_TIME"
LOCAL_CPUS = "DETSLURM_LOCAL_CPUS"
LOCAL_GPUS = "DETSLURM_LOCAL_GPUS"

OF_A_RUN = (
    "DET_",
    "DETSLURM_PREEMPT",
    CONTINUED_TRIAL,
    HPARAMS_CHANGED,
    TEST_MODE,
    OWN_SCRIPT,
    JOB,
)
"""How the variables begin that would give a process another run's identity."""
OF_A_JOB = ("SLURM_", "SLURMD_", "PMI", "OMPI_")
"""How those begin that would give a process another job's identity, or that of a rank in it."""
LOCATING = frozenset({"SLURM_CONF", "SLURM_CLUSTERS", "SLURM_CONF_SERVER"})
"""Those among them that belong to no job: where the cluster is."""
MPI_SETTINGS = ("OMPI_MCA_", "PMIX_MCA_")
"""How a site's or a user's settings of MPI begin; those of a rank are its launcher's."""
OF_A_RANK = frozenset({"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK"})
"""What a launcher of MPI gives each of its ranks."""

LONGEST_VALUE = 120 * 1024
"""Bytes of a value: Linux refuses an exec with one string of 128 KiB or more (MAX_ARG_STRLEN)."""


def job_of(env: Mapping[str, str]) -> str | None:
    """The job that an environment is of, Slurm's or the local cluster's; None outside of jobs."""
    local = [env.get(name, "") for name in (LOCAL_TAG, LOCAL_JOB_ID, LOCAL_TASK_ID)]
    return ".".join(local) if local[1] else env.get("SLURM_JOB_ID")


def task_and_allocation(
    experiment: int, trial: int, start: Mapping[str, object]
) -> tuple[str, str]:
    """What Determined calls a trial's task, and the allocation of one of its runs."""
    task = f"{experiment}.{start.get('request_id', trial)}"
    return task, f"{task}.{start['run']}"


def without_job(env: Mapping[str, str], *more: str) -> dict[str, str]:
    """What a job that is submitted from another may inherit; nothing that begins with `more`."""
    own = (*OF_A_JOB, *more)
    settings = MPI_SETTINGS if OF_A_RANK.isdisjoint(env) else ()
    types = () if "SLURM_JOB_ID" in env else ("SLURM_MPI_TYPE",)  # of srun
    return {
        k: v
        for k, v in env.items()
        if k in LOCATING or k in types or k.startswith(settings) or not k.startswith(own)
    }


def is_inherited(env: Mapping[str, str]) -> bool:
    """Whether the run in an environment is that of another job, which submitted this one."""
    job = env.get(JOB)
    return job is not None and job_of(env) not in (None, job)


def drop_inherited_run(env: MutableMapping[str, str]) -> None:
    """Remove what would give this process the identity of another job's run."""
    if is_inherited(env):
        for name in [name for name in env if name.startswith(OF_A_RUN)]:
            del env[name]

"""The environment contract: every variable that detslurm sets or reads, named once.

Node agents set the variables of a run and its ranks read them; users and sites set the switches.
Names that begin with `DET_` are Determined's, with its meaning.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, MutableMapping

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
"""Set where the run belongs to a user's own batch script, which has no configuration."""
TRIAL_DIR = "DETSLURM_TRIAL_DIR"
"""The directory of the trial's `outputs`, the same in each of its runs."""
DEBUG = "DET_DEBUG"
EXPERIMENT_DIR = "DETSLURM_EXPERIMENT_DIR"
JOB = "DETSLURM_JOB"
"""The job that the environment was made for; sbatch hands it on to jobs submitted from inside."""
RUNNER = "DETSLURM_RUNNER"
"""Set in a runner: the jobs that it submits are its own experiment's, which has all that it has."""
PYTHONPATH = "DETSLURM_PYTHONPATH"
"""The user's PYTHONPATH: runners and node agents run without it, and the code gets it back."""

# -- a run: its node and its peers --
SLOT_IDS = "DET_SLOT_IDS"
UNIQUE_PORT_OFFSET = "DET_UNIQUE_PORT_OFFSET"
INTERFACE = "DET_INTER_NODE_NETWORK_INTERFACE"
CHIEF_IP = "DET_CHIEF_IP"
MANUAL_INIT = "DET_MANUAL_INIT_DISTRIBUTED"
GPU_UUIDS = "DETSLURM_GPU_UUIDS"
RENDEZVOUS = "DETSLURM_RENDEZVOUS"
RENDEZVOUS_PORT = "DETSLURM_RENDEZVOUS_PORT"
"""A port of the first node that is this run's alone."""
RUN_TOKEN = "DETSLURM_RUN_TOKEN"
"""With it the ranks of a run prove to each other that they belong to it; it is in no file."""
PREEMPT_FLAG = "DETSLURM_PREEMPT_FLAG"
"""The file that the ranks of a node have mapped to learn of a preemption."""
RECORD = "DETSLURM_RECORD"
"""The named pipe of a run with `record`, on its chief's node."""
RECORD_FROM = "DETSLURM_RECORD_FROM"
"""The trackers whose values are recorded, with commas between them."""
START_HOOKS = "DETSLURM_START_HOOKS"
"""The hooks of `exec/start_hooks` that each Python of the run begins, with commas between them."""
EXIT_LOG = "DETSLURM_EXIT_LOG"
"""The file where wrapped workers report their exit status to their launcher."""
DEEPSPEED_HOSTFILE = "DET_DEEPSPEED_HOSTFILE_PATH"
STEP_SERVER = "DETSLURM_STEP_SERVER"
"""Where the runner of this attempt listens: a name that only processes of its node can use."""
LIBRARIES = "DETSLURM_LIBRARIES"
"""Compiled modules for containers that lack them: a folder for each version of Python."""
CENTRAL_LIBRARY = "share/detslurm/library"
"""The same beside detslurm, in an installation for all users (see `central`)."""
CONTAINER_WORKDIR = "/run/determined/workdir"
"""The working directory in the containers of Determined, whose configurations may name it."""
CONTAINER = "DETSLURM_CONTAINER"
"""The words before a rank that is started outside of this node's container, as JSON."""
PUT_BACK = "DETSLURM_PUT_BACK"
"""Variables that mpirun must not see and its ranks have, as JSON."""

# -- switches of users and sites --
ROOT = "DETSLURM_ROOT"
SITE = "DETSLURM_SITE"
TRACK = "DETSLURM_TRACK"
TENSORBOARD_TAGS = "DETSLURM_TENSORBOARD_TAGS"
"""With the value `determined` TensorBoard's tags are Determined's."""
COMPAT = "DETSLURM_COMPAT"
TRANSPORT = "DETSLURM_TRANSPORT"
PEER_TIMEOUT = "DETSLURM_PEER_TIMEOUT"
JOIN_TIMEOUT = "DETSLURM_JOIN_TIMEOUT"
NOTICE_PREFIX = "DETSLURM_NOTICE_"
"""The facts of an event, for a command that sends its notice."""

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
    RECORD,
    START_HOOKS,
    CONTINUED_TRIAL,
    HPARAMS_CHANGED,
    TEST_MODE,
    OWN_SCRIPT,
    TRIAL_DIR,
    JOB,
    RUNNER,
)
"""How the variables begin that would give a process another run's identity."""
OF_A_JOB = ("SLURM_", "SLURMD_", "PMI", "OMPI_")
"""How those begin that would give a process another job's identity, or that of a rank in it."""
LOCATING = frozenset({"SLURM_CONF", "SLURM_CLUSTERS", "SLURM_CONF_SERVER"})
"""Those among them that belong to no job: where the cluster is."""
MPI_SETTINGS = ("OMPI_MCA_", "PMIX_MCA_")
"""How a site's or a user's settings of MPI begin; those of a rank are its launcher's."""
OF_A_RANK = frozenset({"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK"})
"""Variables that a launcher of MPI gives each of its ranks."""
OF_A_LAUNCHER = ("PET_", "TORCHELASTIC_", "MV2_COMM_WORLD_", "PALS_", "SUBMITIT_")
"""How the variables of other launchers begin; these are the others that make a process a rank:"""
ROLES = frozenset(
    {
        *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK", "CROSS_RANK"),
        *("GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK", "ROLE_NAME", "ROLE_WORLD_SIZE"),
        *("MASTER_ADDR", "MASTER_PORT", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", "TF_CONFIG"),
        *("HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE"),
        *("HOROVOD_CROSS_RANK", "HOROVOD_CROSS_SIZE", "HOROVOD_HOSTNAME", "HOROVOD_CONTROLLER"),
        *("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID"),
    }
)
DEVICES = frozenset(
    {
        *("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"),
        *("GPU_DEVICE_ORDINAL", "ZE_AFFINITY_MASK"),
    }
)
"""They select the devices that a process may use: a job has its own."""
COMPILER_CACHES = frozenset({"TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR"})
"""Compilers set them for themselves, in a directory of the job's."""
OF_A_TASK = frozenset(
    {
        *("SLURM_NTASKS", "SLURM_NPROCS", "SLURM_NTASKS_PER_NODE", "SLURM_TASKS_PER_NODE"),
        *("SLURM_PROCID", "SLURM_LOCALID", "SLURM_GTIDS", "SLURM_TASK_PID"),
        *("SLURM_STEP_ID", "SLURM_STEPID"),  # Open MPI 4 then wants srun's PMI, and aborts without
    }
)
"""They make a process the rank of an srun step; in a run's step the tasks are node agents."""

LONGEST_VALUE = 120 * 1024
"""Bytes of a value: Linux refuses an exec with one string of 128 KiB or more (MAX_ARG_STRLEN)."""


def job_of(env: Mapping[str, str]) -> str | None:
    """The job that an environment is of, Slurm's or the local cluster's; None outside of jobs."""
    local = [env.get(name, "") for name in (LOCAL_TAG, LOCAL_JOB_ID, LOCAL_TASK_ID)]
    return ".".join(local) if local[1] else env.get("SLURM_JOB_ID")


def task_and_allocation(
    experiment: int, trial: int, run: int, request_id: str | None
) -> tuple[str, str]:
    """Determined's names of a trial's task, and of the allocation of a run."""
    task = f"{experiment}.{request_id or trial}"
    return task, f"{task}.{run}"


def inheritable(env: Mapping[str, str], *more: str) -> dict[str, str]:
    """Return the variables that a new job inherits from the shell or job that submits it.

    A user's own variables pass, as with sbatch. Of those that give a process a place (in a job, in
    an MPI job, among the ranks of a launcher, on devices) only the allowed ones pass: where the
    cluster is, and how a site has set up MPI. Nothing passes that begins with `more`.
    """
    own = (*OF_A_JOB, RUNNER, *more)
    settings = MPI_SETTINGS if OF_A_RANK.isdisjoint(env) else ()
    types = () if "SLURM_JOB_ID" in env else ("SLURM_MPI_TYPE",)  # of srun
    is_own = "SLURM_JOB_ID" not in env or RUNNER in env
    place = DEVICES if is_own else DEVICES | COMPILER_CACHES

    def passes(name: str) -> bool:
        if name in LOCATING or name in types or name.startswith(settings):
            return True
        return not (name.startswith(own) or name in place or is_of_a_launcher(name))

    return _with_pythonpath({name: value for name, value in env.items() if passes(name)})


def is_of_a_launcher(name: str) -> bool:
    """Whether a variable makes its process a rank of some launcher."""
    return name in ROLES or name.startswith(OF_A_LAUNCHER)


def for_code(env: Mapping[str, str], *, is_rank: bool) -> dict[str, str]:
    """Return the variables that code inherits from its agent, whose step may have a TaskProlog.

    Its run, its launcher and its tasks are set afterwards, by those that know them. `is_rank`: the
    step has a task for each slot, so that the code may be a rank of it.
    """
    hidden: Collection[str] = () if is_rank else OF_A_TASK

    def passes(name: str) -> bool:
        return not (name.startswith(OF_A_RUN) or name in hidden or is_of_a_launcher(name))

    return _with_pythonpath({name: value for name, value in env.items() if passes(name)})


def _with_pythonpath(env: dict[str, str]) -> dict[str, str]:
    """The same with the PYTHONPATH that was put aside for detslurm's own processes."""
    aside = env.pop(PYTHONPATH, None)
    return env if aside is None else {**env, "PYTHONPATH": aside}


def is_inherited(env: Mapping[str, str]) -> bool:
    """Whether the run in an environment is the run of another job, which submitted this job."""
    job = env.get(JOB)
    return job is not None and job_of(env) not in (None, job)


def drop_inherited_run(env: MutableMapping[str, str]) -> None:
    """Remove what would give this process the identity of another job's run."""
    if is_inherited(env):
        for name in [name for name in env if name.startswith(OF_A_RUN)]:
            del env[name]

"""The configuration files of a cluster, rendered from its spec."""

from __future__ import annotations

import os
import pwd
import socket
from pathlib import Path

from tests.cluster.spec import ClusterSpec, Layout, Ports

DATABASE_PASSWORD = "cluster"
"""Guards nothing: the database listens on loopback and lives as long as the cluster."""


def this_user() -> str:
    """The account that runs the daemons."""
    return pwd.getpwuid(os.geteuid()).pw_name


def slurm_conf(spec: ClusterSpec, layout: Layout, ports: Ports) -> str:
    """The text of slurm.conf."""
    sections = (
        _daemons(spec, layout, ports),
        _scheduling(spec),
        _accounting(spec, layout, ports),
        _nodes(spec, ports),
        _partitions(spec),
        spec.extra,
    )
    return "".join(f"{line}\n" for section in sections for line in section)


def _daemons(spec: ClusterSpec, layout: Layout, ports: Ports) -> list[str]:
    user, var, log = this_user(), layout.var, layout.log
    return [
        f"ClusterName={spec.name}",
        f"SlurmctldHost={socket.gethostname().partition('.')[0]}(127.0.0.1)",
        f"SlurmUser={user}",
        f"SlurmdUser={user}",
        "AuthType=auth/munge",
        "CredType=cred/munge",
        # A requeued job waits for cred_expire + 1 s; Slurm's own default is two minutes.
        f"AuthInfo=socket={layout.munge_socket},cred_expire={spec.cred_expire}",
        f"SlurmctldPort={ports.controller}",
        # The ports of a run come from its job's id: other clusters' jobs have other ids.
        f"FirstJobId={ports.base}00",
        f"SlurmctldPidFile={layout.pid_file('slurmctld')}",
        f"SlurmdPidFile={layout.pid_file('slurmd.%n')}",
        f"StateSaveLocation={var}/ctld",
        f"SlurmdSpoolDir={layout.node_spool('%n')}",
        f"TmpFS={layout.node_tmp('%n')}",
        f"SlurmctldLogFile={log}/slurmctld.log",
        f"SlurmdLogFile={layout.node_log('%n')}",
        f"JobCompLoc={log}/jobcomp.txt",
        "JobCompType=jobcomp/filetxt",
        "SlurmctldDebug=info",
        "SlurmdDebug=info",
        "ProctrackType=proctrack/linuxproc",
        "TaskPlugin=task/none",
        "SwitchType=switch/none",
        "MpiDefault=none",
        "JobAcctGatherType=jobacct_gather/linux",
        "MailProg=/bin/true",
        "ReturnToService=2",
        "SlurmdParameters=config_overrides",
        "SlurmctldTimeout=30",
        f"SlurmdTimeout={spec.slurmd_timeout}",
        "BatchStartTimeout=10",
        "MessageTimeout=30",
        "InactiveLimit=0",
    ]


def _scheduling(spec: ClusterSpec) -> list[str]:
    scheduler = (
        "enable_user_top,preempt_youngest_first,batch_sched_delay=0,sched_min_interval=0,"
        "sched_interval=1,default_queue_depth=2000,bf_interval=1,bf_max_job_test=2000"
    )
    user_signal = ",preempt_send_user_signal" if spec.send_user_signal else ""
    return [
        "SelectType=select/cons_tres",
        "SelectTypeParameters=CR_Core_Memory",
        "DefMemPerCPU=100",
        "GresTypes=gpu",
        "SchedulerType=sched/backfill",
        f"SchedulerParameters={scheduler}",
        f"SlurmctldParameters=enable_user_top{user_signal}",
        "PriorityType=priority/multifactor",
        "PriorityWeightPartition=10000",
        "PreemptType=preempt/partition_prio",
        f"PreemptMode={spec.preempt_mode}",
        "JobRequeue=1",
        f"KillWait={spec.kill_wait}",
        f"MinJobAge={spec.min_job_age}",
        *(["JobSubmitPlugins=lua"] if spec.job_name_prefix else []),
        f"MaxArraySize={spec.max_array_size}",
        "MaxJobCount=60000",
    ]


def _accounting(spec: ClusterSpec, layout: Layout, ports: Ports) -> list[str]:
    if not spec.accounting:
        return ["AccountingStorageType=accounting_storage/none"]
    return [
        "AccountingStorageType=accounting_storage/slurmdbd",
        "AccountingStorageHost=127.0.0.1",
        f"AccountingStoragePort={ports.accounting}",
        f"AccountingStoragePass={layout.munge_socket}",
        "AccountingStorageTRES=gres/gpu",
        "AccountingStoreFlags=job_comment",
    ]


def _nodes(spec: ClusterSpec, ports: Ports) -> list[str]:
    gres = f" Gres=gpu:fake:{spec.gpus}" if spec.gpus else ""
    return [
        f"NodeName={name} NodeHostname=localhost NodeAddr=127.0.0.1 Port={ports.node(number)}"
        f" CPUs={spec.cpus} RealMemory={spec.memory} State=UNKNOWN{gres}"
        for number, name in enumerate(spec.node_names(), start=1)
    ]


def _partitions(spec: ClusterSpec) -> list[str]:
    return [
        f"PartitionName=DEFAULT Nodes=n[1-{spec.nodes}] State=UP MaxTime=INFINITE DefaultTime=60",
        "PartitionName=main Default=YES PriorityTier=10 PreemptMode=OFF",
        f"PartitionName=low PriorityTier=1 PreemptMode={spec.preempt_mode}"
        f" GraceTime={spec.grace_time}",
        "PartitionName=high PriorityTier=100 PreemptMode=OFF",
    ]


def gres_conf(spec: ClusterSpec, devices: str) -> str:
    """The text of gres.conf; `devices` are real character devices, else jobs see no GPU."""
    if not spec.gpus:
        return ""
    return f"NodeName=n[1-{spec.nodes}] Name=gpu Type=fake File={devices}[0-{spec.gpus - 1}]\n"


def job_submit_lua(spec: ClusterSpec) -> str:
    """The text of job_submit.lua: every job gets the site's prefix, also when it is renamed."""
    return f"""\
local function prefixed(name)
   return "{spec.job_name_prefix}" .. (name or "")
end

function slurm_job_submit(job, partitions, uid)
   job.name = prefixed(job.name)
   return slurm.SUCCESS
end

function slurm_job_modify(job, record, partitions, uid)
   return slurm.SUCCESS
end
"""


def hosts(spec: ClusterSpec, host: str) -> str:
    """The text of the node's /etc/hosts."""
    if spec.debian_hosts:
        return f"127.0.0.1\tlocalhost\n127.0.1.1\t{host}\n"
    return f"{Path('/etc/hosts').read_text()}\n127.0.0.1\t{host}\n"


def slurmdbd_conf(spec: ClusterSpec, layout: Layout, ports: Ports) -> str:
    """The text of slurmdbd.conf."""
    return f"""\
AuthType=auth/munge
AuthInfo=socket={layout.munge_socket}
DbdHost=localhost
DbdAddr=127.0.0.1
DbdPort={ports.accounting}
SlurmUser={this_user()}
LogFile={layout.log}/slurmdbd.log
PidFile={layout.pid_file("slurmdbd")}
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort={ports.database}
StorageLoc=slurm_{spec.name}
StorageUser=slurm
StoragePass={DATABASE_PASSWORD}
"""


def grants(spec: ClusterSpec) -> str:
    """The SQL that prepares the database for slurmdbd."""
    database = f"slurm_{spec.name}"
    lines = [f"create database if not exists {database};"]
    for host in ("127.0.0.1", "localhost"):
        lines.append(f"create user if not exists slurm@{host} identified by '{DATABASE_PASSWORD}';")
        lines.append(f"grant all on {database}.* to slurm@{host};")
    return "\n".join(lines)

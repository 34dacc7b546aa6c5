"""Slurm's reasons in plain words: all of them are known, and none is guessed."""

from __future__ import annotations

import pytest

from detslurm.slurm.queue_state import HELD_REASONS
from detslurm.slurm.reasons import reason_of

# What squeue of Slurm 22.05 to 26.05 can print for a job that waits.
_NAMES = """
AccountNotAllowed AccountingPolicy AssocGrpBB AssocGrpBBMinutes AssocGrpBBRunMinutes
AssocGrpBilling AssocGrpBillingMinutes AssocGrpBillingRunMinutes AssocGrpCPUMinutesLimit
AssocGrpCPURunMinutesLimit AssocGrpCpuLimit AssocGrpEnergy AssocGrpEnergyMinutes
AssocGrpEnergyRunMinutes AssocGrpGRES AssocGrpGRESMinutes AssocGrpGRESRunMinutes
AssocGrpJobsLimit AssocGrpLicense AssocGrpLicenseMinutes AssocGrpLicenseRunMinutes
AssocGrpMemLimit AssocGrpMemMinutes AssocGrpMemRunMinutes AssocGrpNodeLimit
AssocGrpNodeMinutes AssocGrpNodeRunMinutes AssocGrpSubmitJobsLimit AssocGrpUnknown
AssocGrpUnknownMinutes AssocGrpUnknownRunMinutes AssocGrpWallLimit AssocMaxBBMinutesPerJob
AssocMaxBBPerJob AssocMaxBBPerNode AssocMaxBillingMinutesPerJob AssocMaxBillingPerJob
AssocMaxBillingPerNode AssocMaxCpuMinutesPerJobLimit AssocMaxCpuPerJobLimit
AssocMaxCpuPerNode AssocMaxEnergyMinutesPerJob AssocMaxEnergyPerJob AssocMaxEnergyPerNode
AssocMaxGRESMinutesPerJob AssocMaxGRESPerJob AssocMaxGRESPerNode AssocMaxJobsLimit
AssocMaxLicenseMinutesPerJob AssocMaxLicensePerJob AssocMaxMemMinutesPerJob AssocMaxMemPerJob
AssocMaxMemPerNode AssocMaxNodeMinutesPerJob AssocMaxNodePerJobLimit AssocMaxSubmitJobLimit
AssocMaxUnknownMinutesPerJob AssocMaxUnknownPerJob AssocMaxUnknownPerNode
AssocMaxWallDurationPerJobLimit AssociationJobLimit AssociationResourceLimit
AssociationTimeLimit BadConstraints BeginTime BurstBufferOperation BurstBufferResources
BurstBufferStageIn Cleaning Constraints DeadLine Dependency DependencyNeverSatisfied
FedJobLock FrontEndDown InvalidAccount InvalidQOS JobArrayTaskLimit JobHeldAdmin
JobHeldUser JobHoldMaxRequeue JobLaunchFailure Licenses MaxBBPerAccount MaxBBRunMinsPerAccount
MaxBBRunMinsPerUser MaxBillingPerAccount MaxBillingRunMinsPerAccount MaxBillingRunMinsPerUser
MaxCpuPerAccount MaxCpuRunMinsPerAccount MaxCpuRunMinsPerUser MaxEnergyPerAccount
MaxEnergyRunMinsPerAccount MaxEnergyRunMinsPerUser MaxGRESPerAccount MaxGRESRunMinsPerAccount
MaxGRESRunMinsPerUser MaxJobsPerAccount MaxLicensePerAccount MaxLicenseRunMinsPerAccount
MaxLicenseRunMinsPerUser MaxMemPerLimit MaxMemoryPerAccount MaxMemoryRunMinsPerAccount
MaxMemoryRunMinsPerUser MaxNodePerAccount MaxNodeRunMinsPerAccount MaxNodeRunMinsPerUser
MaxPoweredUpNodes MaxSubmitJobsPerAccount MaxUnknownPerAccount MaxUnknownRunMinsPerAccount
MaxUnknownRunMinsPerUser MpiPortsBusy NodeDown None PartitionConfig PartitionDown
PartitionInactive PartitionNodeLimit PartitionTimeLimit PowerNotAvail PowerReserved Priority
Prolog QOSGrpBB QOSGrpBBMinutes QOSGrpBBRunMinutes QOSGrpBilling QOSGrpBillingMinutes
QOSGrpBillingRunMinutes QOSGrpCPUMinutesLimit QOSGrpCPURunMinutesLimit QOSGrpCpuLimit
QOSGrpEnergy QOSGrpEnergyMinutes QOSGrpEnergyRunMinutes QOSGrpGRES QOSGrpGRESMinutes
QOSGrpGRESRunMinutes QOSGrpJobsLimit QOSGrpLicense QOSGrpLicenseMinutes QOSGrpLicenseRunMinutes
QOSGrpMemLimit QOSGrpMemoryMinutes QOSGrpMemoryRunMinutes QOSGrpNodeLimit QOSGrpNodeMinutes
QOSGrpNodeRunMinutes QOSGrpSubmitJobsLimit QOSGrpUnknown QOSGrpUnknownMinutes
QOSGrpUnknownRunMinutes QOSGrpWallLimit QOSJobLimit QOSMaxBBPerJob QOSMaxBBPerNode
QOSMaxBBPerUser QOSMaxBillingMinutesPerJob QOSMaxBillingPerJob QOSMaxBillingPerNode
QOSMaxBillingPerUser QOSMaxCpuMinutesPerJobLimit QOSMaxCpuPerJobLimit QOSMaxCpuPerNode
QOSMaxCpuPerUserLimit QOSMaxEnergyMinutesPerJob QOSMaxEnergyPerJob QOSMaxEnergyPerNode
QOSMaxEnergyPerUser QOSMaxGRESMinutesPerJob QOSMaxGRESPerJob QOSMaxGRESPerNode
QOSMaxGRESPerUser QOSMaxJobsPerUserLimit QOSMaxLicenseMinutesPerJob QOSMaxLicensePerJob
QOSMaxLicensePerUser QOSMaxMemoryMinutesPerJob QOSMaxMemoryPerJob QOSMaxMemoryPerNode
QOSMaxMemoryPerUser QOSMaxNodeMinutesPerJob QOSMaxNodePerJobLimit QOSMaxNodePerUserLimit
QOSMaxSubmitJobPerUserLimit QOSMaxUnknownMinutesPerJob QOSMaxUnknownPerJob QOSMaxUnknownPerNode
QOSMaxUnknownPerUser QOSMaxWallDurationPerJobLimit QOSMinBB QOSMinBilling QOSMinCpuNotSatisfied
QOSMinEnergy QOSMinGRES QOSMinLicense QOSMinMemory QOSMinNode QOSMinUnknown QOSNotAllowed
QOSResourceLimit QOSTimeLimit QOSUsageThreshold ReqNodeNotAvail Reservation ReservationDeleted
ReservationInvalid Resources SchedDefer SystemFailure
"""
EVERY = _NAMES.split()

HELD = {
    "JobHeldAdmin",
    "JobHeldUser",
    "JobHoldMaxRequeue",
    "ReservationDeleted",
    "ReservationInvalid",
    "job requeued in held state",
    "launch failed requeued held",
    "user env retrieval failed requeued held",
}


def test_every_reason_of_slurm_is_known() -> None:
    """Each has words of its own, short enough for a table, and says which kind it is."""
    for code in EVERY:
        found = reason_of(code)
        assert found.code == code
        assert found.short != code and len(found.short) <= 36, code
        assert not found.sentence[0].isupper() and not found.sentence.endswith("."), code


def test_what_waits_for_a_release_is_held_and_nothing_else() -> None:
    """The table and the queue agree on which jobs are held."""
    assert {code for code in (*EVERY, *HELD) if reason_of(code).category == "held"} == HELD
    assert HELD == HELD_REASONS


@pytest.mark.parametrize(
    ("text", "category", "part"),
    [
        ("QOSMaxGRESPerUser", "quota", "a limit of its QOS for all jobs of a user (GPUs)"),
        ("AssocGrpGRES", "quota", "a limit of its account for all its jobs (GPUs)"),
        ("AssocMaxJobsLimit", "quota", "a limit of its account for a user (jobs)"),
        ("QOSGrpCPUMinutesLimit", "quota", "exceeds what its QOS still has (minutes of CPUs)"),
        ("QOSGrpCPURunMinutesLimit", "quota", "a limit of its QOS for all its jobs"),
        ("AssocMaxWallDurationPerJobLimit", "quota", "more than its account grants a job (wall"),
        ("QOSMaxCpuPerNode", "quota", "more than its QOS grants a node (CPUs)"),
        ("QOSMinCpuNotSatisfied", "quota", "less than its QOS requires (CPUs)"),
        ("MaxGRESRunMinsPerAccount", "quota", "for all jobs of an account (minutes of GPUs)"),
        ("ReqNodeNotAvail, UnavailableNodes:n[1-3],x9", "resources", "down, drained or reserved"),
        ("ReqNodeNotAvail,_May_be_reserved_for_other_job", "resources", "drained or reserved"),
        (
            "Nodes_required_for_job_are_DOWN,_DRAINED_or_reserved_for_jobs_in_higher_priority_pa",
            "resources",
            "down, drained or reserved",
        ),
        ("launch_failed_requeued_held", "held", "nodes could not start it"),
        ("job requeued in held state", "held", "held"),
        ("Reservation_maint1_was_deleted", "held", "reservation is gone"),
        ("Reservation my_nodes was deleted", "held", "reservation is gone"),
        ("burst_buffer/lua: stage-in failed", "other", "burst buffer failed"),
        ("JobArrayTaskLimit", "quota", "own limit on trials"),
        ("Dependency,JobArrayTaskLimit", "dependency", "another job"),
        ("", "other", "not considered yet"),
    ],
)
def test_reasons_in_words(text: str, category: str, part: str) -> None:
    """Families of limits, descriptions and lists are told in the same way."""
    found = reason_of(text)
    assert found.category == category and part in found.sentence


def test_what_would_never_start_is_marked() -> None:
    """Waiting does not help a job that is too large for its limits, or held."""
    never = {"BadConstraints", "PartitionTimeLimit", "QOSMaxGRESPerJob", "DependencyNeverSatisfied"}
    assert all(reason_of(code).permanent and reason_of(code).remedy for code in never | HELD)
    assert not any(reason_of(code).permanent for code in ("Priority", "AssocGrpGRES", "BeginTime"))


def test_an_unknown_reason_keeps_slurms_own_word() -> None:
    """A newer Slurm may have others: nothing is made up about them."""
    found = reason_of("QuantumDecoherence")
    assert (found.category, found.code) == ("other", "QuantumDecoherence")
    assert "does not know" in found.sentence
    assert not found.permanent and not found.remedy

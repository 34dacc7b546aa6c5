"""Determined's configurations with images, as people publish them, at a site with Charliecloud."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.desk import Desk

pytestmark = [pytest.mark.cluster, pytest.mark.xdist_group("containers")]

# A shell script by the container's path, which goes on from there to data below other paths.
SCRIPT = """\
    name: fine-tune
    environment:
      image: determinedai/environments:py-3.10-pytorch-2.0-cpu
      force_pull_image: false
      environment_variables:
        - HF_HOME=/run/determined/workdir/shared_fs
        - PYTHONPATH=/run/determined/workdir/src
      add_capabilities: [IPC_LOCK]
      registry_auth: {{username: me, password: secret}}
    bind_mounts:
      - {{host_path: {home}/dataset, container_path: /media/dataset, read_only: true}}
      - {{host_path: {home}/cache, container_path: /run/determined/workdir/shared_fs}}
    resources: {{slots_per_trial: 1, shm_size: 4294967296}}
    entrypoint: bash /run/determined/workdir/run.sh --data /media/dataset/train.txt
    searcher: {{name: single, metric: loss, max_length: {{batches: 1}}}}
    max_restarts: 0
    """
RUN_SH = """\
    set -e
    cd /run/determined/workdir
    test -f hooked
    python3 src/train.py "$@" --cache "$HF_HOME"
    """
# An image and variables for each type of slot, and data below a path that a hyperparameter names.
BY_SLOT_TYPE = """\
    name: grid
    environment:
      image:
        cpu: determinedai/environments:py-3.10-pytorch-2.0-cpu
        cuda: determinedai/environments:cuda-11.8-pytorch-2.0-gpu
      environment_variables: {{cpu: [KIND=cpu], cuda: [KIND=cuda]}}
    bind_mounts:
      - {{host_path: {home}/dataset, container_path: /data, propagation: rprivate}}
      - {{host_path: {home}/cache, container_path: cache}}
    hyperparameters:
      data_dir: /data
      scale: {{type: categorical, vals: [1, 2]}}
    entrypoint: [python3, /run/determined/workdir/src/train.py, --cache, cache]
    searcher: {{name: grid, metric: loss, max_length: {{batches: 1}}}}
    """
# Adds the numbers of the data, and leaves a file in the cache.
TRAIN = """\
    import argparse, os, pathlib
    import determined as det
    import helper

    parser = argparse.ArgumentParser()
    parser.add_argument("--data")
    parser.add_argument("--cache", type=pathlib.Path)
    args = parser.parse_args()
    hparams = det.get_cluster_info().trial.hparams
    data = pathlib.Path(args.data or f"{hparams['data_dir']}/train.txt")
    (args.cache / f"{os.environ.get('KIND', 'none')}-{hparams.get('scale', 0)}").touch()
    loss = helper.total(data.read_text()) * hparams.get("scale", 1)
    with det.core.init() as core:
        core.train.report_validation_metrics(1, {"loss": loss})
    """
HELPER = """\
    def total(text):
        return float(sum(map(int, text.split())))
    """


def test_determineds_configurations_run_unmodified(
    desk: Desk, image: Path, charliecloud: None
) -> None:
    """Only the site's profile knows of Charliecloud, and where images are."""
    home = desk.user.cwd
    assert home is not None
    images = home / "images"
    desk.write("images/determinedai/README", "by name and tag")
    (images / "determinedai" / "environments:py-3.10-pytorch-2.0-cpu").symlink_to(image)
    desk.write("dataset/train.txt", "1 2 3")
    desk.write("cache/README", "written to")
    profile = f"container: charliecloud\nimage_root: {images}\nslot_type: cpu\n"
    desk.user.env["DETSLURM_SITE"] = str(desk.write("site.yaml", profile))
    desk.write("project/src/train.py", TRAIN)
    desk.write("project/src/helper.py", HELPER)
    desk.write("project/run.sh", RUN_SH)
    desk.write("project/startup-hook.sh", "touch /run/determined/workdir/hooked")
    numbers = [
        desk.submit(desk.write(f"project/{name}.yaml", text.format(home=home)))
        for name, text in (("script", SCRIPT), ("grid", BY_SLOT_TYPE))
    ]
    losses = []
    for number in numbers:
        desk.wait_for_state(number, "COMPLETED", "ERROR")
        for index, trial in enumerate(desk.view(number).trials):
            assert desk.outcomes(number, index) == ["completed"], desk.log(number, index)
            assert "working directory: hooked. To keep" in desk.log(number, index)  # not `cache`
            assert trial.best_validation is not None
            losses.append(trial.best_validation.metrics["loss"])
    assert sorted(losses) == [6.0, 6.0, 12.0]
    written = {path.name for path in (home / "cache").iterdir()}
    assert written == {"README", "none-0", "cpu-1", "cpu-2"}

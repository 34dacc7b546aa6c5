"""An image is tried in a job by `doctor --container`, and recorded by the runs that use it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.cluster import Cluster, has_pmix, wait_for
from tests.containers import leftovers
from tests.e2e.desk import PATIENCE, Desk
from tests.envelope import unwrap

pytestmark = pytest.mark.cluster


def doctor(desk: Desk, image: Path | str, *options: str) -> dict[str, list[tuple[str, str]]]:
    """Level and text of the findings by area; nothing of the job is left in the store."""
    site = desk.write("site.yaml", "container: charliecloud\nslot_type: cpu\n")
    done = desk.run(
        "doctor", "--container", str(image), *options, "--json",
        check=False, env={"DETSLURM_SITE": str(site)},
    )  # fmt: skip
    document: dict[str, Any] = unwrap(done.stdout)
    assert (done.returncode == 0) == document["healthy"], done.stderr
    found: dict[str, list[tuple[str, str]]] = {}
    for one in document["findings"]:
        found.setdefault(one["area"], []).append((one["level"], one["text"]))
    assert not list(desk.store.path.glob("doctor-*"))
    return found


@pytest.mark.usefixtures("charliecloud")
def test_images_with_and_without_python(desk: Desk, slurm: Cluster, image: Path) -> None:
    """A good image has all that code needs; an image that has lost its Python is named broken, and
    so is an image that does not exist, with the runtime's own words."""
    found = doctor(desk, image)
    levels = {level for findings in found.values() for level, _ in findings}
    assert levels <= {"ok", "note"}, found
    assert "ch-run" in found["runtime"][0][1]
    assert [text.split()[0] for _, text in found["python"]] == ["Python", "detslurm"]
    assert found["mounts"] == [("ok", "writable inside: store, HOME, TMPDIR")]
    assert found["mpi"][0][0] == ("ok" if has_pmix() else "note")
    wait_for(lambda: not slurm.queued(desk.user.name), PATIENCE, "the end of the job")

    assert desk.user.cwd is not None
    bare = desk.user.cwd / "bare"
    desk.user.run("cp", "-a", str(image), str(bare))
    for path in (bare / "usr" / "bin").glob("python3*"):
        path.unlink()
    ((level, text),) = doctor(desk, bare)["python"]
    assert level == "broken" and "python3" in text and "not found" in text

    ((level, text),) = doctor(desk, image.with_name("missing"))["image"]
    assert level == "broken" and "can't stat" in text


@pytest.mark.usefixtures("podman")
@pytest.mark.nightly
def test_podman_is_tried(desk: Desk, slurm: Cluster, podman_image: str) -> None:
    """It has digest and id of the image, and leaves no container."""
    found = doctor(desk, podman_image, "--runtime", "podman")
    levels = {level for findings in found.values() for level, _ in findings}
    assert levels <= {"ok", "note"}, found
    assert f"{podman_image} (sha256:" in found["image"][0][1]
    wait_for(lambda: not leftovers(slurm, desk.user), PATIENCE, "nothing left of the container")


@pytest.mark.usefixtures("charliecloud")
def test_the_record_of_a_run_has_its_image(desk: Desk, image: Path) -> None:
    """Found below image_root; `compare` shows that another experiment ran without it. Whoever gets
    the experiment as a bundle sees it, too."""
    contained = (f"environment.image={image.name}", f"slurm.image_root={image.parent}")
    project = desk.project("print('done')")
    numbers = [
        desk.submit(project, "slurm.container=charliecloud", *contained),
        desk.submit(project),
    ]
    for number in numbers:
        desk.wait_for_state(number, "COMPLETED", "ERROR")
    desk.run("e", "bundle", str(numbers[0]), "-o", "bundle.tar.gz")
    elsewhere = {"DETSLURM_ROOT": f"{desk.store.path}-elsewhere"}
    desk.run("import", "bundle.tar.gz", env=elsewhere)
    record = unwrap(desk.run("e", "provenance", str(numbers[0]), "--json").stdout)
    taken = unwrap(desk.run("e", "provenance", "1", "--json", env=elsewhere).stdout)
    assert taken["hardware"] == record["hardware"]
    (node,) = record["hardware"].values()
    assert node["image"].startswith(f"{image} (modified 20")
    assert f"image {image}" in desk.run("e", "provenance", str(numbers[0])).stdout
    compared = unwrap(desk.run("compare", *map(str, numbers), "--json").stdout)
    assert str(image) in str(compared["environment"]["image"])

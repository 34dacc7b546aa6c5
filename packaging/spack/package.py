# For a repository of your own: REPOSITORY/packages/py_detslurm/package.py (Spack 1.0), then
# `make dist`, `spack mirror add`, or `spack develop py-detslurm`.
from spack.package import *
from spack_repo.builtin.build_systems.python import PythonPackage


class PyDetslurm(PythonPackage):
    """Experiments, search and preemptible training on Slurm, with no server."""

    pypi = "detslurm/detslurm-0.1.0.tar.gz"

    license("Apache-2.0", checked_by="detslurm")

    # `make dist` prints the digest of the sdist: version("0.1.0", sha256="...")
    version("0.1.0")

    depends_on("python@3.11:", type=("build", "run"))
    depends_on("py-setuptools@70:", type="build")
    depends_on("py-click@8.1:", type=("build", "run"))
    depends_on("py-h5py@3.10:", type=("build", "run"))
    depends_on("py-humanize@4.9:", type=("build", "run"))
    depends_on("py-msgspec@0.21:", type=("build", "run"))
    depends_on("py-pathspec@0.12:", type=("build", "run"))
    depends_on("py-pyyaml@6:", type=("build", "run"))
    depends_on("py-rich@13.7:", type=("build", "run"))
    depends_on("py-submitit@1.5:1", type=("build", "run"))

    import_modules = ["detslurm", "detslurm.sdk"]

"""The store's conformance suite; DETSLURM_TEST_STORE names a directory on another file system."""

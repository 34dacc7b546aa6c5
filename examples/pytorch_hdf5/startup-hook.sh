# Runs on every node before the entrypoint, in the node's own copy of this directory. A large file
# would be made once and lie on the shared filesystem; its path would be `data.file`.
[ -e mnist.h5 ] || python3 make_data.py mnist.h5

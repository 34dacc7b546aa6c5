"""How the ranks of a trial reach each other: local IPC, TCP or MPI, behind one small interface.

Ranks form stars: the processes of a node around their local chief, the local chiefs around the
chief. A star knows nothing of what its links are made of; see `link.Link` and `link.Control`.

Local IPC and TCP are one implementation over stream sockets. pyzmq, which Determined uses, hides
the connections, so that a dead peer goes unnoticed.
"""

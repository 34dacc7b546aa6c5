"""How the ranks of a trial reach each other: local IPC, TCP or MPI, behind one small interface.

Ranks form communicators, stars in their topology: the processes of a node around their local chief,
the local chiefs around the chief. A `link.Communicator` does not know the medium of its links.

Local IPC and TCP are one implementation over stream sockets. pyzmq, which Determined uses, hides
the connections, so that a dead peer goes unnoticed.
"""

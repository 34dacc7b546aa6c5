"""Users as Determined's scripts know them: those of the cluster, by their names."""

from __future__ import annotations

import os


class User(str):
    """The name of a user of the cluster, as text that has Determined's attributes."""

    __slots__ = ()

    @property
    def username(self) -> str:
        """The name, as plain text."""
        return str(self)

    @property
    def user_id(self) -> int | None:
        """The number by which file systems know the user; None if this machine does not know it."""
        import pwd

        try:
            return pwd.getpwnam(self).pw_uid
        except KeyError:
            return None

    @property
    def display_name(self) -> str:
        """The person's name, as far as this machine knows it; else the user's."""
        import pwd

        try:
            return pwd.getpwnam(self).pw_gecos.partition(",")[0] or str(self)
        except KeyError:
            return str(self)


def current() -> User:
    """The user who runs this; an account without a name has its number."""
    import pwd

    try:
        return User(pwd.getpwuid(os.geteuid()).pw_name)
    except KeyError:
        return User(os.geteuid())

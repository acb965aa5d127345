"""Access file (docs/security.md): roles of readers, and the environments that they may see.

A reader in several groups has the rights of all of them. `default` applies to readers in no group, and `token` to readers and
programs with the shared token. Without the file every reader may do everything.

If a group has members of Slack, the buttons in Slack need the role too. Otherwise all members of a channel may use them.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Literal

from pydantic import Field

from ..core.errors import StagelensError
from ..core.settings.field_types import Text, Texts
from ..core.settings.live_file import LiveFile, read_file
from ..core.settings.section import Fault, Section

Role = Literal["viewer", "responder", "admin"]
# A role includes the rights of the roles before it.
ROLES: tuple[Role, ...] = ("viewer", "responder", "admin")
ALL = "*"
_EXAMPLE = """\
groups:
  - {name: sre, role: admin, users: [ada]}
default: {role: viewer, environments: [staging]}
"""
# https://docs.slack.dev/reference/objects/user-object: id
_SLACK_ID = re.compile(r"[UW][A-Z0-9]{2,40}")
# Maximum number of people named in an error as able to grant a role.
_MAX_NAMED = 3


class ForbiddenError(StagelensError):
    """The reader lacks the role for an action; the text names the role and the people who can grant it."""


@dataclass(frozen=True, slots=True)
class Grant:
    """Role in some environments."""

    role: Role
    environments: frozenset[str] | None = None

    def covers(self, environments: frozenset[str] | None, role: Role) -> bool:
        if ROLES.index(self.role) < ROLES.index(role):
            return False
        return self.environments is None or (environments is not None and environments <= self.environments)


@dataclass(frozen=True)
class ReaderAccess:
    grants: frozenset[Grant]
    grantors: str = ""

    @cached_property
    def environments(self) -> frozenset[str] | None:
        if any(grant.environments is None for grant in self.grants):
            return None
        return frozenset[str]().union(*(grant.environments or () for grant in self.grants))

    @property
    def is_admin(self) -> bool:
        """Whether the reader may see the settings, the collectors and the audit log."""
        return any(grant.role == "admin" for grant in self.grants)

    @cached_property
    def key(self) -> str:
        rights = sorted(
            (grant.role, sorted(grant.environments or ()), grant.environments is None) for grant in self.grants
        )
        return hashlib.sha256(repr((rights, self.grantors)).encode()).hexdigest()[:16]

    def allows(self, environments: frozenset[str] | None, role: Role = "viewer") -> bool:
        if any(grant.covers(environments, role) for grant in self.grants):
            return True
        # Several grants may cover the environments together.
        return bool(environments) and all(
            any(grant.covers(frozenset({name}), role) for grant in self.grants) for name in environments or ()
        )

    def require(self, environments: frozenset[str] | None, role: Role) -> None:
        if self.allows(environments, role):
            return
        names = sorted(environments or ())
        where = "all environments" if not names else f"the environment{'s' * (len(names) > 1)} {_listed(names)}"
        msg = f"this needs the role {role} in {where}; {self.grantors} can grant it"
        raise ForbiddenError(msg)

    def require_admin(self) -> None:
        if not self.is_admin:
            msg = f"this needs the role admin; {self.grantors} can grant it"
            raise ForbiddenError(msg)


EVERYTHING = ReaderAccess(frozenset({Grant("admin")}))


class _RoleSection(Section):
    example = "role: viewer"

    role: Literal["none", "viewer", "responder", "admin"] = Field(examples=["viewer"])
    environments: Texts = Field(default=(ALL,), examples=["[prod, staging]"])

    def faults(self) -> Iterator[Fault]:
        if ALL in self.environments and len(self.environments) > 1:
            yield Fault("environments", f'has {ALL} and names; write "{ALL}" alone, or names')
        if self.role == "admin" and ALL not in self.environments:
            yield Fault("environments", "has names, but admins see all environments; remove it, or use responder")

    @property
    def grants(self) -> frozenset[Grant]:
        if self.role == "none":
            return frozenset()
        return frozenset({Grant(self.role, None if ALL in self.environments else frozenset(self.environments))})


class _GroupSection(_RoleSection):
    example = "name: sre"

    name: Text = Field(examples=["sre"])
    users: Texts = Field(default=(), examples=["[ada, bob]"])
    proxy_groups: Texts = Field(default=(), examples=["[oncall]"])
    slack: Texts = Field(default=(), examples=["[U061F7AUR]"])

    def faults(self) -> Iterator[Fault]:
        yield from super().faults()
        if not self.users and not self.proxy_groups and not self.slack:
            yield Fault("", "has no members; add `users: [ada]`, or `proxy_groups: [oncall]`")
        for name in self.slack:
            if not _SLACK_ID.fullmatch(name):
                fix = (
                    "write the member ID of the person's Slack profile, such as U061F7AUR, because names can be changed"
                )
                yield Fault("slack", f"has {name!r}; {fix}")


class _AccessFile(Section):
    example = "groups: [{name: sre, role: admin, users: [ada]}]"

    default: _RoleSection = Field(default=_RoleSection(role="none"), examples=["{role: viewer}"])
    token: _RoleSection | None = Field(default=None, examples=["{role: responder}"])
    groups: tuple[_GroupSection, ...] = Field(default=(), examples=["[{name: sre, role: admin, users: [ada]}]"])

    def faults(self) -> Iterator[Fault]:
        seen: set[str] = set()
        for number, group in enumerate(self.groups):
            if group.name in seen:
                yield Fault(("groups", number, "name"), f"is {group.name!r} a second time; merge both groups")
            seen.add(group.name)
        if not any(section.role == "admin" for section in (*self.groups, self.default, self.token) if section):
            yield Fault("groups", "has no group with the role admin; admins see the audit log, so add one")


@dataclass(frozen=True)
class AccessRules:
    """Content of an access file."""

    file: Path
    groups: tuple[_GroupSection, ...]
    default: frozenset[Grant]
    token: frozenset[Grant]

    def __str__(self) -> str:
        return f"{len(self.groups)} group{'s' * (len(self.groups) != 1)}"

    def access(self, name: str, proxy_groups: Sequence[str], *, by_token: bool) -> ReaderAccess:
        grants = [
            group.grants
            for group in self.groups
            if (name and name in group.users) or not set(proxy_groups).isdisjoint(group.proxy_groups)
        ]
        other = self.token if by_token else self.default
        return ReaderAccess(frozenset[Grant]().union(*grants) if grants else other, self._grantors)

    def slack_access(self, member: str) -> ReaderAccess:
        """Return the rights of the Slack user with the id *member*; all rights if no group has members of Slack."""
        if not any(group.slack for group in self.groups):
            return EVERYTHING
        grants = [group.grants for group in self.groups if member in group.slack]
        return ReaderAccess(frozenset[Grant]().union(*grants) if grants else self.default, self._grantors)

    @cached_property
    def _grantors(self) -> str:
        admins = [group for group in self.groups if group.role == "admin"]
        names = [name for group in admins for name in group.users] or [f"the group {group.name}" for group in admins]
        return _listed(names, "or") or f"an editor of {self.file}"


class LiveAccess:
    """Rights from a file that is reloaded on change; while the file is invalid, its last valid version stays in force."""

    def __init__(self, path: Path | None, clock: Callable[[], datetime]) -> None:
        self._clock = clock
        self.file: LiveFile[AccessRules] = LiveFile(path, read_access_file)
        if path is not None:
            # Without valid rules from the start, the dashboard would refuse all readers.
            read_access_file(path)
        self.file.refresh(clock())

    def of(self, name: str, proxy_groups: Sequence[str] = (), *, by_token: bool = False) -> ReaderAccess:
        """Return the current rights of a reader, see `AccessRules.access`."""
        return self._of(lambda rules: rules.access(name, proxy_groups, by_token=by_token))

    def of_slack(self, member: str) -> ReaderAccess:
        """Return the current rights of a Slack user, see `AccessRules.slack_access`."""
        return self._of(lambda rules: rules.slack_access(member))

    def _of(self, rights: Callable[[AccessRules], ReaderAccess]) -> ReaderAccess:
        if self.file.path is None:
            return EVERYTHING
        self.file.refresh(self._clock())
        rules = self.file.current
        return ReaderAccess(frozenset()) if rules is None else rights(rules)


def read_access_file(path: Path) -> AccessRules:
    access_file = read_file(path, "an access file", _EXAMPLE, _AccessFile)
    default = access_file.default.grants
    return AccessRules(
        path, access_file.groups, default, default if access_file.token is None else access_file.token.grants
    )


def _listed(names: Sequence[str], word: str = "and") -> str:
    """Return *names* as text, at most `_MAX_NAMED` of them.

    >>> _listed(["ada", "bob", "eve", "joe"], "or")
    'ada, bob, eve or 1 other'
    """
    if len(names) > _MAX_NAMED:
        more = len(names) - _MAX_NAMED
        return f"{', '.join(names[:_MAX_NAMED])} {word} {more} other{'s' * (more > 1)}"
    return f" {word} ".join(part for part in (", ".join(names[:-1]), *names[-1:]) if part)

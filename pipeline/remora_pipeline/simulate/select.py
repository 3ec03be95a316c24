"""Model `select`: the class and the groups of a shard's next listing."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from remora.model.errors import ConfigError
from remora.model.traffic import (
    Principal,
    PrincipalKind,
    Scope,
    ScopeKind,
    TrafficClass,
    check_principals,
    check_scopes,
    class_from,
)
from remora.policy.shaping.classes import BehindFrom, Parties, class_of, groups_of, highest_class
from remora_pipeline.simulate.checks import at_least, not_negative, one_of
from remora_pipeline.simulate.form import Optional, flag, listed, members, named, number, or_null, text, whole
from remora_pipeline.simulate.script import Form

STATES = ("tail", "backlog", "unknown")


class SelectModel:
    """The operator's classes, principals and scopes."""

    def __init__(self, config: SimpleNamespace) -> None:
        self._default = class_from(config.default_class, "default_class")
        not_negative(backlog_age=config.backlog_age, relief_at=config.relief_at)
        at_least(1, backlog_entries=config.backlog_entries)
        if config.relief_at > 100:
            raise ConfigError("relief_at", "must be at most 100")
        self._behind = BehindFrom(config.backlog_age, config.backlog_entries)
        self._relief_at = config.relief_at
        self._principals = [
            Principal(
                each.name,
                tuple(each.match),
                class_from(each.max_class, f"principals.{each.name}.max_class"),
                PrincipalKind(one_of(each.of, list(PrincipalKind), f"principals.{each.name}.of")),
            )
            for each in config.principals
        ]
        check_principals(self._principals, "principals")
        self._scopes = [
            Scope(
                each.name,
                ScopeKind(one_of(each.of, list(ScopeKind), f"scopes.{each.name}.of")),
                tuple(each.match),
                each.each,
            )
            for each in config.scopes
        ]
        check_scopes(self._scopes, "scopes")

    def step(self, op: str, given: SimpleNamespace) -> dict[str, Any]:
        """Choose for one listing; or say what one that has come shows."""
        if op == "state":
            not_negative(newest_age=given.newest_age, entries=given.entries)
            behind = self._behind.has_backlog(
                truncated=given.truncated, newest_age_s=given.newest_age, waiting=given.entries or 0
            )
            return {"state": "backlog" if behind else "tail"}
        one_of(given.state, STATES, "state")
        not_negative(full=given.full)  # null: unknown, and then no reason for relief
        label = f"{given.tenant}:{given.topic}" if given.tenant else given.topic
        addresses = {name: tuple(each) for name, each in given.addresses.items()}
        parties = Parties(
            label, given.tenant, given.destination, given.owner, given.certificate, tuple(given.tokens), addresses
        )
        chosen: TrafficClass = class_of(
            highest_class(parties, self._principals, self._default, given.asked),
            at_tail=given.state == "tail",
            full=given.full or 0,
            relief_at=self._relief_at,
            may_relieve=given.full is not None,
        )
        return {
            "class": str(chosen),
            "priority": str(chosen.priority),
            "groups": groups_of(self._scopes, parties),
        }


FORM = Form(
    config=members(
        default_class=Optional(text, "tail"),
        backlog_age=Optional(number, 5),
        backlog_entries=Optional(whole, 1000),
        relief_at=Optional(number, 80),
        principals=Optional(
            listed(members(name=text, match=listed(text), max_class=text, of=Optional(text, "topic"))), []
        ),
        scopes=Optional(
            listed(members(name=text, of=text, match=Optional(listed(text), ["*"]), each=Optional(flag, True))), []
        ),
    ),
    ops={
        "select": members(
            topic=text,
            tenant=Optional(text, ""),
            destination=Optional(text, ""),
            owner=Optional(text, ""),
            certificate=Optional(text, ""),
            tokens=Optional(listed(text), []),
            addresses=Optional(named(listed(text)), {}),
            asked=Optional(or_null(text), ""),
            state=Optional(text, "unknown"),
            full=Optional(or_null(number), None),
        ),
        "state": members(
            truncated=flag, newest_age=Optional(or_null(number), None), entries=Optional(or_null(whole), None)
        ),
    },
    begin=SelectModel,
)

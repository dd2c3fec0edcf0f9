"""`dlspark acl ...`: who may do what with logs, through proxies: the rules of access that a namespace keeps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, TextIO

import typer

from dlspark.cli.common import At, Json, YesOption, confirm, exit_with, over_namespace, table
from metadata.foundation.errors import CallerError
from metadata.foundation.plurals import counted

if TYPE_CHECKING:
    from dlspark.core.namespace import AsyncNamespace
    from metadata.distributedlog.permissions import Action
    from metadata.distributedlog.rights_store import RightsStore
    from metadata.security.rights import Decision, LogPattern, Rule, RuleSet, Verb

EffectArgument = Annotated[
    str, typer.Argument(metavar="allow|deny", help="What is denied is refused, whatever else is allowed.")
]
WhoArgument = Annotated[
    str, typer.Argument(metavar="WHO", help="user:NAME, role:NAME, or * for everybody who has proved who they are.")
]
VerbsArgument = Annotated[
    str,
    typer.Argument(
        metavar="VERBS", help="Of read, write, truncate, create, delete, administer, with commas between; or all."
    ),
]
LogsArgument = Annotated[
    str,
    typer.Argument(
        metavar="LOGS", help="A log's name; with * behind it, which the shell must not see, names that begin so."
    ),
]
FileArgument = Annotated[
    typer.FileText, typer.Argument(metavar="FILE", help="JSON, as list prints it; - reads from standard input.")
]
LiteralOption = Annotated[bool, typer.Option("--literal", help="LOGS is a log's name as it stands, a * in it as well.")]


def _rights(namespace: AsyncNamespace) -> RightsStore:
    from metadata.distributedlog.rights_store import RightsStore

    return RightsStore(namespace.store, namespace.uri.path)


def _pattern(logs: str, literal: bool) -> LogPattern:
    from metadata.distributedlog.log_names import validate_name
    from metadata.security.rights import LogPattern

    pattern = LogPattern(logs) if literal else LogPattern.parse(logs)
    if not pattern.prefix:
        validate_name(pattern.text)  # a rule on what can be no log would look as if it did something
    return pattern


def _rule(effect: str, who: str, verbs: str, logs: str, literal: bool) -> Rule:
    from metadata.security.rights import ALL_VERBS, Rule, Subject, Verb

    if effect not in ("allow", "deny"):
        raise CallerError(f"{effect!r} is neither allow nor deny", advice="Write allow or deny first")
    chosen = ALL_VERBS if verbs.strip() == "all" else frozenset(map(Verb.parse, verbs.split(",")))
    return Rule(effect == "allow", Subject.parse(who), chosen, _pattern(logs, literal))


def _as_json(rule: Rule) -> dict[str, Json]:
    from metadata.security.rights import Verb

    verbs: list[Json] = [verb.value for verb in Verb if verb in rule.verbs]
    return {"effect": rule.effect, "who": str(rule.who), "verbs": verbs, "logs": str(rule.logs)}


def _result(at: At, rules: RuleSet, changed: bool, note: str) -> None:
    """Print what a change has come to."""
    shown: list[Json] = [_as_json(rule) for rule in rules]
    at.result({"changed": changed, "rules": shown}, f"{note}; rules: {len(rules)}")


def _rules_in(file: TextIO) -> RuleSet:
    """Return the rules of a file. Raises CallerError."""
    import json

    from metadata.security.rights import RuleSet

    try:
        given = json.load(file)["rules"]
        return RuleSet.of(
            _rule(one["effect"], one["who"], ",".join(one["verbs"]), one["logs"], literal=False) for one in given
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CallerError(
            f"that is not a list of rules: {error!r}", advice="Give what dlspark acl list --output json prints"
        ) from error


@over_namespace
async def list_rules(
    at: At,
    who: Annotated[str | None, typer.Option("--who", help="Only rules for this user:NAME, role:NAME or *.")] = None,
    log: Annotated[str | None, typer.Option("--log", help="Only rules that concern this log.")] = None,
) -> None:
    """List the rules of access, denials first."""
    from metadata.security.rights import Subject

    subject = Subject.parse(who) if who is not None else None
    async with at.open() as namespace:
        rules = await _rights(namespace).read()
    found = [
        rule for rule in rules if (subject is None or rule.who == subject) and (log is None or rule.logs.matches(log))
    ]
    shown = [_as_json(rule) for rule in found]
    cells = [(one["effect"], one["who"], ",".join(map(str, one["verbs"])), one["logs"]) for one in shown]  # type: ignore[arg-type]
    rows: list[Json] = [*shown]
    at.result(
        {"rules": rows},
        table("effect", "who", "verbs", "logs", rows=cells)
        if cells
        else "No rules: with security=on nobody but super users may do anything through proxies",
    )


@over_namespace
async def add(
    at: At,
    effect: EffectArgument,
    who: WhoArgument,
    verbs: VerbsArgument,
    logs: LogsArgument,
    literal: LiteralOption = False,
) -> None:
    """Allow or deny verbs, as in: dlspark acl add allow role:writers write,create 'orders*'. It holds at all proxies
    within 10 seconds."""
    rule = _rule(effect, who, verbs, logs, literal)
    async with at.open() as namespace:
        rights = _rights(namespace)
        before = await rights.read()
        after = await rights.change(add=[rule])
    changed = before.added([rule]) != before
    _result(at, after, changed, f"added: {rule}" if changed else f"it was said before: {rule}")


@over_namespace
async def remove(
    at: At,
    effect: EffectArgument,
    who: WhoArgument,
    verbs: VerbsArgument,
    logs: LogsArgument,
    literal: LiteralOption = False,
) -> None:
    """Take verbs out of a rule, which goes with its last one. WHO and LOGS are compared as texts: to take a right away
    that a wider rule gives, deny it. It holds at all proxies within 10 seconds, for what is under way as well."""
    rule = _rule(effect, who, verbs, logs, literal)
    async with at.open() as namespace:
        rights = _rights(namespace)
        before = await rights.read()
        after = await rights.change(remove=[rule])
    changed = before.removed([rule]) != before
    _result(at, after, changed, f"removed: {rule}" if changed else f"no rule says so, and nothing was changed: {rule}")


@over_namespace
async def check(
    at: At,
    principal: Annotated[str, typer.Argument(metavar="PRINCIPAL", help="The name of the principal.")],
    verb: Annotated[str, typer.Argument(metavar="VERB", help="read, write, truncate, create, delete or administer.")],
    log: Annotated[str | None, typer.Argument(metavar="LOG", help="The log's name.")] = None,
    proxy: Annotated[bool, typer.Option("--proxy", help="In place of LOG: what concerns a whole proxy.")] = False,
    roles: Annotated[
        list[str] | None, typer.Option("--role", help="A role of the principal; may be given several times.")
    ] = None,
    super_users: Annotated[
        list[str] | None,
        typer.Option("--super-user", help="As superUsers of the proxies; may be given several times."),
    ] = None,
) -> None:
    """Say whether a principal may do something through proxies, and why. Exits with 3 where it may not.

    Rules that cannot be read refuse, as they do at proxies. The roles of a principal are in its certificate (dlspark
    tls show), and are not known here: give each with --role.
    """
    from metadata.security.rights import Verb

    if (log is None) is not proxy:
        raise CallerError("neither a log nor --proxy was given, or both", advice="Give LOG, or --proxy in its place")
    wanted = Verb.parse(verb)
    async with at.open() as namespace:
        decision = await _decided(namespace, principal, roles or [], super_users, wanted, log)
    result: dict[str, Json] = {
        "allowed": decision.allowed,
        "reason": decision.reason,
        "rule": _as_json(decision.rule) if decision.rule is not None else None,
    }
    at.result(result, f"{'allowed' if decision.allowed else 'refused'}: {decision.reason}")
    exit_with(attention=not decision.allowed)


async def _decided(
    namespace: AsyncNamespace,
    name: str,
    roles: list[str],
    super_users: list[str] | None,
    verb: Verb,
    log: str | None,
) -> Decision:
    from dlspark.serving.process.access import AccessKeys
    from metadata.foundation.errors import CorruptDataError
    from metadata.security.principals import Principal, Scheme
    from metadata.security.rights import Decision, RuleBook, RuleSet, Subject

    given = super_users if super_users is not None else AccessKeys().super_users
    supers = [Subject.parse(text) for text in given]
    try:
        book = RuleBook(await _rights(namespace).read(), supers)
    except CorruptDataError as error:
        book = RuleBook(RuleSet(), supers, broken=error.message)
    decision = book.decide(Principal(name.removeprefix("user:"), Scheme.TLS, frozenset(roles)), verb, log)
    action = _action(verb)
    if not decision.allowed or log is None or action is None or namespace.services.permissions is None:
        return decision
    if (await namespace.services.permissions.of(log)).denies(action):
        return Decision(
            False, f"the namespace's access control denies {action.name.lower()} on the log, though {decision.reason}"
        )
    return decision


def _action(verb: Verb) -> Action | None:
    """Return which of upstream's entries a proxy asks for a verb, where it is one."""
    from metadata.distributedlog.permissions import Action
    from metadata.security.rights import Verb

    actions = {
        Verb.WRITE: Action.WRITE,
        Verb.TRUNCATE: Action.TRUNCATE,
        Verb.DELETE: Action.DELETE,
        Verb.CREATE: Action.ACQUIRE,
        Verb.ADMINISTER: Action.RELEASE,
    }
    return actions.get(verb)


@over_namespace
async def load(at: At, file: FileArgument) -> None:
    """Add all rules of a file, all of them or none, as list --output json prints them. Those that are there stay."""
    rules = _rules_in(file)
    async with at.open() as namespace:
        rights = _rights(namespace)
        before = await rights.read()
        after = await rights.change(add=rules)
    changed = before.added(rules) != before
    _result(at, after, changed, f"{counted(len(rules), 'rule')} of the file hold now")


@over_namespace
async def mend(
    at: At,
    file: FileArgument,
    yes: YesOption = False,
) -> None:
    """Write all rules anew, where those that are stored cannot be read; else use add and remove. Until then super users
    alone are let in."""
    rules = _rules_in(file)
    confirm(f"Have {counted(len(rules), 'rule')} be all rules of the namespace?", yes=yes)
    async with at.open() as namespace:
        await _rights(namespace).mend(rules)
    _result(at, rules, True, "mended")

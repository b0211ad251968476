"""Calls that do something to the world which doing twice is not the same as doing once.

Only what is done twice when it is called twice: a POST, a mail, a payment, a message. A PUT, a
DELETE, an upload under its name and a write of an absolute value are left out (S-I8), and so is a
POST whose address says that it only asks (a search, a token, GraphQL).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from celery_idem.doctor.source.names import Names

_HTTP = ("http", "requests", "httpx", "aiohttp", "urllib3", "niquests", "httplib2")
_HTTP_METHODS = {"post", "patch"}
_READS = {"get", "head"}
#: calls that give an HTTP answer
_HTTP_ANSWERED = {
    "get", "head", "options", "post", "put", "patch", "delete", "request", "send", "stream",
    "getresponse",
}  # fmt: skip

#: package → the last names of calls that have an effect
_CALLS: dict[str, set[str]] = {
    "smtplib": {"send_message", "sendmail"},
    "aiosmtplib": {"send", "send_message", "sendmail"},
    "flask_mail": {"send", "send_message"},
    "sendgrid": {"send", "post"},
    "postmarker": {"send"},
    "mailjet_rest": {"create"},
    "stripe": {"create", "capture", "confirm", "pay", "send_invoice", "cancel"},
    "braintree": {"sale", "refund", "submit_for_settlement", "credit"},
    "paypalrestsdk": {"create", "execute", "refund", "capture"},
    "mollie": {"create"},
    "razorpay": {"create", "capture", "refund", "transfer"},
    "square": {"create", "create_payment", "refund_payment"},
    "gocardless_pro": {"create"},
    "twilio": {"create"},
    "vonage": {"send", "send_message", "send_sms"},
    "nexmo": {"send_message"},
    "firebase_admin": {
        "send", "send_each", "send_all", "send_multicast", "send_each_for_multicast",
    },
    "pyfcm": {"notify", "notify_single_device", "notify_multiple_devices"},
    "apns2": {"send_notification"},
    "pywebpush": {"webpush"},
    "exponent_server_sdk": {"publish", "publish_multiple"},
    "slack_sdk": {"chat_postMessage", "files_upload", "files_upload_v2", "send", "send_dict"},
    "slack": {"chat_postMessage"},
    "telegram": {"send_message", "send_photo", "send_document"},
    "discord": {"send", "from_url"},
    "pika": {"basic_publish"},
    "kafka": {"send"},
    "confluent_kafka": {"produce"},
    "nats": {"publish"},
    "paho": {"publish"},
    "boto3": {
        "send_email", "send_raw_email", "send_templated_email", "send_bulk_email", "publish",
        "publish_batch", "send_message", "send_message_batch", "send_messages", "put_record",
        "put_records", "put_events", "start_execution", "run_instances", "run_task",
    },
}  # fmt: skip

#: whole paths
_PATHS = {
    "django.core.mail.send_mail", "django.core.mail.send_mass_mail",
    "django.core.mail.EmailMessage().send", "django.core.mail.EmailMultiAlternatives().send",
    "django.core.mail.message.EmailMessage().send",
    "django.core.mail.get_connection().send_messages",
}  # fmt: skip

#: words in an address of which a POST only asks
_ASKS = {
    "token", "tokens", "oauth", "oauth2", "login", "auth", "authenticate", "authorize",
    "introspect", "search", "query", "graphql", "gql", "lookup", "find", "filter", "list",
    "predict", "classify", "moderate", "moderation", "validate", "validation", "verify",
    "translate", "embed", "embedding", "embeddings", "completions", "infer", "inference",
    "convert", "render", "preview", "quote", "quotes", "geocode", "score", "calculate",
    "estimate", "analyze", "analyse", "detect", "check", "msearch", "parse", "extract", "rpc",
}  # fmt: skip

#: keywords by which the other side knows a repeated call
_KEYS = re.compile(r"idempot|^client_?token$|^client_?request_?token$|dedup", re.IGNORECASE)

_REDIS = ("redis", "valkey", "django_redis", "aioredis", "fakeredis")
_REDIS_GROWS = {
    "incr", "incrby", "incrbyfloat", "decr", "decrby", "hincrby", "hincrbyfloat", "zincrby",
    "lpush", "rpush", "lpushx", "rpushx", "xadd", "append",
}  # fmt: skip
_CACHES = ("django.core.cache.cache", "django.core.cache.caches[]")
#: words in a counter's name of which a count too many does no harm
_ONLY_COUNTS = {
    "rate", "ratelimit", "limit", "throttle", "attempt", "attempts", "retry", "retries", "tries",
    "try", "runs", "failures", "errors", "metric", "metrics", "stat", "stats", "hits", "version",
    "generation", "heartbeat", "backoff", "debug",
}  # fmt: skip
_SQL_GROWS = re.compile(r"\bset\b.*?(\w+)\s*=\s*(?:\w+\.)?\1\s*[-+]", re.IGNORECASE | re.DOTALL)


def effect_of(call: ast.Call, names: Names) -> str:
    """The name of the effect that a call has outside; ``""`` for none.

    A call that carries a key, by which the other side knows it again, has none twice.
    """
    path = names.resolve(call.func)
    root, last = path.split(".")[0].rstrip("()[]"), path.rpartition(".")[2]
    if path in _PATHS or last in _CALLS.get(root, ()):
        return "" if is_keyed(call, names) else _shown(path)
    posts = (root in _HTTP and _is_post(last, call, names)) or _urlopen_posts(path, call, names)
    if posts and not _only_asks(call, names):
        return "" if is_keyed(call, names) else _shown(path)
    return ""


def is_http(call: ast.Call, names: Names) -> bool:
    """Whether a call gives an HTTP answer; ``answer.headers.get`` gives none."""
    path = names.resolve(call.func)
    base, _, last = path.rpartition(".")
    if path == "urllib.request.urlopen":
        return True
    if base.split(".")[0].rstrip("()[]") not in _HTTP or last not in _HTTP_ANSWERED:
        return False
    return not any(it.rstrip("()[]") in _HTTP_ANSWERED for it in base.split(".")[1:])


def only_reads(call: ast.Call, names: Names) -> bool:
    """Whether a call that gives an HTTP answer is a GET or HEAD."""
    last = names.resolve(call.func).rpartition(".")[2]
    return (_method(call, names) if last in ("request", "stream") else last) in _READS


def growth_of(call: ast.Call, names: Names) -> str:
    """The name of what a call adds to (a counter, a list); ``""`` for none."""
    path = names.resolve(call.func)
    base, _, last = path.rpartition(".")
    grows = (base.split(".")[0].rstrip("()[]") in _REDIS and last in _REDIS_GROWS) or (
        base in _CACHES and last in ("incr", "decr")
    )
    if grows:
        return "" if words_of(call, names) & _ONLY_COUNTS else _shown(path)
    if isinstance(call.func, ast.Attribute) and call.func.attr == "update":
        return next(filter(None, (_f_expression(it, names) for it in call.keywords)), "")
    if isinstance(call.func, ast.Attribute) and call.func.attr in ("execute", "executemany"):
        return _sql_growth(call)
    return ""


def grown_field(statement: ast.stmt, names: Names) -> str:
    """The field of ``account.balance += x`` or ``account.balance = F("balance") + x``."""
    if isinstance(statement, ast.AugAssign) and isinstance(statement.op, (ast.Add, ast.Sub)):
        target = statement.target
    elif isinstance(statement, ast.Assign) and len(statement.targets) == 1:
        target = statement.targets[0]  # type: ignore[assignment]
        if not _is_f(statement.value, names):
            return ""
    else:
        return ""
    if not isinstance(target, ast.Attribute) or not isinstance(target.value, ast.Name):
        return ""
    if target.value.id == "self" or set(words_in(target.attr)) & _ONLY_COUNTS:
        return ""
    return f"{target.value.id}.{target.attr}"


def is_keyed(call: ast.Call, names: Names) -> bool:
    """Whether the call tells the other side a key."""
    for keyword in call.keywords:
        if keyword.arg and _KEYS.search(keyword.arg):
            return True
        if keyword.arg in ("headers", "json", "data", "metadata", "options"):
            if any(_KEYS.search(text) for text in _dict_keys(keyword.value, names)):
                return True
    return any(
        isinstance(node, ast.Attribute) and node.attr == "key" and _is_step(node.value, names)
        for node in ast.walk(call)
    )


def _is_step(node: ast.expr, names: Names) -> bool:
    values = names.behind(node)
    return any(isinstance(it, ast.Attribute) and it.attr == "step" for it in values)


def words_of(node: ast.AST, names: Names | None = None) -> set[str]:
    """Words of all names and texts in an expression, in lower case; of assigned names' values,
    too."""
    found: set[str] = set()
    for part in ast.walk(node):
        if isinstance(part, ast.Constant) and isinstance(part.value, str):
            found |= set(words_in(part.value))
        elif isinstance(part, ast.Name):
            found |= set(words_in(part.id))
            if names:
                found |= _words_of_values(part.id, names)
        elif isinstance(part, ast.Attribute):
            found |= set(words_in(part.attr))
    return found


def _words_of_values(name: str, names: Names) -> set[str]:
    return names.once(
        ("words of values", name),
        lambda: set[str]().union(*map(words_of, names.assigned(name))),
    )


def words_in(text: str) -> list[str]:
    """The words of a name or text, in lower case."""
    # sentAt, sent_at, SENT-AT
    split = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", text)
    return [word.lower() for word in re.findall(r"[A-Za-z0-9]+", split)]


def _is_post(last: str, call: ast.Call, names: Names) -> bool:
    return last in _HTTP_METHODS or (last == "request" and _method(call, names) in _HTTP_METHODS)


def _method(call: ast.Call, names: Names) -> str:
    """The method that ``request("POST", url)`` or ``request(method="POST")`` writes."""
    given = [*(it.value for it in call.keywords if it.arg == "method"), *call.args[:1]]
    values = names.assigned(given[0].id) if given and isinstance(given[0], ast.Name) else given
    texts = [str(it.value).lower() for it in values if isinstance(it, ast.Constant)]
    return texts[0] if texts else ""


def _urlopen_posts(path: str, call: ast.Call, names: Names) -> bool:
    """``urlopen`` with a body is a POST, and so is one of a ``Request`` with a body."""
    if path != "urllib.request.urlopen":
        return False
    if _has_a_body(call):
        return True
    first = next(iter(call.args), None)
    values = names.assigned(first.id) if isinstance(first, ast.Name) else [first]
    return any(
        isinstance(it, ast.Call)
        and names.resolve(it) == "urllib.request.Request()"
        and _posts_by_request(it)
        for it in values
    )


def _posts_by_request(request: ast.Call) -> bool:
    for keyword in request.keywords:
        if keyword.arg == "method" and isinstance(keyword.value, ast.Constant):
            return str(keyword.value.value).lower() in _HTTP_METHODS
    return _has_a_body(request)


def _has_a_body(call: ast.Call) -> bool:
    return len(call.args) > 1 or any(it.arg == "data" for it in call.keywords)


def _only_asks(call: ast.Call, names: Names) -> bool:
    # request("POST", url): what stands behind the address is what is sent
    place = 1 if names.resolve(call.func).rpartition(".")[2] in ("request", "stream") else 0
    addresses = [*call.args[place : place + 1]]
    addresses += (it.value for it in call.keywords if it.arg == "url")
    return any(words_of(it, names) & _ASKS for it in addresses)


def _dict_keys(node: ast.expr, names: Names) -> Iterator[str]:
    for value in names.behind(node):
        if isinstance(value, ast.Dict):
            yield from (str(it.value) for it in value.keys if isinstance(it, ast.Constant))
        elif isinstance(value, ast.Call) and isinstance(value.func, ast.Name):
            if value.func.id == "dict":
                yield from (it.arg for it in value.keywords if it.arg)


def _f_expression(keyword: ast.keyword, names: Names) -> str:
    if keyword.arg and _is_f(keyword.value, names) and not {*words_in(keyword.arg)} & _ONLY_COUNTS:
        return f"update({keyword.arg}=F(…))"
    return ""


def _is_f(node: ast.expr, names: Names) -> bool:
    """``F("points") + 10``."""
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, (ast.Add, ast.Sub)):
        return False
    return any(
        isinstance(part, ast.Call) and names.resolve(part.func) in _F for part in ast.walk(node)
    )


_F = ("django.db.models.F", "django.db.models.expressions.F")


def _sql_growth(call: ast.Call) -> str:
    for node in ast.walk(call):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            found = _SQL_GROWS.search(node.value)
            if found and node.value.lstrip().lower().startswith("update"):
                if not set(words_in(found.group(1))) & _ONLY_COUNTS:
                    return f"UPDATE … SET {found.group(1)} = {found.group(1)} ± …"
    return ""


def _shown(path: str) -> str:
    return path.replace("()", "").replace("[]", "")

"""``app.conf.idem``: read once, checked whole, errors that name the key and the remedy."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, fields

import pytest

from celery_idem.core.errors import ConfigError
from celery_idem.core.settings import Settings

INF, NAN = float("inf"), float("nan")


@pytest.mark.parametrize("given", [None, {}])
def test_nothing_needs_to_be_set(given):
    settings = Settings.from_dict(given)

    assert settings == Settings()
    assert (settings.lease_s, settings.max_crashes, settings.max_result_bytes) == (30.0, 3, 65536)
    assert (settings.prefix, settings.store, settings.retention_s) == ("idem", None, None)
    assert (settings.visibility_keeper, settings.hash_keys) == (True, False)
    assert (settings.lane_order, settings.charge) == ("weighted", "messages")


def test_what_is_given_is_what_is_had():
    given = {
        "store": "redis://localhost:6379/3",
        "lease_s": 12,
        "retention_s": 86400,
        "max_crashes": 5,
        "max_lease_s": 600.5,
        "visibility_keeper": False,
        "lanes": {"critical": 10, "low": 1},
        "lane_order": "deadline",
        "charge": "seconds",
        "dead_letters": {"route": "queue"},
        "max_result_bytes": 0,
        "prefix": "shop:idem",
        "hash_keys": True,
        "store_patience_s": 0,
        "max_requeues": 1,
        "metrics": {"port": 9808},
    }

    settings = Settings.from_dict(given)

    assert {name: getattr(settings, name) for name in given} == given
    assert set(given) == {f.name for f in fields(Settings)}, "a new setting: add it here"


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("lease", "lease_s"),
        ("leases_s", "lease_s"),
        ("retention", "retention_s"),
        ("max_crash", "max_crashes"),
        ("lane", "lanes"),
        ("dead_letter", "dead_letters"),
        ("PREFIX", "prefix"),
        ("keeper", "visibility_keeper"),
    ],
)
def test_an_unknown_name_is_told_the_nearest_right_one(name, nearest):
    with pytest.raises(ConfigError, match=f"unknown setting '{name}'.*did you mean '{nearest}'"):
        Settings.from_dict({name: 1})


@pytest.mark.parametrize("name", ["zzz", 7, None])
def test_a_name_like_no_other_is_told_all_of_them(name):
    with pytest.raises(ConfigError, match=r"unknown setting .*known are .*lease_s.*prefix"):
        Settings.from_dict({name: 1})


@pytest.mark.parametrize("given", [[], "lease_s=3", 7, [("lease_s", 3)]])
def test_what_is_no_dict_is_refused(given):
    with pytest.raises(ConfigError, match="must be a dict"):
        Settings.from_dict(given)


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        *[("lease_s", v) for v in (0, 0.05, -1, "30", None, True, NAN, INF, [])],
        *[("retention_s", v) for v in (0, 0.5, -1, "1 d", True, NAN, INF)],
        *[("max_lease_s", v) for v in (0, -1, "x", False, NAN, INF)],
        *[("store_patience_s", v) for v in (-1, None, "60", NAN, INF)],
        *[("max_crashes", v) for v in (0, -1, 2.0, "3", None, True)],
        *[("max_result_bytes", v) for v in (-1, 1.5, None, "64k")],
        *[("max_requeues", v) for v in (0, 1.5, None)],
        *[("visibility_keeper", v) for v in (1, 0, "yes", None)],
        *[("hash_keys", v) for v in (1, "no", None)],
        *[("store", v) for v in ("", 7, b"redis://")],
        *[("prefix", v) for v in ("", None, 7, "a{b", "a}b")],
        *[("lane_order", v) for v in ("fifo", "Weighted", None)],
        *[("charge", v) for v in ("bytes", None)],
        *[("lanes", v) for v in (None, [], "critical", ("a", "b"))],
        *[("dead_letters", v) for v in (None, [], "dlq")],
    ],
)
def test_a_value_that_can_not_be_meant_is_refused_by_name(name, wrong):
    with pytest.raises(ConfigError, match=f"^idem: {name} ") as refused:
        Settings.from_dict({name: wrong})

    shown = type(wrong).__name__ if name in ("lanes", "dead_letters") else repr(wrong)
    assert shown in str(refused.value)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ([], "idem: must be a dict of settings, not list"),
        ({"lease": 1}, "idem: unknown setting 'lease'; did you mean 'lease_s'?"),
        (
            {"zzz": 1},
            "idem: unknown setting 'zzz'; known are "
            + ", ".join(sorted(f.name for f in fields(Settings))),
        ),
        ({"lease_s": 0.05}, "idem: lease_s must be at least 0.1 and finite, not 0.05"),
        ({"lease_s": None}, "idem: lease_s must be a number, not None"),
        ({"retention_s": 0.5}, "idem: retention_s must be at least 1 and finite, not 0.5"),
        ({"max_lease_s": 0}, "idem: max_lease_s must be at least 0.1 and finite, not 0"),
        ({"store_patience_s": -1}, "idem: store_patience_s must be at least 0 and finite, not -1"),
        ({"max_crashes": 0}, "idem: max_crashes must be at least 1, not 0"),
        ({"max_crashes": "3"}, "idem: max_crashes must be a whole number, not '3'"),
        ({"max_result_bytes": -1}, "idem: max_result_bytes must be at least 0, not -1"),
        ({"max_requeues": 0}, "idem: max_requeues must be at least 1, not 0"),
        ({"hash_keys": 1}, "idem: hash_keys must be True or False, not 1"),
        ({"store": ""}, "idem: store must be a non-empty text, not ''"),
        (
            {"prefix": "a{b"},
            "idem: prefix 'a{b' holds a brace, which Redis Cluster reads as a hash tag; "
            "use letters, digits, ':' and '-'",
        ),
        (
            {"lane_order": "fifo"},
            "idem: lane_order must be one of weighted, strict, deadline, not 'fifo'",
        ),
        ({"charge": "bytes"}, "idem: charge must be one of messages, seconds, not 'bytes'"),
        ({"lanes": []}, "idem: lanes must be a dict, not list"),
        ({"metrics": None}, "idem: metrics must be a dict, not NoneType"),
    ],
)
def test_an_error_says_the_setting_the_value_and_the_bound(given, says):
    with pytest.raises(ConfigError) as refused:
        Settings.from_dict(given)

    assert str(refused.value) == says


@pytest.mark.parametrize(
    "given",
    [
        {"lease_s": 0.1},
        {"retention_s": 1},
        {"max_lease_s": 0.1},
        {"store_patience_s": 0},
        {"max_crashes": 1},
        {"max_result_bytes": 0},
        {"max_requeues": 1},
        {"retention_s": None, "max_lease_s": None, "store": None},
    ],
)
def test_the_least_that_is_allowed_is_taken(given):
    settings = Settings.from_dict(given)

    assert {name: getattr(settings, name) for name in given} == given


def test_settings_can_not_be_changed():
    with pytest.raises(FrozenInstanceError):
        Settings().lease_s = 5

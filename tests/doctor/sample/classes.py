# ruff: noqa
"""Class tasks of a warehouse: base classes of their own, clients as properties."""

import logging
import smtplib
import threading
from email.message import EmailMessage
from functools import cached_property

import httpx
import redis
import requests
from celery import Celery, Task
from celery.exceptions import Ignore, Reject
from slack_sdk import WebClient
from twilio.rest import Client as Twilio

from celery_idem import IdempotentTask

log = logging.getLogger("warehouse")

app = Celery("warehouse", broker="redis://localhost:1/0", backend="redis://localhost:1/1")
app.conf.task_acks_late = True
app.conf.task_reject_on_worker_lost = True
app.conf.task_time_limit = 1800
app.conf.broker_transport_options = {"visibility_timeout": 4 * 3600}


class BaseTask(Task):
    """What all tasks of the warehouse have."""

    abstract = True
    autoretry_for = (requests.ConnectionError, requests.Timeout)
    retry_kwargs = {"max_retries": 5}
    retry_backoff = True

    _lock = threading.Lock()

    @cached_property
    def http(self):
        session = requests.Session()
        session.headers["User-Agent"] = "warehouse/2"
        return session

    @property
    def redis(self):
        return redis.Redis(host="localhost", port=1)

    def on_failure(self, exc, task_id, args, kwargs, einfo):
        log.error("failed", extra={"task": self.name, "id": task_id})


class PullStock(BaseTask):
    name = "warehouse.pull_stock"

    def run(self, site):
        rows = self.http.get(f"https://{site}.example/stock", timeout=20).json()
        pipe = self.redis.pipeline()
        for row in rows:
            pipe.hset(f"stock:{site}", row["sku"], row["count"])
        pipe.execute()
        return len(rows)


class PushStock(BaseTask):
    name = "warehouse.push_stock"

    def run(self, site, sku):
        count = self.redis.hget("stock:total", sku)
        self.http.put(f"https://{site}.example/stock/{sku}", json={"count": int(count or 0)})


class Relabel(BaseTask):
    name = "warehouse.relabel"
    time_limit = 60

    def run(self, box_id, label):
        self.redis.set(f"box:{box_id}:label", label)
        return {"box": box_id, "label": label}


class DropCache(BaseTask):
    name = "warehouse.drop_cache"
    ignore_result = True

    def run(self, *prefixes):
        for prefix in prefixes:
            for key in self.redis.scan_iter(f"{prefix}*"):
                self.redis.delete(key)


class Picklist(BaseTask):
    name = "warehouse.picklist"

    def run(self, order_ids):
        lines = []
        for order_id in order_ids:
            order = self.http.get(f"https://orders.example/{order_id}", timeout=5).json()
            lines.extend(order["lines"])
        lines.sort(key=lambda line: line["shelf"])
        return lines


class ReserveBox(IdempotentTask):
    name = "warehouse.reserve_box"
    idem_key = "box:{box_id}:{order_id}"

    def run(self, box_id, order_id):
        answer = requests.post(
            "https://boxes.example/reservations", json={"box": box_id, "order": order_id}, timeout=5
        )
        answer.raise_for_status()


class SmsDriver(IdempotentTask):
    name = "warehouse.sms_driver"
    idem_key = "{tour_id}:{stop}"
    max_retries = 3

    def run(self, tour_id, stop, text):
        client = Twilio("sid", "token")
        return client.messages.create(to="+49", from_="+49", body=text).sid


class MailManifest(IdempotentTask):
    name = "warehouse.mail_manifest"
    idem_key = "manifest:{day}"

    def run(self, day, to):
        message = EmailMessage()
        message["Subject"], message["To"] = f"Manifest of {day}", to
        with smtplib.SMTP("localhost") as server:
            server.send_message(message)


class ShipOrder(IdempotentTask):
    name = "warehouse.ship_order"
    idem_key = "{order_id}"
    autoretry_for = (httpx.TransportError,)
    retry_backoff = True
    max_retries = 8

    def run(self, order_id, carrier):
        label = self.step("label", self.buy_label, order_id, carrier)
        self.step("tell", self.tell_customer, order_id, label)
        return label

    def buy_label(self, order_id, carrier):
        return httpx.post(f"https://{carrier}.example/labels", json={"order": order_id}).json()[
            "no"
        ]

    def tell_customer(self, order_id, label):
        httpx.post("https://mail.example/send", json={"order": order_id, "label": label})


class CountScans(BaseTask):
    name = "warehouse.count_scans"

    def run(self, day):
        total = sum(int(n) for n in self.redis.hvals(f"scans:{day}"))
        self.redis.set(f"scans:{day}:total", total)
        return total


class WatchFreezer(BaseTask):
    name = "warehouse.watch_freezer"

    def run(self, freezer):
        reading = self.http.get(f"https://{freezer}.example/t", timeout=3).json()
        self.redis.zadd(f"freezer:{freezer}", {reading["at"]: reading["t"]})
        self.redis.zremrangebyrank(f"freezer:{freezer}", 0, -1001)


class RouteTour(BaseTask):
    name = "warehouse.route_tour"
    soft_time_limit = 900

    def run(self, tour_id, stops):
        answer = self.http.post(
            "https://router.example/v1/search", json={"stops": stops}, timeout=600
        )
        return answer.json()["legs"]


class Handover(BaseTask):
    name = "warehouse.handover"

    def run(self, pallet_id):
        pallet = self.http.get(f"https://pallets.example/{pallet_id}").json()
        if pallet["status"] == "handed_over":
            raise Ignore
        self.http.post(f"https://pallets.example/{pallet_id}/handover").raise_for_status()


class VerifyBarcode(BaseTask):
    name = "warehouse.verify_barcode"

    def run(self, code):
        if len(code) != 13 or not code.isdigit():
            raise Reject("not a barcode", requeue=False)
        digits = [int(c) for c in code]
        total = 0
        for place, digit in enumerate(digits[:-1]):
            total += digit * (3 if place % 2 else 1)
        return (10 - total % 10) % 10 == digits[-1]


class AlarmOnce(BaseTask):
    name = "warehouse.alarm_once"

    def run(self, alarm_id):
        lock = self.redis.lock(f"alarm:{alarm_id}", timeout=30)
        if not lock.acquire(blocking=False):
            return
        try:
            if self.redis.get(f"alarm:{alarm_id}:sent"):
                return
            WebClient(token="x").chat_postMessage(channel="#alarms", text=alarm_id)
            self.redis.set(f"alarm:{alarm_id}:sent", 1, ex=86400)
        finally:
            lock.release()


class Archive(BaseTask):
    name = "warehouse.archive"

    def run(self, order_id):
        order = self.http.get(f"https://orders.example/{order_id}").json()
        self.http.put(f"https://archive.example/{order_id}", json=order)
        self.http.delete(f"https://orders.example/{order_id}")


class Weigh(BaseTask):
    name = "warehouse.weigh"

    def run(self, parcel_id, grams):
        self.redis.hset(f"parcel:{parcel_id}", mapping={"grams": grams, "class": self.of(grams)})

    @staticmethod
    def of(grams):
        return "S" if grams < 1000 else "M" if grams < 5000 else "L"


class Nightly(BaseTask):
    name = "warehouse.nightly"

    def run(self, sites):
        for site in sites:
            PullStock().apply_async((site,), countdown=30)


class CloseDay(IdempotentTask):
    name = "warehouse.close_day"
    idem_key = "{site}:{day}"

    def run(self, site, day):
        with self.app.connection_or_acquire():
            log.info("closing %s", day)
        redis.Redis().incrby(f"days:{site}", 1)
        return day


class Ping(BaseTask):
    name = "warehouse.ping"
    expires = 60

    def run(self):
        return self.redis.ping()


for cls in (
    PullStock,
    PushStock,
    Relabel,
    DropCache,
    Picklist,
    ReserveBox,
    SmsDriver,
    MailManifest,
    ShipOrder,
    CountScans,
    WatchFreezer,
    RouteTour,
    Handover,
    VerifyBarcode,
    AlarmOnce,
    Archive,
    Weigh,
    Nightly,
    CloseDay,
    Ping,
):
    app.register_task(cls())

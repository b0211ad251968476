# ruff: noqa
"""Function tasks of an invoicing service: ``@app.task``, clients at module level."""

import csv
import hashlib
import json
import logging
import os
import random
import time
import uuid
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path

import boto3
import httpx
import redis
import requests
import stripe
from celery import Celery, group
from celery.schedules import crontab
from requests.adapters import HTTPAdapter
from sqlalchemy import create_engine, text
from statsd import StatsClient

from celery_idem import IdempotentTask, idempotent

log = logging.getLogger(__name__)

app = Celery("billing", broker="redis://localhost:1/0", backend="redis://localhost:1/1")
app.conf.update(
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    task_time_limit=600,
    task_soft_time_limit=540,
    worker_prefetch_multiplier=1,
    beat_schedule={
        "rates": {"task": "billing.refresh_exchange_rates", "schedule": crontab(minute=0)},
    },
)

engine = create_engine(os.environ.get("DATABASE_URL", "sqlite://"))
r = redis.Redis.from_url("redis://localhost:1/2")
s3 = boto3.client("s3")
statsd = StatsClient("localhost", 8125)
session = requests.Session()
session.mount("https://", HTTPAdapter(max_retries=3))

TOKEN_URL = "https://login.partner.example/oauth2/token"
GRAPHQL = "https://api.partner.example/graphql"


@app.task(name="billing.refresh_exchange_rates", autoretry_for=(httpx.HTTPError,), max_retries=5)
def refresh_exchange_rates():
    rates = httpx.get("https://rates.example/latest", timeout=10).raise_for_status().json()
    r.set("rates", json.dumps(rates), ex=7200)
    r.set("rates:at", datetime.utcnow().isoformat())
    return len(rates)


@app.task(name="billing.monthly_statement")
def monthly_statement(account_id, month):
    with engine.connect() as db:
        rows = db.execute(
            text("SELECT day, amount FROM entries WHERE account = :a AND month = :m"),
            {"a": account_id, "m": month},
        ).all()
    path = Path("/var/statements") / f"{account_id}-{month}.csv"
    with path.open("w") as file:
        csv.writer(file).writerows(rows)
    s3.upload_file(str(path), "statements", path.name)
    return path.name


@app.task(
    name="billing.charge_order",
    base=IdempotentTask,
    bind=True,
    idem_key="order:{order_id}",
    autoretry_for=(stripe.error.APIConnectionError,),
    retry_backoff=True,
    max_retries=8,
)
def charge_order(self, order_id, cents):
    return stripe.PaymentIntent.create(
        amount=cents, currency="eur", idempotency_key=f"charge:{order_id}"
    )["id"]


@app.task(name="billing.post_ledger_entry", base=IdempotentTask, idem_key="{entry_id}")
def post_ledger_entry(entry_id, payload):
    answer = session.post("https://ledger.example/entries", json=payload, timeout=5)
    answer.raise_for_status()
    return answer.json()["id"]


@app.task(name="billing.sync_customer")
def sync_customer(customer_id):
    with engine.connect() as db:
        row = db.execute(text("SELECT * FROM customers WHERE id = :id"), {"id": customer_id}).one()
    requests.put(
        f"https://crm.example/customers/{customer_id}",
        json={"name": row.name, "email": row.email},
        timeout=5,
    ).raise_for_status()


@app.task(name="billing.purge_sessions", ignore_result=True)
def purge_sessions():
    with engine.begin() as db:
        db.execute(text("DELETE FROM sessions WHERE expires < :now"), {"now": datetime.utcnow()})


@app.task(name="billing.import_feed", bind=True, max_retries=3)
def import_feed(self, url):
    try:
        feed = session.get(url, timeout=30)
        feed.raise_for_status()
    except requests.RequestException as error:
        raise self.retry(exc=error, countdown=2**self.request.retries + random.random())
    with engine.begin() as db:
        for item in feed.json()["items"]:
            db.execute(
                text(
                    "INSERT INTO items (sku, price) VALUES (:sku, :price) "
                    "ON CONFLICT (sku) DO UPDATE SET price = excluded.price"
                ),
                {"sku": item["sku"], "price": Decimal(item["price"])},
            )


@app.task(name="billing.thumbnail")
def thumbnail(bucket, key):
    body = s3.get_object(Bucket=bucket, Key=key)["Body"].read()
    digest = hashlib.sha256(body).hexdigest()
    s3.put_object(Bucket=bucket, Key=f"thumbs/{digest}.png", Body=body[:1024])
    return digest


@app.task(name="billing.pull_partner_orders")
def pull_partner_orders(since):
    token = requests.post(
        TOKEN_URL, data={"grant_type": "client_credentials"}, auth=("id", "secret"), timeout=5
    ).json()["access_token"]
    page = requests.get(
        "https://api.partner.example/orders",
        params={"since": since},
        headers={"Authorization": f"Bearer {token}"},
        timeout=30,
    ).json()
    for order in page["orders"]:
        store_order.delay(order["id"], order)


@app.task(name="billing.store_order")
def store_order(order_id, order):
    with engine.begin() as db:
        db.execute(
            text("INSERT INTO orders (id, body) VALUES (:id, :body) ON CONFLICT (id) DO NOTHING"),
            {"id": order_id, "body": json.dumps(order)},
        )


@app.task(name="billing.partner_stock")
def partner_stock(skus):
    query = "query($skus: [String!]) { stock(skus: $skus) { sku left } }"
    answer = requests.post(
        GRAPHQL, json={"query": query, "variables": {"skus": skus}}, timeout=10
    ).json()
    return {row["sku"]: row["left"] for row in answer["data"]["stock"]}


@app.task(name="billing.measure_queue", ignore_result=True)
def measure_queue(name):
    statsd.incr("queue.looked")
    statsd.gauge(f"queue.{name}", r.llen(name))


@app.task(name="billing.fan_out")
def fan_out(account_ids, month):
    return group(monthly_statement.s(account, month) for account in account_ids).apply_async().id


@app.task(name="billing.recount")
def recount(account_id):
    with engine.begin() as db:
        db.execute(
            text(
                "UPDATE accounts SET entries = (SELECT count(*) FROM entries WHERE account = :a) "
                "WHERE id = :a"
            ),
            {"a": account_id},
        )


@app.task(name="billing.probe_partner", bind=True, max_retries=None)
def probe_partner(self, host):
    if r.incr(f"rate:probe:{host}") > 10:
        raise self.retry(countdown=60)
    r.expire(f"rate:probe:{host}", 60)
    return httpx.head(f"https://{host}/health", timeout=3).status_code


@app.task(name="billing.export")
def export(table):
    name = f"{table}-{uuid.uuid4()}.jsonl"
    started = time.monotonic()
    with engine.connect() as db, open(f"/tmp/{name}", "w") as file:
        for row in db.execute(text(f"SELECT * FROM {table}")).mappings():
            file.write(json.dumps(dict(row), default=str) + "\n")
    log.info("exported", extra={"seconds": time.monotonic() - started})
    return name


@app.task(
    name="billing.complete_order",
    base=IdempotentTask,
    bind=True,
    idem_key="order:{order_id}",
    autoretry_for=(requests.ConnectionError,),
    retry_backoff=True,
    max_retries=6,
)
def complete_order(self, order_id):
    self.step("invoice", make_invoice, order_id)
    self.step("partner", tell_partner, order_id, key=f"partner:order:{order_id}")
    self.step("webhook", tell_webhook, order_id)


def make_invoice(order_id):
    return requests.post("https://invoices.example/", json={"order": order_id}, timeout=5).json()


def tell_partner(order_id):
    requests.post(f"https://partner.example/orders/{order_id}/ship", timeout=5).raise_for_status()


def tell_webhook(order_id):
    httpx.post("https://hooks.example/order", json={"id": order_id}, timeout=5)


@app.task(name="billing.pay_out", bind=True, max_retries=4)
def pay_out(self, payout_id):
    with idempotent(f"payout:{payout_id}", ttl=90 * 86400):
        answer = requests.post(
            "https://bank.example/payouts", json={"reference": payout_id}, timeout=20
        )
        answer.raise_for_status()


@app.task(name="billing.remind")
def remind(invoice_id):
    with engine.begin() as db:
        taken = db.execute(
            text("UPDATE invoices SET status = 'reminded' WHERE id = :id AND status = 'open'"),
            {"id": invoice_id},
        )
        if taken.rowcount == 0:
            return "already"
    httpx.post("https://mail.example/send", json={"template": "reminder", "id": invoice_id})
    return "sent"


@app.task(name="billing.expire_quotes")
def expire_quotes(days=30):
    until = datetime.utcnow() - timedelta(days=days)
    with engine.begin() as db:
        done = db.execute(
            text("UPDATE quotes SET state = 'expired' WHERE sent < :until AND state = 'open'"),
            {"until": until},
        )
    return done.rowcount

# ruff: noqa
"""Tasks of a data and messaging pipeline: functions made by decorators and loops, many clients."""

import asyncio
import functools
import hashlib
import io
import json
import os
import socket
import time
import uuid

import aiohttp
import boto3
import kafka
import requests
import sendgrid
from celery import Celery, chord, signature
from redis import Redis

from celery_idem import IdempotentTask

app = Celery("pipe", broker=os.environ.get("BROKER", "redis://localhost:1/0"))
app.conf.update(
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    task_time_limit=900,
    worker_prefetch_multiplier=1,
    idem={"lanes": {"high": 5, "bulk": {"weight": 1, "queue": "bulk-jobs"}}},
    task_default_queue="bulk-jobs",
)

cache = Redis(host="localhost", port=1, db=4)
sqs = boto3.client("sqs")
s3 = boto3.resource("s3")


def timed(function):
    @functools.wraps(function)
    def inner(*args, **kwargs):
        began = time.monotonic()
        try:
            return function(*args, **kwargs)
        finally:
            cache.hincrbyfloat("metrics:seconds", function.__name__, time.monotonic() - began)

    return inner


@app.task
@timed
def ingest(bucket, key):
    body = s3.Object(bucket, key).get()["Body"].read()
    rows = [json.loads(line) for line in io.BytesIO(body)]
    s3.Object(bucket, f"clean/{key}").put(Body=json.dumps(rows))
    return len(rows)


@app.task
@timed
def deduplicate(bucket, key):
    seen = set()
    for row in json.loads(s3.Object(bucket, key).get()["Body"].read()):
        digest = hashlib.md5(json.dumps(row, sort_keys=True).encode()).hexdigest()
        seen.add(digest)
    cache.sadd(f"seen:{bucket}", *seen)


@app.task
def classify(text):
    reply = requests.post("https://models.example/v1/predict", json={"text": text}, timeout=60)
    return reply.json()["label"]


@app.task
def embed(texts):
    headers = {"Authorization": "Bearer x"}
    reply = requests.post(
        "https://ai.example/v1/embeddings", json={"input": texts}, headers=headers
    )
    return [row["embedding"] for row in reply.json()["data"]]


async def _gather(urls):
    async with aiohttp.ClientSession() as session:

        async def one(url):
            async with session.get(url) as reply:
                return await reply.json()

        return await asyncio.gather(*(one(url) for url in urls))


@app.task
def crawl(urls):
    pages = asyncio.run(_gather(urls))
    for url, page in zip(urls, pages):
        cache.set(f"page:{url}", json.dumps(page), ex=3600)
    return len(pages)


@app.task(lane="high")
def forward(event):
    producer = kafka.KafkaProducer(bootstrap_servers="localhost:1")
    producer.send("events", json.dumps(event).encode())  # expect: IDEM051
    producer.flush()


@app.task
def enqueue(job):
    sqs.send_message(
        QueueUrl="https://sqs.example/q.fifo",
        MessageBody=json.dumps(job),
        MessageGroupId="jobs",
        MessageDeduplicationId=job["id"],
    )


@app.task
def backup(name):
    s3.Bucket("backups").upload_file(f"/var/backups/{name}", name)


@app.task
def prune(prefix, keep):
    objects = sorted(
        s3.Bucket("backups").objects.filter(Prefix=prefix), key=lambda o: o.last_modified
    )
    for item in objects[:-keep]:
        item.delete()


@app.task
def lead(worker=None):
    # leader election: a claim, and nothing to do twice
    me = worker or f"{socket.gethostname()}:{os.getpid()}"
    if not cache.set("leader", me, nx=True, ex=30):
        return cache.get("leader") == me.encode()
    return True


@app.task(base=IdempotentTask, idem_key="digest:{day}:{user}", lane="high")
def send_digest(day, user, html):
    client = sendgrid.SendGridAPIClient(os.environ.get("SENDGRID_KEY"))
    client.send({"to": user, "html": html})


@app.task(base=IdempotentTask, idem_key="{batch}")
def mail_all(batch, users):
    client = sendgrid.SendGridAPIClient("key")
    for user in users:
        client.send({"to": user})  # expect: IDEM052


@app.task
def fan_in(parts):
    header = [signature("second_pipeline.classify", args=(part,)) for part in parts]
    return chord(header)(collect.s()).id


@app.task
def collect(labels):
    counts = {}
    for label in labels:
        counts[label] = counts.get(label, 0) + 1
    return counts


def make(kind):
    @app.task(name=f"pipe.refresh_{kind}")
    def refresh():
        cache.set(f"fresh:{kind}", requests.get(f"https://feeds.example/{kind}").text)

    return refresh


refresh_news, refresh_weather = make("news"), make("weather")


@app.task
def remember(item):
    cache.lpush("recent:hits", item)
    cache.ltrim("recent:hits", 0, 99)


@app.task
def version(name):
    cache.incr(f"version:{name}")


@app.task
def token(service):
    fresh = requests.post(f"https://{service}.example/oauth/token", data={"grant": "x"}).json()
    cache.set(f"token:{service}", fresh["access_token"], ex=fresh["expires_in"] - 10)


@app.task(bind=True)
def trace(self, payload):
    span = uuid.uuid4().hex
    cache.hset(f"trace:{self.request.id}", mapping={"span": span, "host": socket.gethostname()})
    return requests.get(payload["url"], headers={"X-Span": span}).status_code

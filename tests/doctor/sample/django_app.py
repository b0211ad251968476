# ruff: noqa
"""``tasks.py`` of a Django app: ``@shared_task``, models imported where they are used."""

from __future__ import annotations

import logging
from datetime import timedelta

import requests
from celery import Celery, chain, shared_task
from celery.utils.log import get_task_logger
from django.conf import settings
from django.core.cache import cache
from django.core.mail import EmailMultiAlternatives, mail_admins, send_mail
from django.core.management import call_command
from django.db import transaction
from django.db.models import Count, F, Q
from django.utils import timezone
from django.utils.crypto import get_random_string

from celery_idem import IdempotentTask

logger = get_task_logger(__name__)

app = Celery("community", broker="redis://localhost:1/0", backend="redis://localhost:1/1")
app.conf.update(
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    task_time_limit=300,
    task_default_queue="normal",
    idem={"lanes": {"critical": 10, "normal": 5, "low": 1}},
)


@shared_task
def clear_sessions():
    call_command("clearsessions")


@shared_task(bind=True, max_retries=3, default_retry_delay=30)
def fetch_avatar(self, user_id):
    from django.contrib.auth import get_user_model

    user = get_user_model().objects.get(pk=user_id)
    try:
        answer = requests.get(user.profile.avatar_url, timeout=10)
        answer.raise_for_status()
    except requests.RequestException as exc:
        raise self.retry(exc=exc)
    user.profile.avatar.save(f"{user_id}.png", answer.content)


@shared_task(base=IdempotentTask, idem_key="welcome:{user_id}", lane="critical")
def send_welcome(user_id):
    from django.contrib.auth import get_user_model

    user = get_user_model().objects.get(pk=user_id)
    if not user.email:
        return
    send_mail("Welcome", "Hello", settings.DEFAULT_FROM_EMAIL, [user.email])


@shared_task(base=IdempotentTask, bind=True, idem_key="otp:{user_id}:{nonce}", lane="critical")
def send_otp(self, user_id, nonce):
    code = cache.get_or_set(f"otp:{user_id}:{nonce}", lambda: get_random_string(6, "0123456789"))
    message = EmailMultiAlternatives("Your code", code, to=[f"{user_id}@example.org"])
    message.attach_alternative(f"<b>{code}</b>", "text/html")
    message.send()


@shared_task
def recount_likes(post_id):
    from community.models import Post

    post = Post.objects.annotate(n=Count("like")).get(pk=post_id)
    Post.objects.filter(pk=post_id).update(likes=post.n)


@shared_task
def mark_inactive():
    from django.contrib.auth import get_user_model

    border = timezone.now() - timedelta(days=365)
    return get_user_model().objects.filter(last_login__lt=border).update(is_active=False)


@shared_task
def publish_due():
    from community.models import Post

    due = Post.objects.filter(state="scheduled", publish_at__lte=timezone.now())
    for post in due:
        with transaction.atomic():
            locked = Post.objects.select_for_update().get(pk=post.pk)
            if locked.state != "scheduled":
                continue
            locked.state = "published"
            locked.save(update_fields=["state"])
            transaction.on_commit(lambda pk=post.pk: index_post.delay(pk))


@shared_task(lane="low")
def index_post(post_id):
    from community.models import Post

    post = Post.objects.get(pk=post_id)
    requests.put(f"{settings.SEARCH_URL}/posts/{post_id}", json=post.as_document(), timeout=5)


@shared_task
def digest(user_id):
    from community.models import Digest

    entry, created = Digest.objects.get_or_create(user_id=user_id, day=timezone.localdate())
    if not created:
        logger.info("digest of %s is there", user_id)
        return
    send_mail("Your day", entry.text, None, [entry.user.email])


@shared_task(
    base=IdempotentTask,
    bind=True,
    idem_key="invite:{invite_id}",
    autoretry_for=(requests.RequestException,),
    retry_backoff=True,
    max_retries=5,
)
def invite(self, invite_id):
    from community.models import Invite

    item = Invite.objects.get(pk=invite_id)
    self.step("mail", send_mail, "Come", item.text, None, [item.email])
    self.step("crm", _tell_crm, item.email)


def _tell_crm(email):
    requests.post(settings.CRM_URL, json={"email": email}, timeout=5).raise_for_status()


@shared_task
def transcode(video_id):
    from community.models import Video

    updated = Video.objects.filter(pk=video_id, status="pending").update(status="running")
    if not updated:
        return "taken"
    video = Video.objects.get(pk=video_id)
    video.transcode()
    Video.objects.filter(pk=video_id).update(status="done", finished_at=timezone.now())


@shared_task
def geocode(place_id):
    from community.models import Place

    place = Place.objects.get(pk=place_id)
    answer = requests.get(settings.GEO_URL, params={"q": place.address}, timeout=10).json()
    place.lat, place.lon = answer["lat"], answer["lon"]
    place.save(update_fields=["lat", "lon"])


@shared_task(bind=True)
def moderate(self, comment_id):
    from community.models import Comment

    comment = Comment.objects.get(pk=comment_id)
    verdict = requests.post(
        f"{settings.MODERATION_URL}/v1/query", json={"text": comment.text}, timeout=20
    ).json()
    comment.hidden = verdict["score"] > 0.9
    comment.attempts += 1
    comment.save()


@shared_task
def report_errors(day):
    from community.models import Failure

    failures = Failure.objects.filter(day=day).count()
    if failures > 100:
        mail_admins("Many failures", f"{failures} on {day}")


@shared_task
def onboarding(user_id):
    chain(send_welcome.si(user_id), fetch_avatar.si(user_id)).apply_async(countdown=60)


@shared_task
def badge(user_id):
    from community.models import Badge, Profile

    badge, created = Badge.objects.get_or_create(user_id=user_id, name="writer")
    if created:
        Profile.objects.filter(user_id=user_id).update(points=F("points") + 10)


@shared_task
def merge_tags(old, new):
    from community.models import Tag, Tagging

    with transaction.atomic():
        Tagging.objects.filter(tag__name=old).exclude(post__tags__name=new).update(tag=new)
        Tag.objects.filter(Q(name=old)).delete()


@shared_task(rate_limit="10/m")
def warm(path):
    cache.set(f"page:{path}", requests.get(f"{settings.SITE}{path}", timeout=30).text, 3600)


@shared_task(base=IdempotentTask, idem_key="thumb:{photo_id}:{size}", lane="low", time_limit=60)
def thumb(photo_id, size=200):
    from community.models import Photo

    photo = Photo.objects.get(pk=photo_id)
    photo.make_thumbnail(size)
    return {"photo": photo_id, "size": size}


@shared_task
def beat(name):
    cache.set(f"beat:{name}", timezone.now().isoformat(), None)
    logging.getLogger("beat").debug("beat %s", name)

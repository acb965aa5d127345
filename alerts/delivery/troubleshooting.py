"""What to do about the usual mistakes with a channel, by what its receiver says about them."""

from __future__ import annotations

_CURES: dict[str, tuple[tuple[str, str], ...]] = {
    "slack": (
        ("invalid_auth", "The token is not one of this workspace: copy the Bot User OAuth Token (xoxb-…) of the app."),
        ("not_authed", "The token is empty: set the variable that token_env names."),
        ("token_revoked", "The token was revoked: reinstall the app and copy its Bot User OAuth Token (xoxb-…)."),
        ("account_inactive", "The token was revoked: reinstall the app and copy its Bot User OAuth Token (xoxb-…)."),
        ("missing_scope", "The app lacks a scope: add it under OAuth & Permissions, then reinstall the app."),
        ("not_in_channel", "The bot is not in the channel: write /invite @<its name> there."),
        (
            "channel_not_found",
            "There is no such channel for the bot: give the channel's id, and invite the bot if it is private.",
        ),
        ("is_archived", "The channel is archived: take another one."),
        ("no_service", "The webhook was deleted: add a new one to the app, under Incoming Webhooks."),
        ("no_team", "The address of the webhook is not whole: copy it again, under Incoming Webhooks."),
        ("invalid_token", "The address of the webhook is not whole: copy it again, under Incoming Webhooks."),
        ("without its ok", "Something else than Slack is at that address: copy it again, under Incoming Webhooks."),
    ),
    "pagerduty": (
        (
            "answered 400",
            "PagerDuty does not know the routing key: take the Integration Key of an Events API v2 integration.",
        ),
        (
            "answered 403",
            "PagerDuty does not know the routing key: take the Integration Key of an Events API v2 integration.",
        ),
        ("answered 404", "Accounts in the EU set base_url: https://events.eu.pagerduty.com"),
    ),
    "alertmanager": (
        (
            "answered 404",
            "Give Alertmanager's own address, as http://alertmanager:9093, with its route prefix if it has one.",
        ),
        ("answered 401", "A proxy in front asks for a password: put it into the address, https://user:password@host."),
        ("answered 410", "This Alertmanager knows API v1 only: 0.16 is the oldest that works."),
    ),
    "email": (
        ("answered 535", "User or password are not right; Gmail and others want an app password."),
        ("answered 530", "The server wants a sign-in: set user and password_env."),
        ("answered 550", "The server does not take mail for that recipient, or from that sender."),
        ("answered 553", "The server does not let this user send from that address: set from to the user's own."),
        ("answered 554", "The server does not relay for this machine: sign in with user and password_env."),
        (
            "STARTTLS",
            "The server offers no STARTTLS: set security to tls (port 465), or to none in a network of your own.",
        ),
        ("WRONG_VERSION", "The port speaks no TLS from the start: set security to starttls (port 587)."),
        ("certificate", "Name the server as its certificate does; one of your own goes into SSL_CERT_FILE."),
    ),
    "webhook": (
        ("answered 401", "The receiver does not accept the signature: set the same secret on both sides."),
        ("answered 403", "The receiver does not accept the signature: set the same secret on both sides."),
        ("answered 404", "There is nothing at that address: check its path."),
        ("answered 405", "The address takes no POST: check its path."),
    ),
    "heartbeat": (
        ("answered 404", "Nobody expects pings at that address: copy it again from the service that watches."),
    ),
}
_ANY = (
    ("Name or service not known", "The name of the host is not known here: check it, and the DNS of this machine."),
    ("Temporary failure in name resolution", "Names cannot be looked up here: check the DNS of this machine."),
    ("refused", "Nothing listens there: check host and port, and whether a firewall refuses."),
    ("cannot be reached", "Check the address, and whether this machine may go out (firewall, proxy: HTTPS_PROXY)."),
    ("answered 429", "The receiver wants fewer messages; the outbox waits as long as it asks."),
    ("gave no answer", "The receiver took it and said nothing: see there whether it arrived."),
    ("is not one", "Write the whole address, with https:// in front."),
)


def cure(kind: str, trouble: str) -> str:
    """Return what to do about *trouble* with a channel of *kind*; empty where that is not known.

    >>> cure("pagerduty", "PagerDuty answered 404")
    'Accounts in the EU set base_url: https://events.eu.pagerduty.com'
    """
    return next((said for sign, said in (*_CURES.get(kind, ()), *_ANY) if sign in trouble), "")

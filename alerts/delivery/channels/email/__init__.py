"""E-mail over SMTP: settings of the channel, and hints for errors of mail servers."""

from __future__ import annotations

from .....core.settings.yaml_config import Fields, Secrets
from ....config import MAX_PORT
from ...channel import ChannelKind, ParsedChannel
from .channel import PORTS, EmailChannel, is_address

# What the receiver answers, and what to do about it.
HINTS = (
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
)


def _read(fields: Fields, name: str, secrets: Secrets) -> ParsedChannel:
    recipients = tuple(fields.texts("to", example="oncall@example.com"))
    sender = fields.text("from", example="stagelens@example.com")
    for key, addresses in (("to", recipients), ("from", (sender,) if sender else ())):
        for wrong in (each for each in addresses if not is_address(each)):
            fix = "write a mail address, such as oncall@example.com"
            fields.complain(f"{fields.name(key)} has {wrong!r}; {fix}", key)
    security = fields.one_of("security", tuple(PORTS)) if fields.has("security") else "starttls"
    port = int(fields.amount("port", example="587", whole=True) or 0)
    if port > MAX_PORT:
        fields.complain(f"{fields.name('port')} is {port}; write a port, such as 587", "port")
    user = fields.text("user")
    password = secrets.take("password", example="SMTP_PASSWORD" if user else "")
    if not (user + password).isascii():
        fix = "signing in to a mail server can carry ASCII alone; set another one there"
        fields.complain(f"{fields.name('user')} or its password has a letter such as ü; {fix}", "user")
    mail = EmailChannel(
        name,
        host=fields.text("host", example="smtp.example.com"),
        sender=sender,
        recipients=recipients,
        security="tls" if security == "tls" else "none" if security == "none" else "starttls",
        port=port,
        user=user,
        password=password,
    )
    return ParsedChannel(mail)


KIND = ChannelKind(_read, HINTS)

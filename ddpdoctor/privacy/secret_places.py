"""Secrets that no name announces, in known programs and file formats: after a one-letter option, or at a fixed position."""

from __future__ import annotations

import re

from ddpdoctor.late_pattern import pattern

__all__ = ["LOGIN", "MESSAGE", "PLACES", "PROGRAMS"]

_ITS = r"\b[^|;&\n]{0,400}?\s"
_TYPED = r"(?=\S*\d)(?=\S*[A-Za-z])(?=[^\s._-]{10})"
"""A password or a key, not a word, a path or a version."""
_BY_OPTION = (
    rf"\b(?:sshpass|(?:docker|podman|helm\sregistry|az)\slogin|(?:mysql|mariadb)(?:-?(?:dump|admin))?|twine|cqlsh|mongo\w*){_ITS}-p",
    rf"\b7za?{_ITS}-p(?=\S)|\b(?:unzip|zip|sqlcmd|bcp|ipmitool|mosquitto_[ps]ub){_ITS}-P",
    rf"\bredis-cli{_ITS}-a|\bldap(?:search|add|modify|delete|passwd|whoami){_ITS}-w|\bopenssl{_ITS}-pass(?:in|out)?\spass:",
    rf"-U\s?[^\s%]+%(?=\S)|\bxfreerdp{_ITS}/p:|\blftp{_ITS}-u\s[^\s,]+,|\bhttps?\s(?:[^|;&\n]{{0,400}}?\s)?-a\s[^\s:]+:",
    rf"\b(?:secret|secretsmanager)\s{_ITS}--(?:value|body|secret-string)[=\s]",
    rf"\bsnmp(?:bulk)?(?:walk|get|set){_ITS}-c|\b(?:nmcli|dvc){_ITS}password(?=\s)|\brclone{_ITS}pass(?=\s)",
)
_BY_PLACE = (
    r"\bmc\s(?:-\S+\s)*(?:(?:alias\sset|config\shost\sadd)\s\S+|admin\suser\sadd)\s\S+\s\S+\s",
    r"\b(?:wandb|vault|neptune|comet)\slogin(?:\s--?[\w-]+(?:=\S+)?)*\s(?=\S*\d)(?=[^\s=]{8})",
    r"\bwandb[^\w\n]{1,4}(?=[0-9a-f]{40}(?![\w-]))",
    r"\b(?:netrc|credentials?)\b[^\n]{0,40}?[:\s]\s(?=[0-9a-f]{32,64}(?![\w-]))",
    rf"\b(?:user|account)\slogin\s\S+\s{_TYPED}",
    rf"\b(?:b2|backblaze-b2)\s(?:account\s)?authorize(?:[-_]account)?\s\S+\s{_TYPED}",
    r"\bngrok\s(?:config\sadd-)?authtoken\s(?=\S{8})",
    r"(?:\bsqlplus\s(?:-\S+\s)*|\bjdbc:oracle:\w+:)[^\s/]+/(?=[^\s@]+@)",
    r"\bhtpasswd\s-\w*b\w*\s\S+\s\S+\s",
    r"\brabbitmqctl\s(?:add_user|change_password)\s\S+\s",
    r"\bnet\suse\s(?:\S:\s)?\\\\\S+\s(?=[^\s/])",
    r"\blogin\s+\S+\s+password\s+",  # ~/.netrc
)
LOGIN = pattern(
    r"(?P<name>(?:\.(?:login|authenticate|basic_auth)|\bHTTP(?:Basic|Digest|Proxy)Auth)"
    r"\(\s?(?:\w{1,20}\s?=\s?)?['\"][^'\"\n]{0,100}['\"],\s?(?:\w{1,20}\s?=\s?)?['\"])(?P<value>[^'\"\n]{1,400})"
)
"""`smtp.login("user", "…")`, `auth=HTTPBasicAuth("user", "…")`."""
PLACES = (
    pattern(rf"(?P<name>(?:{'|'.join((*_BY_OPTION, *_BY_PLACE))})[ \t]?)(?P<value>\"[^\"]*\"|'[^']*'|[^\s;|&]+)"),
    pattern(r"(?P<name>://[^\s/]+/(?:[\w-]+/)?t/)(?P<value>[a-z]{2}-[\w-]{8,})"),  # channels of conda
    pattern(  # `echo … | kinit`
        r"(?P<name>\becho\s(?:-\w+\s)?)(?P<value>\"[^\"\n]{1,400}\"|'[^'\n]{1,400}'|[^\s|\"'$]{1,400})"
        r"(?=\s?\|\s?(?:kinit|passwd|chpasswd|cryptsetup|gpg|sudo\s-S|[^|;&\n]{1,200}--(?:password|pass|token|passphrase)-(?:stdin|fd)))"
    ),
    pattern(  # `user:…@host:27017` without a scheme
        r"(?P<name>(?<![\w/.@:-])[A-Za-z][\w.-]{0,40}:)(?P<value>(?=[^\s@]*\d)(?=[^\s@]*[A-Za-z])[^\s:@/'\"]{8,80})"
        r"(?=@(?!sha\d)[\w-]{1,60}(?:\.[\w-]{1,60}){0,6}(?:\.[a-z]{2,10}\b|:\d{2,5}\b))"
    ),
    pattern(
        r"(?P<name>\bkind: *Secret\b(?:\n(?!---)[^\n]*){0,200}?\n *(?:stringData|data):\n)(?P<value>(?:[ \t][^\n]*(?:\n|\Z))+)"
    ),
    pattern(r"(?P<name>^(?:stringData|data):\n)(?P<value>(?:[ \t][^\n]*\n)+)(?=kind: *Secret\b)", re.MULTILINE),
)
"""The text before a secret, and the secret."""
PROGRAMS = pattern(
    r"sshpass|login|wandb|mysql|mariadb|twine|cqlsh|mongo|\b7z|zip\b|sqlcmd|\bbcp\b|ipmitool|mosquitto|redis-cli|ldap|openssl|-U|xfreerdp|lftp"
    r"|\bhttps?\s|secret|snmp|nmcli|\bdvc\b|rclone|\bmc\s|ngrok|sqlplus|jdbc|htpasswd|rabbitmqctl|\bnet\suse|/t/|netrc|credential|authenticate|auth|\b(?:user|account)\s|\bb2\s|\becho\s|\S:\S{8,80}@|\bdata:|\bstringData:",
    re.IGNORECASE,
)
"""A part of everything in PLACES: a text without one is not searched for them."""
MESSAGE = pattern(
    r"(?i:(?<![A-Za-z0-9])(?:tokens?|pass(?:word|wd|phrase)|secret|credentials?"
    r"|(?:(?:api|access|auth|private|license|secret)[ _-]?)?"
    r"key(?:_id)?"
    r"|(?:invalid|incorrect|wrong|bad|rejected|expired|unknown|unauthorized)\s(?:\w+\s)?key))"
    r"[\"']?(?:\s(?:provided|given|used|is|was|supplied|for|of|from|with|value)\b){0,2}\s{0,3}(?:=>?|:)?\s{0,3}"
    r"(?:(?P<quoted>[`\"'\\]{1,8})(?=[^`\"'\s\\]{6,80}[`\"'\\])|(?=[\w+/~-]{16}))(?P<value>[^\s`\"',;)\]}\\]+)"
)
"""What a program says about a secret: `invalid token …`, `with password '…'`, `Incorrect API key provided: …`."""

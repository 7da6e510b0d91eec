"""Known shapes of secrets, replaced in text before it leaves the machine.

A replaced secret reads ``[redacted:<rule>:<last 4 hex digits of its sha256>]``: the same secret can
be recognised in two places, and cannot be recovered. Rules name shapes that issuers document;
free-form passwords are not guessed at.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import partial


@dataclass(frozen=True, slots=True)
class Rule:
    """One shape. The pattern runs only on texts that contain one of the ``hints``.

    Group 1, where the pattern has one, is the secret; otherwise the whole match is.
    """

    name: str
    hints: tuple[str, ...]
    pattern: re.Pattern[str]


def _rule(name: str, hints: str, pattern: str) -> Rule:
    return Rule(name, tuple(hints.split("|")), re.compile(pattern))


RULES = (
    _rule("aws-key-id", "AKIA|ASIA", r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b"),
    _rule("github-token", "ghp_|gho_|ghu_|ghs_|ghr_", r"\bgh[pousr]_[A-Za-z0-9]{36,255}\b"),
    _rule("github-token", "github_pat_", r"\bgithub_pat_[A-Za-z0-9_]{60,255}\b"),
    _rule("gitlab-token", "glpat-", r"\bglpat-[A-Za-z0-9_-]{20,255}"),
    _rule("anthropic-key", "sk-ant-", r"\bsk-ant-[A-Za-z0-9_-]{32,255}"),
    _rule("openai-key", "sk-", r"\bsk-(?!ant-)(?:proj-|svcacct-|admin-)?[A-Za-z0-9_-]{32,255}"),
    _rule("slack-token", "xox", r"\bxox[abeoprs]-[A-Za-z0-9-]{10,255}"),
    _rule("stripe-key", "k_live_", r"\b[rs]k_live_[A-Za-z0-9]{20,255}\b"),
    _rule("google-key", "AIza", r"\bAIza[0-9A-Za-z_-]{35}"),
    _rule("npm-token", "npm_", r"\bnpm_[A-Za-z0-9]{36}\b"),
    _rule("pypi-token", "pypi-", r"\bpypi-[A-Za-z0-9_-]{50,255}"),
    _rule("huggingface-token", "hf_", r"\bhf_[A-Za-z0-9]{30,255}\b"),
    _rule("sendgrid-key", "SG.", r"\bSG\.[A-Za-z0-9_-]{16,32}\.[A-Za-z0-9_-]{32,64}"),
    _rule("digitalocean-token", "dop_v1_|doo_v1_", r"\bdo[op]_v1_[a-f0-9]{64}\b"),
    _rule(
        "jwt",
        "eyJ",
        r"\beyJ[A-Za-z0-9_-]{10,4096}\.eyJ[A-Za-z0-9_-]{10,8192}\.[A-Za-z0-9_-]{16,1024}",
    ),
    _rule(
        "private-key",
        "PRIVATE KEY-----",
        r"-----BEGIN (?:[A-Z0-9]{1,20} ){0,3}PRIVATE KEY-----"
        r"([^-]{40,16384})-----END (?:[A-Z0-9]{1,20} ){0,3}PRIVATE KEY-----",
    ),
    _rule(
        "authorization",
        "uthorization",
        r"(?i)\bauthorization[\"']?\s{0,4}[:=]\s{0,4}[\"']?(?:bearer|basic|token)\s{1,4}"
        r"([A-Za-z0-9._~+/=-]{16,4096})",
    ),
    _rule("url-password", "://", r"://[^\s/:@\"'<>]{1,128}:([^\s/@\"'<>${}]{4,256})@[A-Za-z0-9]"),
)


#: Flat, because the look for hints runs over every text.
_HINTED = tuple((hint, rule) for rule in RULES for hint in rule.hints)


def redact(text: str) -> tuple[str, int]:
    """The text with every known secret replaced, and how many were."""
    total = 0
    for hint, rule in _HINTED:
        if hint in text:
            text, count = rule.pattern.subn(partial(_stub, rule), text)
            total += count
    return text, total


def _stub(rule: Rule, match: re.Match[str]) -> str:
    whole = match.group(0)
    secret = match.group(1) if match.re.groups else whole
    digest = hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()
    return whole.replace(secret, f"[redacted:{rule.name}:{digest[-4:]}]")

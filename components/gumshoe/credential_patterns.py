"""Regular expressions that find credentials in text by their form. `gumshoe.redaction` uses them.

The text may be hostile: the work of each expression grows at most linearly with the length of the text.
"""

import re

_END = r"\s\"'<>`\\"  # characters that end a URL in text
USER_INFO = re.compile(
    rf"""(?P<name>(?<![a-z0-9+.-])[a-z][a-z0-9+.-]{{0,30}}:(?:\\?/){{2}})
    (?:[^/?\#{_END}]{{0,500}}@                           # user, or user and password
    |[^/?\#:@{_END}]{{0,100}}:(?!\d*(?:[/?\#,;)\]}}{_END}]|$))[^{_END}]{{0,300}}@)  # a password with /, not a port""",
    re.I | re.X,
)
RELATIVE_USER_INFO = re.compile(r"(?P<name>(?<![:\w/\\])//)[^/?#:@\s]{1,100}:[^/?#@\s]{1,300}(?=@)")
PASSWORD = re.compile(r"(?<=://)[^/?#:@\s]{0,100}:[^/?#@\s]{1,300}@")
ENCODED_USER_INFO = re.compile(r"(?P<name>(?<![a-z0-9+.-])[a-z][a-z0-9+.-]{0,30}%3a%2f%2f)[^\s&/]{0,500}?(?=%40)", re.I)
PARAMETER = re.compile(
    r"(?P<name>(?:[?&;]|%3f|%26)(?:[\w.-]{0,40}(?:token|secret|passw|passphrase|signature|credential|api[_-]?key|"
    r"access[_-]?key|private[_-]?key)[\w.-]{0,40}|auth|sig|key|pwd|pass|jwt|awsaccesskeyid|code)(?:=|%3d))"
    rf"(?:(?!%26)[^&;#{_END}])+",
    re.I,
)
WEBHOOK = re.compile(
    r"(?P<name>https?://(?:hooks\.slack\.com/(?:services|workflows|triggers)|discord(?:app)?\.com/api/webhooks|"
    rf"[\w.-]{{1,100}}\.webhook\.office\.com/webhookb2)/)[^?#{_END}]+",
    re.I,
)
BEARER = re.compile(r"(?P<name>\bBearer\s+)(?=[\w.~+/-]{0,15}(?:\d|[\w.~+/-]{16}))[\w.~+/-]{6,}=*", re.I)
BASIC = re.compile(r"(?P<name>\bBasic\s+)(?=[\w+/]{0,1000}[\d=])[\w+/]{6,}=*")
KUBECONFIG = re.compile(r"(?P<name>^[^\S\n]*(?:token|password|client-key-data):\s+)[^\s\"'.<$|>]\S*", re.M)
PRIVATE_KEY = re.compile(r"(?P<name>-----BEGIN [A-Z ]{0,30}PRIVATE KEY-----)(?:(?!-----).)+", re.S)
NAMED = (RELATIVE_USER_INFO, PRIVATE_KEY, WEBHOOK, PARAMETER, BEARER, BASIC, KUBECONFIG)
"""Expressions of which only the group `name` is not secret."""
NO_SEPARATORS = re.compile(r"[\w.@<>+-]*+")  # no other expression than KNOWN_FORMS matches in such a text, e.g. an id
KNOWN_FORMS = re.compile(
    r"""\bgum_[\w-]{16,}|\bhf_[A-Za-z0-9]{16,}|\bapi_org_[A-Za-z0-9]{16,}|\b(?:sk|rk|pk)-[\w-]{16,}
    |\b(?:AKIA|ASIA|AGPA|AROA|AIDA)[A-Z0-9]{12,}\b|\bgh[pousr]_[A-Za-z0-9]{20,}|\bgithub_pat_\w{20,}|\bglpat-[\w-]{16,}
    |\bxox[abeoprs]-[\w-]{10,}|\bxapp-[\w-]{10,}|\bAIza[\w-]{30,}|\bya29\.[\w.-]{20,}|\bhvs\.[\w-]{20,}
    |\bnpm_[A-Za-z0-9]{30,}|\bpypi-[\w-]{30,}|\beyJ(?:\w|-(?!eyJ)){6,}\.[\w-]{4,}(?:\.[\w-]*)*""",
    re.X,
)
FIELD = re.compile(  # a name, and what separates it from its value; quotes are escaped in JSON that contains JSON
    r"""(?<![\w.-])(?P<field>[\w.-]++)
    (?:["']?[^\S\n]{0,9}\n[^\S\n]{0,40}value:  # an environment variable of a container, in YAML
    |\\{0,3}["'](?:\s{0,9},\s{0,9}\\{0,3}["']value\\{0,3}["']\s{0,9}:|\s{0,9}(?::|=>?|,(?=\s{0,9}b?\\{0,3}["'])))
    |\s{0,9}(?P<mark>=|:))
    \s{0,9}(?P<open>b?\\{0,3}["'])?""",
    re.X,
)
OPTION = re.compile(  # of a command line; without a digit or 16 characters, what follows may be prose
    r"(?P<name>(?<!\S)(?P<option>--[\w-]++)[ ]+)(?=\S{0,15}\d|\S{16})[^\s\"'<>${*-][^\s\"']{5,}"
)
SECRET_NAME = re.compile(
    r"(?!(?:.*_)?(?:eos|bos|pad|unk|stop|sep|mask|cls|end|next|first|last|special|image)_token$)"  # of a tokenizer
    r"(?:secret|(?:.*_)?(?:password|pgpassword|passwd|passphrase|pwd|(?:app|api|shared|signing|client)_secret|"
    r"secret_key|secretkey|secret_access_key|access_key|access_key_id|account_key|api_key|apikey|private_key|"
    r"signing_key|client_key_data|token|(?:auth|access|refresh|session|id|bearer|bot|security|csrf|vault)_token|"
    r"authorization|cookies?|set_cookie|webhook|webhook_url|dsn|credentials?|otlp(?:_\w+)?_headers))"
)
PLAIN_NAMES = {"token", "secret", "id_token", "credential", "credentials", "key"}  # also ordinary words: only with "="
ENV_SUFFIX = re.compile(r"(.*_(?:TOKEN|PASSWORD))_[A-Z0-9_]+")  # GUMSHOE_IMAP_PASSWORD_ANN
AUTHORIZATION = re.compile(r"(?:[A-Za-z][\w-]{1,30}\s+)?(?P<token>[^\s\"',;\\]+)")
SEVERAL = re.compile(r"(?:aws4-|digest\s|signature\s)", re.I)  # schemes whose credentials have several parts
LINE, WORD = re.compile(r"[^\r\n]*"), re.compile(r"[^\s\"',;&})\]]*")
COOKIES = re.compile(r"(?=[^\"'\r\n=]{0,200}=)[^\"'\r\n]*")
BLOCK = re.compile(r"[|>][+-]?[ \t]*\n[ \t]+[^\r\n]*")  # text of several lines in YAML
TO_QUOTE = {
    "'": re.compile(r"(?:\\[^\r\n]|[^'\\\r\n])*"),
    '"': re.compile(r"(?:\\[^\r\n]|[^\"\\\r\n])*"),
} | {  # in JSON that contains JSON: to a quote with as many backslashes
    "\\" * count + mark: re.compile(rf"(?:(?!(?<!\\)\\{{{count}}}{mark})[^\r\n])*")
    for count in (1, 2, 3)
    for mark in "'\""
}
WORD_BREAK = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")  # in clientSecret
PLACEHOLDER = re.compile(r"\.\.\.|[<${*…]|[A-Z]+(?:_[A-Z0-9]+)+(?![\w-])")  # also the name of a variable
SECRET_VARIABLE = re.compile(
    r"(?!(?!.*WEBHOOK).*_(?:PATH|FILE|DIR|NAME|URL|URI|ENDPOINT|TYPE|APPLICATION_CREDENTIALS)$)"  # the last is a path
    r"(?:.*_)?(?:TOKEN|PASSWORD|PASSWD|SECRET|SECRET_ACCESS_KEY|SECRET_KEY|ACCESS_KEY_ID|API_KEY|APIKEY|PRIVATE_KEY|"
    r"CREDENTIALS?|WEBHOOK|AUTHORIZATION|OTLP_HEADERS|OTLP_TRACES_HEADERS)(?:_.*)?"
)

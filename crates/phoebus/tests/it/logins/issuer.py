"""An issuer of tokens, by python3-jwt: makes its keys and its documents, and signs.

issuer.py make FOLDER URL: keys rsa.pem and ec.pem (with ec.pub), and the documents that a web server has to show.
issuer.py sign FOLDER ALGORITHM KEYID CLAIMS: prints a token; CLAIMS is JSON, and times in it count from now.
"""

import json
import sys
import time
from base64 import urlsafe_b64encode
from pathlib import Path

import jwt
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa


def number(value, length=None):
    return urlsafe_b64encode(value.to_bytes(length or (value.bit_length() + 7) // 8, "big")).rstrip(b"=").decode()


def private(folder, name, key):
    pem = serialization.Encoding.PEM
    text = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (folder / f"{name}.pem").write_bytes(text)
    public = key.public_key().public_bytes(pem, serialization.PublicFormat.SubjectPublicKeyInfo)
    (folder / f"{name}.pub").write_bytes(public)
    return key.public_key().public_numbers()


def make(folder, url):
    n = private(folder, "rsa", rsa.generate_private_key(65537, 2048))
    p = private(folder, "ec", ec.generate_private_key(ec.SECP256R1()))
    private(folder, "unknown", ec.generate_private_key(ec.SECP256R1()))
    keys = [
        {"kty": "RSA", "kid": "rsa", "use": "sig", "n": number(n.n), "e": number(n.e)},
        {"kty": "EC", "crv": "P-256", "kid": "ec", "x": number(p.x, 32), "y": number(p.y, 32)},
    ]
    shown = folder / "web" / "issuer"
    (shown / ".well-known").mkdir(parents=True)
    (shown / "keys").write_text(json.dumps({"keys": keys}))
    metadata = {"issuer": url, "jwks_uri": f"{url}/keys"}
    (shown / ".well-known" / "openid-configuration").write_text(json.dumps(metadata))


def sign(folder, algorithm, key_id, claims):
    claims, now = json.loads(claims), int(time.time())
    for name in ("exp", "nbf", "iat"):
        if name in claims:
            claims[name] += now
    key = (folder / f"{key_id}.pem").read_text()
    print(jwt.encode(claims, key, algorithm=algorithm, headers={"kid": key_id}))


if sys.argv[1] == "make":
    make(Path(sys.argv[2]), sys.argv[3])
else:
    sign(Path(sys.argv[2]), *sys.argv[3:])

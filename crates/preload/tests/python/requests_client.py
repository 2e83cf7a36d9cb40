"""requests: a download, many on one connection, and a refusal. Arguments: URL, file it serves, echo, nobody."""

import sys

import requests

url, path, _, nobody = sys.argv[1:]
with open(path, "rb") as file:
    expected = file.read()
assert requests.get(f"{url}/data", timeout=60).content == expected
with requests.Session() as session:
    for _ in range(20):
        assert session.get(f"{url}/data", headers={"Range": "bytes=100-299"}).content == expected[100:300]
try:
    requests.get(f"http://{nobody}/", timeout=60)
    sys.exit("nobody answered")
except requests.exceptions.ConnectionError as error:
    assert "Connection refused" in str(error), error
print("ok")

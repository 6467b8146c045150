"""A small S3 server on loopback with the requests of s3fs, which fails on request.

    with Store() as store:            the server is a separate process, so that its clients may be forked and killed
        store.arm(3, "lost")          the third request from now on is performed without an answer
        store.disarm()                the store works again; returns the requests in between

Ways to fail:
  drop    nothing is done, and the connection ends          lost    it is done, and the connection ends without an answer
  half    half of the request or answer is sent             denied  403, nothing is done
  broken  500, nothing is done                              before, after   the client is killed before or after the request
With `for_good` all later requests fail in the same way, as without a network or a permission.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit
from xml.sax.saxutils import escape

FAILURES = ("drop", "lost", "half", "denied", "broken")
DEATHS = ("before", "after")


class Held:
    """The contents of the store, and its faults."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.objects: dict[str, tuple[bytes, float]] = {}
        self.uploads: dict[str, dict[int, bytes]] = {}
        self.log: list[str] = []
        self.plan: dict[str, Any] = {}

    def fault(self, output: str) -> str:
        """Return the fault of a request; "" for most."""
        with self.lock:
            self.log.append(output)
            if not self.plan:
                return ""
            self.plan["left"] -= 1
            strikes = self.plan["left"] == 0 or (self.plan["left"] < 0 and (self.plan["for_good"] or output == self.plan.get("told")))
            if strikes:  # whoever asks again for the same fares no better
                self.plan["told"] = output
            return str(self.plan["how"]) if strikes else ""


HELD = Held()


class Answers(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        self._serve()

    do_PUT = do_POST = do_HEAD = do_DELETE = do_GET

    def _serve(self) -> None:
        url = urlsplit(self.path)
        self.key, self.query = unquote(url.path).strip("/"), dict(parse_qsl(url.query, keep_blank_values=True))
        if self.key.startswith("-"):
            self._control()
            return
        how = HELD.fault(f"{self.command} {self.path}")
        length = int(self.headers.get("Content-Length") or 0)
        self.body = self.rfile.read(length // 2 if how == "half" else length)
        if "aws-chunked" in self.headers.get("Content-Encoding", ""):
            self.body = unchunked(self.body)
        if how == "before":
            os.kill(HELD.plan["pid"], signal.SIGKILL)
        if how in ("drop", "before") or (how == "half" and length):
            self.close_connection = True
            return
        if how in ("denied", "broken"):
            self._refuse(*((403, "AccessDenied") if how == "denied" else (500, "InternalError")))
            return
        with HELD.lock:
            status, headers, content = self._answer()
        if how == "after":
            os.kill(HELD.plan["pid"], signal.SIGKILL)
        if how in ("lost", "after"):
            self.close_connection = True
            return
        self._send(status, headers, content, cut=how == "half")

    def _send(self, status: int, headers: dict[str, str], content: bytes, cut: bool = False) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(content)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content[: len(content) // 2] if cut else content)
        self.close_connection = self.close_connection or cut

    def _refuse(self, status: int, code: str) -> None:
        self._send(status, {"Content-Type": "application/xml"}, f"<Error><Code>{code}</Code><Message>{code}</Message></Error>".encode())

    def _control(self) -> None:
        values = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"{}")
        with HELD.lock:
            if self.key == "-arm":
                HELD.plan, HELD.log = values, []
            result = json.dumps(HELD.log).encode()
        self._send(200, {}, result)

    # ---- what S3 does; the lock is held

    def _answer(self) -> tuple[int, dict[str, str], bytes]:
        if "/" not in self.key:
            return self._bucket()
        if self.command == "PUT":
            return self._put()
        if self.command == "POST":
            return self._multipart()
        if self.command == "DELETE":
            (HELD.uploads.pop(self.query["uploadId"], None) if "uploadId" in self.query else HELD.objects.pop(self.key, None))
            return 204, {}, b""
        if self.key not in HELD.objects:
            return 404, {}, b"<Error><Code>NoSuchKey</Code><Message>there is none</Message></Error>"
        content, at = HELD.objects[self.key]
        headers = {"ETag": etag(content), "Last-Modified": formatdate(at, usegmt=True), "Accept-Ranges": "bytes"}
        span = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if self.command == "HEAD" or span is None:
            return 200, {**headers, "Content-Length": str(len(content))}, content
        start, stop = int(span[1]), min(int(span[2] or len(content)), len(content) - 1) + 1
        return 206, {**headers, "Content-Range": f"bytes {start}-{stop - 1}/{len(content)}"}, content[start:stop]

    def _bucket(self) -> tuple[int, dict[str, str], bytes]:
        if self.command != "GET":
            return 200, {}, b""
        prefix, delimiter = f"{self.key}/{self.query.get('prefix', '')}", self.query.get("delimiter", "")
        rows, folders = [], set()
        for key, (content, at) in sorted(HELD.objects.items()):
            if not key.startswith(prefix):
                continue
            inside, result, _ = key.removeprefix(prefix).partition(delimiter or "\0")
            if result:
                folders.add(prefix.partition("/")[2] + inside + delimiter)
            else:
                stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(at)) + f".{int(at % 1 * 1000):03d}Z"
                rows.append(
                    f"<Contents><Key>{escape(key.partition('/')[2])}</Key><LastModified>{stamp}</LastModified>"
                    f"<ETag>{escape(etag(content))}</ETag><Size>{len(content)}</Size></Contents>"
                )
        rows += [f"<CommonPrefixes><Prefix>{escape(folder)}</Prefix></CommonPrefixes>" for folder in sorted(folders)]
        return 200, {}, f"<ListBucketResult><IsTruncated>false</IsTruncated>{''.join(rows)}</ListBucketResult>".encode()

    def _put(self) -> tuple[int, dict[str, str], bytes]:
        if "uploadId" in self.query:
            HELD.uploads[self.query["uploadId"]][int(self.query["partNumber"])] = self.body
        elif "x-amz-copy-source" in self.headers:
            content = HELD.objects[unquote(self.headers["x-amz-copy-source"]).strip("/")][0]
            HELD.objects[self.key] = content, time.time()
            return 200, {}, f"<CopyObjectResult><ETag>{escape(etag(content))}</ETag></CopyObjectResult>".encode()
        else:
            HELD.objects[self.key] = self.body, time.time()
        return 200, {"ETag": etag(self.body)}, b""

    def _multipart(self) -> tuple[int, dict[str, str], bytes]:
        if "uploads" in self.query:
            upload = str(len(HELD.uploads) + len(HELD.log))
            HELD.uploads[upload] = {}
            return 200, {}, f"<InitiateMultipartUploadResult><UploadId>{upload}</UploadId></InitiateMultipartUploadResult>".encode()
        parts = HELD.uploads.pop(self.query["uploadId"])
        HELD.objects[self.key] = b"".join(parts[number] for number in sorted(parts)), time.time()
        return 200, {}, b"<CompleteMultipartUploadResult><ETag>&quot;x-1&quot;</ETag></CompleteMultipartUploadResult>"


def etag(content: bytes) -> str:
    return f'"{hashlib.md5(content).hexdigest()}"'


def unchunked(body: bytes) -> bytes:
    """Decode chunks, each preceded by its length."""
    result = b""
    while body:
        head, _, body = body.partition(b"\r\n")
        length = int(head.partition(b";")[0], 16)
        if not length:
            break
        result, body = result + body[:length], body[length + 2 :]
    return result


class Store:
    """A server in a new process with this process as its client, or a running server at `url`."""

    def __init__(self, url: str = "") -> None:
        self.url = url

    def __enter__(self) -> Store:
        self._process = subprocess.Popen([sys.executable, __file__], stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.url = f"http://127.0.0.1:{int(self._process.stdout.readline())}"
        self.environment = {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ACCESS_KEY_ID": "somebody",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_MAX_ATTEMPTS": "1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }
        os.environ |= self.environment
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()
        for name in self.environment:
            del os.environ[name]

    def _ask(self, what: str, **values: Any) -> list[str]:
        request = urllib.request.Request(f"{self.url}/-{what}", json.dumps(values).encode(), method="POST")
        with urllib.request.urlopen(request, timeout=20) as answer:
            log: list[str] = json.load(answer)
        return log

    def arm(self, at: int, how: str, for_good: bool = False, pid: int = 0) -> None:
        self._ask("arm", left=at, how=how, for_good=for_good, pid=pid)

    def disarm(self) -> list[str]:
        """Stop the faults; return the requests since `arm`."""
        log = self._ask("look")
        self._ask("arm")
        return log


class Server(ThreadingHTTPServer):
    def handle_error(self, *_: Any) -> None:
        """Ignore a closed connection, which is tested."""


if __name__ == "__main__":
    server = Server(("127.0.0.1", 0), Answers)
    print(server.server_address[1], flush=True)
    server.serve_forever()

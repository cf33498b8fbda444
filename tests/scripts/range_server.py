"""Serves the current folder on 127.0.0.1 with byte ranges, for tests of downloads.

    range_server.py PORT_FILE LOG_FILE

Writes its port to PORT_FILE once it listens and one line "PATH FIRST_BYTE STATUS" per request to
LOG_FILE. Paths below /cut/ lose the connection after half of what is left of a file, for the first two
requests of each; below /plain/ ranges are ignored; below /busy/ the first request gets a 503.
"""
import http.server
import os
import re
import sys


class Handler(http.server.BaseHTTPRequestHandler):
    seen = {}

    def log_message(self, *_):
        pass

    def note(self, first, status):
        with open(sys.argv[2], "a") as log:
            log.write(f"{self.path} {first} {status}\n")

    def answer(self, status, first=0, headers=()):
        self.note(first, status)
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, str(value))
        self.end_headers()

    def do_HEAD(self):
        path = self.path.split("/", 2)[2]
        self.answer(200, 0, [("Content-Length", os.path.getsize(path))])

    def do_GET(self):
        mode, path = re.match(r"/(cut|plain|busy|whole)/(.*)", self.path).groups()
        count = Handler.seen[self.path] = Handler.seen.get(self.path, 0) + 1
        if mode == "busy" and count == 1:
            return self.answer(503, 0, [("Content-Length", 0)])
        if not os.path.isfile(path):
            return self.answer(404, 0, [("Content-Length", 0)])
        data = open(path, "rb").read()
        wanted = re.match(r"bytes=(\d+)-", self.headers.get("Range", ""))
        first = int(wanted.group(1)) if wanted and mode != "plain" else 0
        if first >= len(data):
            return self.answer(416, first, [("Content-Range", f"bytes */{len(data)}"), ("Content-Length", 0)])
        body = data[first:]
        headers = [("Content-Length", len(body)), ("Accept-Ranges", "bytes")]
        if wanted and mode != "plain":
            headers.append(("Content-Range", f"bytes {first}-{len(data) - 1}/{len(data)}"))
            self.answer(206, first, headers)
        else:
            self.answer(200, first, headers)
        self.wfile.write(body[: len(body) // 2] if mode == "cut" and count <= 2 else body)


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
with open(sys.argv[1] + ".tmp", "w") as port_file:
    port_file.write(str(server.server_address[1]))
os.rename(sys.argv[1] + ".tmp", sys.argv[1])
server.serve_forever()

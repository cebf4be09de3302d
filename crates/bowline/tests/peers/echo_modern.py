"""A server of the modern era that does what each request tells it to, over a pipe or over HTTP.

    echo_modern.py CASES RECORD LISTS [http]

A request whose params hold "x-case": "OFFSET:LENGTH" finds at that place of the file CASES what to
do: an array of ["send", LINE], of which the last is the answer, and ["tell", LINE], which goes to
whoever listens. In a line @ID@ is the id of the request, @TOKEN@ its progress token and @LISTEN@
the id of the request that listens. Whatever comes in with a case is appended to RECORD: the case,
a tab, the headers of the era where there are any, a tab, and the message. LISTS is an object of
methods and the results that they have, as they are to be written. Over HTTP the first line of the
output is the port.
"""

import json
import queue
import re
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

CASE = re.compile(rb'"x-case":"(\d+):(\d+)"')
SUBSCRIPTION = "io.modelcontextprotocol/subscriptionId"

DISCOVERED = {
    "resultType": "complete",
    "supportedVersions": ["2026-07-28"],
    "capabilities": {
        "completions": {},
        "logging": {},
        "prompts": {"listChanged": True},
        "resources": {"listChanged": True, "subscribe": True},
        "tools": {"listChanged": True},
    },
    "_meta": {"io.modelcontextprotocol/serverInfo": {"name": "echo", "version": "1"}},
    "ttlMs": 0,
    "cacheScope": "private",
}

lock = threading.Lock()
listeners = []


def begin(message, found, line, headers):
    """Notes a request and returns the steps that it wants."""
    offset, length = int(found[1]), int(found[2])
    name = f"{offset}:{length}"
    with lock, open(sys.argv[2], "ab") as record:
        record.write(b"\t".join([name.encode(), headers, line.strip()]) + b"\n")
    with open(sys.argv[1], "rb") as cases:
        cases.seek(offset)
        steps = json.loads(cases.read(length))
    meta = message["params"].get("_meta") or {}
    token = json.dumps(meta.get("progressToken"))
    identity = json.dumps(message.get("id"))
    for kind, text in steps:
        text = text.replace("@ID@", identity).replace("@TOKEN@", token)
        yield kind, text.encode("utf-8", "surrogatepass")


def answer(message, lists):
    """Answers what every server is asked."""
    identity, method = json.dumps(message["id"]), message["method"]
    if method == "server/discover":
        result = json.dumps(DISCOVERED)
    elif method in lists:
        result = lists[method]
    else:
        error = '{"code":-32601,"message":"no such method"}'
        return f'{{"jsonrpc":"2.0","id":{identity},"error":{error}}}'.encode()
    line = f'{{"jsonrpc":"2.0","id":{identity},"result":{result}}}'
    return line.encode("utf-8", "surrogatepass")


def listen(message, send):
    """Opens a stream of changes, honouring all of it."""
    wanted = message["params"].get("notifications") or {}
    params = {"_meta": {SUBSCRIPTION: message["id"]}, "notifications": wanted}
    method = "notifications/subscriptions/acknowledged"
    line = json.dumps({"jsonrpc": "2.0", "method": method, "params": params})
    send(line.encode())
    with lock:
        listeners.append((json.dumps(message["id"]), send))


def tell(text):
    with lock:
        for identity, send in listeners:
            send(text.replace(b"@LISTEN@", identity.encode()))


def on_a_pipe(lists):
    def send(line):
        sys.stdout.buffer.write(line + b"\n")
        sys.stdout.buffer.flush()

    for line in sys.stdin.buffer:
        message = json.loads(line)
        found = CASE.search(line) if "method" in message else None
        if found is not None:
            for kind, text in begin(message, found, line, b""):
                tell(text) if kind == "tell" else send(text)
        elif message.get("method") == "subscriptions/listen":
            listeners.clear()
            listen(message, send)
        elif "id" in message and "method" in message:
            send(answer(message, lists))


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_GET(self):
        self.plain(405, b"")

    do_DELETE = do_GET

    def do_POST(self):
        line = self.rfile.read(int(self.headers["Content-Length"]))
        message = json.loads(line)
        found = CASE.search(line)
        if "id" not in message:
            return self.plain(202, b"")
        if message["method"] == "subscriptions/listen":
            return self.stream(message)
        if found is None:
            return self.plain(200, answer(message, self.server.lists))
        names = ["MCP-Protocol-Version", "Mcp-Method", "Mcp-Name", "Mcp-Session-Id"]
        headers = json.dumps({name: self.headers[name] for name in names}).encode()
        lines = []
        for kind, text in begin(message, found, line, headers):
            tell(text) if kind == "tell" else lines.append(text)
        if len(lines) == 1:
            return self.plain(200, lines[0])
        self.open_stream()
        for text in lines:
            self.event(text)
        self.wfile.write(b"0\r\n\r\n")

    def plain(self, status, body):
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def open_stream(self):
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()

    def event(self, text):
        event = b"data: " + text + b"\n\n"
        self.wfile.write(b"%x\r\n" % len(event) + event + b"\r\n")
        self.wfile.flush()

    def stream(self, message):
        self.open_stream()
        waiting = queue.Queue()
        listen(message, waiting.put)
        while True:
            try:
                self.event(waiting.get())
            except OSError:
                return


def over_http(lists):
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    server.lists = lists
    print(server.server_address[1], flush=True)
    # Ends with whoever started it.
    threading.Thread(target=server.serve_forever, daemon=True).start()
    sys.stdin.read()


def main():
    with open(sys.argv[3], encoding="utf-8") as file:
        lists = json.load(file)
    if sys.argv[4:] == ["http"]:
        over_http(lists)
    else:
        on_a_pipe(lists)


main()
